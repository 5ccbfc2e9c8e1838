"""Input runs of finished tasks: stored beside the attempt, not in events."""

from __future__ import annotations

import pyarrow as pa

CONSUMED = pa.schema(
    [
        pa.field("source", pa.string(), False),
        pa.field("customer_id", pa.string(), False),
        pa.field("query_name", pa.string(), False),
        pa.field("logical_date", pa.date32(), False),
        pa.field("run_id", pa.string(), False),
        pa.field("input_source", pa.string(), False),
        pa.field("input_customer_id", pa.string(), False),
        pa.field("input_query_name", pa.string(), False),
        pa.field("input_logical_date", pa.date32(), False),
        pa.field("input_run_id", pa.string(), False),
        pa.field("input_content_digest", pa.string(), False),
    ]
)
