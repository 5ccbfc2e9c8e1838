"""The contracts of models: Spark infers their columns from their code, and the inferred columns are stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pydantic
from sqlalchemy.engine import Row

from penstock.config.assets import Model, Query
from penstock.config.checks import References, check_to_mapping
from penstock.config.settings import WORKSPACE_FILE
from penstock.contract.contract import Contract
from penstock.contract.schema import arrow_schema
from penstock.derived import in_order
from penstock.errors import ConfigError, WarehouseError
from penstock.warehouse.layout import file_schema
from penstock.warehouse.scan import SCHEMA_VERSION
from penstock.warehouse.version_union import fitting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def known(
    models: Mapping[str, Model], root: Path, kept: Sequence[Row[Any]]
) -> tuple[dict[str, Contract], dict[str, str]]:
    """The contracts of the configured models, and by name why a definition cannot be read. A model that was never
    derived by its present definition has no fields yet; one whose definition cannot be read keeps its last contract."""
    found: dict[str, Contract] = {}
    unreadable: dict[str, str] = {}
    for name, model in models.items():
        try:
            found[name] = _known(_draft(model, root), kept)
        except ConfigError as error:
            unreadable[name] = str(error)
            found[name] = _last(model, kept)
    return found, unreadable


def _last(model: Model, kept: Sequence[Row[Any]]) -> Contract:
    """The contract of the last run of the model; one without fields and code if there is none."""
    for row in reversed(kept):
        if (row.source, row.query_name, row.schema_version) == (model.source, model.name, model.schema_version):
            return Contract.from_body(row.body)
    return _with_code(model, "")


def _known(draft: Contract, kept: Sequence[Row[Any]]) -> Contract:
    """The newest stored contract that differs from the draft in its fields only."""
    found = draft.same_as({row.fingerprint: {**row.body, "fields": []} for row in kept})
    bodies = {row.fingerprint: row.body for row in kept}
    return Contract.from_body(bodies[found[-1]]) if found else draft


def _draft(model: Model, root: Path) -> Contract:
    file = root / model.definition
    try:
        code = file.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        where = f"there is no file {str(model.definition)!r} in the folder of {WORKSPACE_FILE}"
        raise ConfigError(f"models.{model.name}: {where}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"models.{model.name}: {model.definition} cannot be read: {error}") from error
    return _with_code(model, code)


def _with_code(model: Model, code: str) -> Contract:
    options = {
        "code": code,
        "language": "sql" if model.python is None else "python",
        "depends_on": list(model.depends_on),
        "per": model.per,
        "needs": model.needs,
        "require": model.require,
    }
    return Contract(model.source, model.name, model.schema_version, (), model.checks, "reject", "reject", options)


def with_fields(
    spark: SparkSession,
    models: Mapping[str, Model],
    contracts: Mapping[str, Contract],
    tables: Mapping[str, Sequence[pa.Schema]],
    unreadable: Mapping[str, str],
    refuse: Callable[[Contract], None],
) -> tuple[dict[str, Contract], dict[str, str]]:
    """All contracts, with the fields of models as Spark infers them, and by name why a model cannot be derived: Spark
    or `refuse` rejects it, its definition is `unreadable`, or it depends on such a model. `tables` holds the present
    schemas of tables by name: a model may read a column of an older schema version, and one of the contract that no
    table has yet."""
    from penstock.pipeline.model import fields_of

    found, broken = dict(contracts), dict(unreadable)
    for model in in_order(models):
        above = [name for table in model.depends_on if (name := table.partition(".")[2]) in broken and name in models]
        if model.name in broken:
            continue
        if above:
            broken[model.name] = f"models.{model.name}: it depends on models.{above[0]}, which cannot be derived"
            continue
        try:
            contract = found[model.name]
            inputs = {
                table: _columns(found[table.partition(".")[2]], tables.get(table, ())) for table in model.depends_on
            }
            fields = fields_of(spark, model, str(contract.options["code"]), inputs)
            contract = _checked(model, replace(contract, fields=fields))
            refuse(contract)
            found[model.name] = contract
        except (ConfigError, WarehouseError) as error:
            broken[model.name] = str(error)
    return found, broken


def _columns(contract: Contract, there: Iterable[pa.Schema]) -> pa.Schema:
    """The columns that a model may read: those of the contract, and those of published versions that are compatible."""
    whole = fitting(file_schema(arrow_schema(contract.columns)), there)
    return whole if SCHEMA_VERSION in whole.names else whole.append(pa.field(SCHEMA_VERSION, pa.string()))


def _checked(model: Model, contract: Contract) -> Contract:
    """The contract, if its checks fit its columns; raises ConfigError otherwise, as for a query."""
    if any(isinstance(check, References) for check in model.checks):
        raise ConfigError(f"models.{model.name}: references is a check of queries; use a join in the model instead")
    checks = [check_to_mapping(check) for check in model.checks]
    try:
        Query(name=model.name, source=model.source, fields=contract.fields, checks=checks)  # type: ignore[arg-type]
    except pydantic.ValidationError as error:
        reason = "; ".join(str(problem["msg"]) for problem in error.errors(include_url=False))
        raise ConfigError(f"models.{model.name}: {reason}") from error
    return contract
