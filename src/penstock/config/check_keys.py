"""Documentation of the keys of each check kind, for the generated page docs/reference/settings.md."""

from __future__ import annotations

from penstock.config.values import KeyDoc

_FIELD = KeyDoc("The field.", "clicks")

BESIDE_KEYS = {
    "name": KeyDoc("A name for the check in complaints and in `why`.", "clicks_are_plausible"),
    "severity": KeyDoc(
        "`warn` keeps a violation with the accepted attempt instead of rejecting the partition.", "warn"
    ),
}

CHECK_KEYS = {
    "required": {"fields": KeyDoc("The fields that no row leaves empty.", "[campaign_id]")},
    "unique": {
        "fields": KeyDoc("The fields that identify a row. Rows with a null in one are not compared.", "[campaign_id]")
    },
    "expression": {
        "expression": KeyDoc("A predicate with [listed functions](sql-functions.md).", "clicks <= impressions"),
    },
    "rows": {
        "min": KeyDoc("The smallest number of rows.", "1"),
        "max": KeyDoc("The largest number of rows.", "100000"),
    },
    "shrink": {"max_drop": KeyDoc("The largest share of the rows of the trusted run that may be missing.", "0.5")},
    "range": {
        "field": _FIELD,
        "min": KeyDoc("The smallest value. Null is not compared.", "0", "number or date"),
        "max": KeyDoc("The largest value. Null is not compared.", "1000000", "number or date"),
    },
    "allowed": {
        "field": KeyDoc("The field.", "network"),
        "values": KeyDoc("The allowed values. Null is not compared.", "[SEARCH, CONTENT]", "list of values"),
    },
    "not_null_share": {
        "field": _FIELD,
        "min": KeyDoc("The smallest share of rows with a value.", "0.95"),
    },
    "freshness": {
        "field": KeyDoc("The field, a timestamp.", "updated_at"),
        "max_lag": KeyDoc("The largest age of the newest value at the end of the logical date in UTC.", "36h"),
    },
    "references": {
        "fields": KeyDoc(
            "The fields whose values must exist in the other table. Null is not looked up.", "[campaign_id]"
        ),
        "to": KeyDoc("The other table.", "demo.campaigns"),
        "to_fields": KeyDoc("The fields of the other table, if their names differ.", "[id]"),
        "field": KeyDoc("The same as `fields` with one field.", "campaign_id", "text"),
        "to_field": KeyDoc("The same as `to_fields` with one field.", "id", "text"),
    },
    "compare": {
        "field": KeyDoc("The field. Only `count` works without one: it counts rows.", "clicks"),
        "function": KeyDoc("The aggregate that is compared with that of the trusted run.", "sum"),
        "max_change": KeyDoc("The largest difference, as a share of the trusted run's value.", "0.5"),
    },
}
