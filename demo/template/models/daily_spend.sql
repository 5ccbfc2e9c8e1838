-- One row per day. The column `logical_date` assigns each row to its partition.
SELECT
  logical_date,
  count(DISTINCT customer_id)   AS customers,
  sum(impressions)              AS impressions,
  sum(clicks)                   AS clicks,
  sum(cost_micros) / 1000000.0  AS spend
FROM demo.campaign_daily
GROUP BY logical_date
