"""Metadata of the provider, which Airflow reads through the entry point `apache_airflow_provider`."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from penstock_airflow.connections import CONNECTION_TYPE, DISTRIBUTION, EXTRA_FIELDS, FORM

_INTEGRATION = "Penstock"


def get_provider_info() -> dict[str, Any]:
    """The hook with its connection form, the operator, the sensor, the triggers and the extra link."""
    return {
        "package-name": DISTRIBUTION,
        "name": _INTEGRATION,
        "description": "Partition authority for Spark pipelines.",
        "versions": [version(DISTRIBUTION)],
        "integrations": [
            {
                "integration-name": _INTEGRATION,
                "external-doc-url": "https://github.com/penstock/penstock",
                "tags": ["software"],
            }
        ],
        "connection-types": [
            {
                "connection-type": CONNECTION_TYPE,
                "hook-class-name": "penstock_airflow.hooks.PenstockHook",
                "hook-name": _INTEGRATION,
                "conn-fields": EXTRA_FIELDS,
                "ui-field-behaviour": FORM,
            }
        ],
        "hooks": [_modules("penstock_airflow.hooks")],
        "operators": [_modules("penstock_airflow.operators")],
        "sensors": [_modules("penstock_airflow.sensors")],
        "triggers": [_modules("penstock_airflow.triggers")],
        "extra-links": ["penstock_airflow.links.PenstockConsoleLink"],
    }


def _modules(*names: str) -> dict[str, Any]:
    return {"integration-name": _INTEGRATION, "python-modules": list(names)}
