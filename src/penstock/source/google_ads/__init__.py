"""Google Ads: reports of many accounts through the official client."""
