"""Checks across sections of the workspace file: customers, names, references and models.

They inspect the document instead of the models, so that one bad value does not hide the next problem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple

from penstock import partition
from penstock.config.assets import Query
from penstock.config.checks import References
from penstock.config.document_items import named_sections, numbered_strings, strings
from penstock.config.file import Document, Trail
from penstock.config.source_hooks import HooksOf, SourceHooks
from penstock.config.values import did_you_mean, unknown_name


def refuse_repeated_customers(document: Document) -> None:
    """Refuse a customer id that occurs twice, with both places."""
    first: dict[str, int] = {}
    for index, customer_id in numbered_strings(document.values.get("customers"), "id"):
        if first.setdefault(customer_id, index) != index:
            earlier = document.place(("customers", first[customer_id]))
            document.refuse(("customers", index, "id"), f"customer {customer_id!r} is already defined at {earlier}")


def refuse_unknown_names(document: Document) -> None:
    """Refuse queries whose source or customers the file does not define."""
    sources = document.values.get("sources", {})
    customers = {text: index for index, text in numbered_strings(document.values.get("customers"), "id")}
    for name, query in named_sections(document, "queries"):
        source = query.get("source")
        if isinstance(source, str) and source not in sources:
            document.refuse(("queries", name, "source"), unknown_name("source", source, sources))
        for index, customer_id in numbered_strings(query.get("customers")):
            if customer_id not in customers:
                known = [document.hide(text, ("customers", at, "id")) for text, at in customers.items()]
                document.refuse(("queries", name, "customers", index), unknown_name("customer", customer_id, known))


def refuse_unknown_names_in_alerts(document: Document) -> None:
    """Refuse rules whose channels, source or table the file does not define."""
    alerts = document.values.get("alerts")
    if not isinstance(alerts, dict) or not isinstance(rules := alerts.get("rules"), list):
        return
    channels = alerts.get("channels")
    names = sorted(channels) if isinstance(channels, dict) else []
    sources = document.values.get("sources", {})
    tables = [f"{query.get('source')}.{name}" for name, query in named_sections(document, "queries")]
    known = {
        "source": sorted(sources),
        "table": sorted([*tables, *(f"models.{n}" for n in document.values.get("models", {}))]),
    }
    for index, rule in enumerate(rules):
        if not isinstance(rule, dict):
            continue
        trail: Trail = ("alerts", "rules", index)
        if not names:
            document.refuse(trail, "has no channel: add one to alerts.channels")
        for at, channel in numbered_strings(rule.get("channels")):
            if names and channel not in names:
                document.refuse((*trail, "channels", at), unknown_name("channel", channel, names))
        for what, of_file in known.items():
            found = rule.get(what)
            if isinstance(found, str) and found not in of_file:
                document.refuse((*trail, what), unknown_name(what, found, of_file))


class _CustomerRule(NamedTuple):
    """The rule of a source for customer ids, and a query that applies it to some or all customers."""

    query_name: str
    query: dict[str, Any]
    title: str
    normalise: Callable[[str], str]

    def normalised(self, customer_id: str) -> str:
        """The id as partition keys have it. An invalid id stays as it is and is refused later, with its place."""
        try:
            return self.normalise(customer_id)
        except ValueError:
            return customer_id


def _customer_rules(document: Document, hooks_of: HooksOf) -> list[_CustomerRule]:
    sources = dict(named_sections(document, "sources"))
    rules = []
    for name, query in named_sections(document, "queries"):
        source = query.get("source")
        kind = sources[source].get("kind") if isinstance(source, str) and source in sources else None
        hooks = hooks_of(kind) if isinstance(kind, str) else SourceHooks()
        if hooks.normalise_customer is not None:
            rules.append(_CustomerRule(name, query, hooks.title or str(source), hooks.normalise_customer))
    return rules


def _rules_by_customer(rules: Sequence[_CustomerRule]) -> Callable[[str], _CustomerRule | None]:
    """Finds the first rule that applies to a customer. The customers of each query are collected once."""
    asking = [(rule, set(strings(rule.query.get("customers")))) for rule in rules]
    return lambda customer_id: next((rule for rule, only in asking if not only or customer_id in only), None)


def normalise_customers(document: Document, hooks_of: HooksOf) -> None:
    """Replace customer ids by their normalised form, as in partition keys."""
    rules = _customer_rules(document, hooks_of)
    customers, rule_for = document.values.get("customers", []), _rules_by_customer(rules)
    for index, customer_id in numbered_strings(customers, "id"):
        if rule := rule_for(customer_id):
            customers[index]["id"] = rule.normalised(customer_id)
    for rule in rules:
        for index, customer_id in numbered_strings(rule.query.get("customers")):
            rule.query["customers"][index] = rule.normalised(customer_id)


def refuse_customers_of_sources(document: Document, hooks_of: HooksOf) -> None:
    """Refuse ids that the source of a query does not accept. Customers of other sources may have any id."""
    rule_for = _rules_by_customer(_customer_rules(document, hooks_of))
    for index, customer_id in numbered_strings(document.values.get("customers"), "id"):
        if rule := rule_for(customer_id):
            try:
                rule.normalise(customer_id)
            except ValueError as error:
                text = f"{customer_id!r} {error}, because {rule.query_name} fetches it from {rule.title}"
                document.refuse(("customers", index, "id"), text)


def refuse_broken_references(document: Document, queries: Mapping[str, Query]) -> None:
    """Refuse `references` to unknown tables or fields, to fields of another type, and in a cycle."""
    tables = {f"{query.source}.{query.name}": query for query in queries.values()}
    needs: dict[str, set[str]] = {name: set() for name in tables}
    for table, query in tables.items():
        for index, check in enumerate(query.checks):
            if not isinstance(check, References):
                continue
            needs[table].add(check.to)
            trail: Trail = ("queries", query.name, "checks", index, "references")
            if check.to not in tables:
                document.refuse((*trail, "to"), unknown_name("table", check.to, sorted(tables)))
            else:
                for text in _mismatches(check, query, tables[check.to]):
                    document.refuse(trail, text)
    for cycle in _cycles(needs):
        trail = ("queries", tables[cycle[0]].name, "checks")
        document.refuse(trail, f"tables refer to each other in a circle: {' -> '.join(cycle)}")


def _mismatches(check: References, query: Query, other: Query) -> Iterator[str]:
    ours = {field.name: field.type for field in query.fields}
    theirs = {field.name: field.type for field in other.fields}
    for mine, name in zip(check.fields, check.referenced_fields, strict=True):
        if name not in theirs:
            yield f"{name!r} is not a field of {check.to} (fields: {', '.join(theirs)}){did_you_mean(name, theirs)}"
        elif ours[mine] != theirs[name]:
            yield f"{mine} is a {ours[mine]}, {name} of {check.to} is a {theirs[name]}: they are never equal"


def refuse_broken_models(document: Document) -> None:
    """Refuse models that read unknown tables, read each other in a cycle, or have unfit customers."""
    tables = {f"{query.get('source')}.{name}" for name, query in named_sections(document, "queries")}
    tables |= {f"models.{name}" for name in document.values.get("models", {})}
    # an unknown source may come from a variable, and is refused elsewhere
    known = sorted(table for table in tables if table.split(".")[0] in (*document.values.get("sources", ()), "models"))
    needs: dict[str, set[str]] = {}
    for name, model in named_sections(document, "models"):
        needed = dict(numbered_strings(model.get("depends_on")))
        needs[f"models.{name}"] = {table for table in needed.values() if table.startswith("models.")}
        for index, table in needed.items():
            if table not in tables:
                document.refuse(("models", name, "depends_on", index), unknown_name("table", table, known))
        alone = {other for other, body in named_sections(document, "models") if body.get("per", "date") == "date"}
        if _is_per_customer(model) and needed and all(t.removeprefix("models.") in alone for t in needed.values()):
            text = "none of the tables that it depends on has customers: write per: date"
            document.refuse(("models", name, "per"), text)
        if name in document.values.get("queries", {}):
            other = document.place(("queries", name))
            document.refuse(("models", name), f"{name!r} is the name of a query already, at {other}")
    if needs:
        for index, customer_id in numbered_strings(document.values.get("customers"), "id"):
            if customer_id == partition.ALL_CUSTOMERS:
                text = f"{customer_id!r} is the customer id of models over all customers: choose another id"
                document.refuse(("customers", index, "id"), text)
    for cycle in _cycles(needs):
        trail = ("models", cycle[0].removeprefix("models."), "depends_on")
        document.refuse(trail, f"models depend on each other in a circle: {' -> '.join(cycle)}")


def _is_per_customer(model: Mapping[str, Any]) -> bool:
    return model.get("per") in ("customer,date", ["customer", "date"])


def _cycles(needs: dict[str, set[str]]) -> Iterator[list[str]]:
    """Yield cycles that share no member, each from its first name back to it."""
    while True:
        try:
            TopologicalSorter(needs).prepare()
        except CycleError as error:
            members: list[str] = error.args[1][:0:-1]  # the sorter lists dependencies first
            start = members.index(min(members))
            yield [*members[start:], *members[: start + 1]]
            needs = {name: others for name, others in needs.items() if name not in members}
        else:
            return
