"""Penstock in Dagster: thin layers over `penstock.client`, without Spark.

>>> with Client(url, token) as client:
...     specs = penstock_asset_specs(client)
>>> checks = build_penstock_checks(specs)
>>> dg.Definitions(
...     assets=build_penstock_assets(specs),  # or `specs`, if Dagster orders no runs
...     asset_checks=checks,
...     sensors=[build_penstock_sensor(specs, checks)],
...     resources={"penstock": PenstockResource(url=url, token=dg.EnvVar("PENSTOCK_TOKEN"))},
... )
"""

from penstock_dagster.assets import OrderConfig, build_penstock_assets
from penstock_dagster.checks import build_penstock_checks
from penstock_dagster.resource import PenstockResource
from penstock_dagster.sensor import build_penstock_sensor
from penstock_dagster.specs import penstock_asset_specs

__version__ = "0.1.0"
__all__ = [
    "OrderConfig",
    "PenstockResource",
    "build_penstock_assets",
    "build_penstock_checks",
    "build_penstock_sensor",
    "penstock_asset_specs",
]
