"""`penstock init`: a new workspace with the demo source."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import options as opt
from penstock.cli.render import show
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.app import Workspace


def register(app: typer.Typer) -> None:
    app.command("init")(init)


def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the new workspace.")] = Path(),
    customers: Annotated[int, typer.Option(min=1, max=10_000, help="Number of demo customers.")] = 5,
    days: Annotated[int, typer.Option(min=1, max=3_650, help="Days of history.")] = 10,
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Create a workspace with the demo source, ready for `penstock run`. Refuses a folder that already has one."""
    from penstock.views.installation import workspace_document

    ws = write_workspace(folder, customers, days)
    target = folder / "penstock.yaml"
    where = folder if str(folder) != "." else Path.cwd()
    document = workspace_document(where.resolve(), target.resolve(), str(ws.context.database))

    def draw(console: object) -> None:
        go = f"cd {folder} && " if str(folder) != "." else ""
        typer.echo(f"created {target} and its state database\nnext: {go}penstock run, then penstock status --grid")

    show(document, as_json, draw)


def write_workspace(folder: Path, customers: int, days: int) -> Workspace:
    """Create a workspace with the demo source and an empty state database. Raises UsageError if the folder has one."""
    from penstock.app import load_workspace
    from penstock.clock import utc_now

    target = folder / "penstock.yaml"
    if target.exists():
        raise UsageError(f"{target} exists already: choose another folder, or edit it")
    start = (utc_now() - timedelta(days=days)).date()
    listed = "\n".join(
        f'  - {{id: "{1_000_000_001 + n}", name: Customer {n + 1}, time_zone: UTC}}' for n in range(customers)
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with target.open("x", encoding="utf-8") as file:
            file.write(_TEMPLATE.format(customers=listed, start=start.isoformat()))
        (folder / "models").mkdir(exist_ok=True)
        (folder / "models" / "daily_spend.sql").write_text(_MODEL, encoding="utf-8")
    except FileExistsError:
        raise UsageError(f"{target} exists already: choose another folder, or edit it") from None
    except OSError as error:
        raise UsageError(f"cannot create a workspace in {folder}: {error.strerror}") from error
    ws = load_workspace(folder)
    ws.maintenance.migrate()
    return ws


_TEMPLATE = """\
# A Penstock workspace. `penstock doctor` checks it, `penstock run` fetches, checks and loads what is due.
# docs/reference/settings.md describes every key.
tenant: acme
workspace: ads

# The state database: which run of which partition is trusted. In production:
#   state: postgresql+psycopg://user@host/db
state: sqlite:///state.db

# The data: raw/ and warehouse/ (Delta tables). Or: s3://bucket/prefix
lake: ./lake

spark:
  master: "local[*]"

# A day is due when it is over in the customer's time zone.
customers:
{customers}

sources:
  demo:
    kind: demo
    seed: 7
    rows: 20
    # Breaks this share of the partitions on purpose, to see what a failure looks like:
    # failure_rate: 0.05

queries:
  campaign_daily:
    source: demo
    schema_version: v1            # change it whenever fields change
    start_date: {start}
    fields:
      - {{name: campaign_id, type: long, required: true}}
      - {{name: campaign_name, type: string}}
      - {{name: impressions, type: long}}
      - {{name: clicks, type: long}}
      - {{name: cost_micros, type: long}}
      - {{name: conversions, type: double}}
    checks:
      - unique: [campaign_id]
      - expression: clicks <= impressions
      - range: {{field: cost_micros, min: 0}}
      - rows: {{min: 1}}
      - shrink: {{max_drop: 0.5}}   # a re-fetch with less than half of the trusted rows is held back

  network_daily:
    source: demo
    schema_version: v1
    start_date: {start}
    fields:
      - {{name: ad_group_id, type: long, required: true}}
      - {{name: network, type: string, required: true}}
      - {{name: impressions, type: long}}
      - {{name: clicks, type: long}}
    checks:
      - unique: [ad_group_id]
      - allowed: {{field: network, values: [SEARCH, CONTENT, YOUTUBE_WATCH, MIXED]}}

# Tables derived from other tables by Spark SQL. A day is derived when enough of its inputs can be read, and again when
# one of them changes. In SQL the table is models.daily_spend.
models:
  daily_spend:
    sql: models/daily_spend.sql
    depends_on: [demo.campaign_daily]
    per: date                     # or [customer, date]
    require: 80%                  # of the customers; all is the default
    checks:
      - rows: {{min: 1, max: 1}}
"""

_MODEL = """\
-- One row per day. The column `logical_date` assigns each row to its partition.
SELECT
  logical_date,
  count(DISTINCT customer_id)   AS customers,
  sum(impressions)              AS impressions,
  sum(clicks)                   AS clicks,
  sum(cost_micros) / 1000000.0  AS spend
FROM demo.campaign_daily
GROUP BY logical_date
"""
