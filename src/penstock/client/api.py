"""The calls of the HTTP API in Python."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from penstock.client.transport import API, Document, Page, Selection, Transport, parameters, quoted, selection_body
from penstock.errors import PenstockError

if TYPE_CHECKING:
    import ssl


@dataclass(frozen=True, slots=True)
class GridBytes:
    """The status of the partitions of a query: a row for each customer, a column for each day, one byte each."""

    codes: bytes
    rows: int
    columns: int
    labels: Document

    def code(self, row: int, column: int) -> int:
        """The code of one partition; `labels["codes"]` has its meaning.

        >>> client.grid("campaign_daily").code(0, 0)
        """
        return self.codes[row * self.columns + column]


class Client:
    """One server. It can be used in several threads."""

    def __init__(
        self, url: str, token: str | None = None, *, timeout: float = 30.0, verify: ssl.SSLContext | bool = True
    ) -> None:
        """`token` is the text that `penstock tokens create` printed; a server on loopback without tokens needs none.

        >>> Client("https://penstock.example.com", token)
        """
        self._transport = Transport(url, token, timeout, verify)

    @property
    def url(self) -> str:
        """The address of the server, without a slash at its end.

        >>> client.url
        """
        return self._transport.url

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections.

        >>> client.close()
        """
        self._transport.close()

    # --- partitions ---------------------------------------------------------------------------------------------------

    def partitions_page(self, *, limit: int = 100, cursor: str | None = None, **filters: Any) -> Page:
        """One page of partitions: source, customer, query, date, since, until, status, key.

        >>> client.partitions_page(status="failed", limit=10).items
        """
        return self._transport.page("/partitions", {**filters, "limit": limit, "cursor": cursor})

    def partitions(self, **filters: Any) -> Iterator[Document]:
        """All partitions of the filters, page by page.

        >>> [item["key"] for item in client.partitions(status="failed")]
        """
        return self._transport.all("/partitions", {**filters, "limit": 1000})

    def partition(self, key: str) -> Document:
        """Why a partition is in its state, what blocks it and what happens next.

        >>> client.partition("demo/1000000001/campaign_daily/2024-06-01")["headline"]
        """
        return self._transport.get(f"/partitions/{quoted(key)}")

    def attempts(self, key: str) -> list[Document]:
        """Every attempt of a partition, newest first.

        >>> client.attempts("demo/1000000001/campaign_daily/2024-06-01")
        """
        items: list[Document] = self._transport.get(f"/partitions/{quoted(key)}/attempts")["items"]
        return items

    def status(self, by: Sequence[str] = ("query",), **filters: Any) -> Document:
        """The number of partitions by display status.

        >>> client.status(by=["customer"])["counts"]
        """
        return self._transport.get("/status", {**filters, "by": ",".join(by)})

    def grid(self, query: str, *, since: date | str | None = None, until: date | str | None = None) -> GridBytes:
        """The status of all partitions of a query, with the labels that belong to it.

        >>> client.grid("campaign_daily").rows
        """
        asked = {"query": query, "since": since, "until": until}
        while True:
            labels = self._transport.get("/grid/labels", asked)
            found = self._transport.send("GET", f"{API}/grid", params=parameters(asked))
            if found.headers["Grid-Layout"] == labels["layout"]:  # a day may have begun between the two requests
                rows, columns = int(found.headers["Grid-Rows"]), int(found.headers["Grid-Columns"])
                return GridBytes(found.content, rows, columns, labels)

    # --- runs, orders, backfills --------------------------------------------------------------------------------------

    def runs(self) -> Iterator[Document]:
        """All runs, newest first.

        >>> next(client.runs())["state"]
        """
        return self._transport.all("/runs", {"limit": 100})

    def run(self, run_id: str) -> Document:
        """One run: its tasks by stage and state, and what blocks them.

        >>> client.run("01J0000000000000000000000A")["stages"]
        """
        return self._transport.get(f"/runs/{quoted(run_id)}")

    def order_run(
        self,
        selection: Selection | None = None,
        *,
        reprocess: bool = False,
        force: bool = False,
        reason: str | None = None,
        idempotency_key: str | None = None,
    ) -> Document:
        """Order a run: the control loop fetches what is due; with `reprocess` also success partitions, of which more
        than 10,000 need `force`. Returns the order.

        >>> client.order_run({"since": "2024-06-01"}, reason="source fixed")["order_id"]
        """
        body = {"selection": selection_body(selection), "reprocess": reprocess, "force": force, "reason": reason}
        return self._transport.post("/runs", body, idempotency_key)

    def cancel_run(self, run_id: str) -> bool:
        """Cancel a run; False if it is over.

        >>> client.cancel_run("01J0000000000000000000000A")
        """
        return bool(self._transport.post(f"/runs/{quoted(run_id)}/cancel")["requested"])

    def order(
        self, kind: str, selection: Selection | None = None, *, idempotency_key: str | None = None, **options: Any
    ) -> Document:
        """Order other work of the control loop: resume, validate, reconcile, compact. A re-check of more than 10,000
        partitions needs `force=True`.

        >>> client.order("compact", tables=["demo.campaign_daily"])["state"]
        """
        return self._transport.post(
            "/orders", {"kind": kind, "selection": selection_body(selection), **options}, idempotency_key
        )

    def orders(self) -> Iterator[Document]:
        """All orders, newest first.

        >>> next(client.orders())["state"]
        """
        return self._transport.all("/orders", {"limit": 100})

    def show_order(self, order_id: str) -> Document:
        """One order: its state, its run, its result or error.

        >>> client.show_order("01J0000000000000000000000A")["state"]
        """
        return self._transport.get(f"/orders/{quoted(order_id)}")

    def wait_for_order(self, order_id: str, *, patience: float, every: float = 1.0) -> Document:
        """Wait at most `patience` seconds until an order is over. Returns it as it is then.

        >>> client.wait_for_order(order["order_id"], patience=600)["result"]
        """
        deadline = time.monotonic() + patience
        while True:
            found = self.show_order(order_id)
            if found["finished_at"] is not None or time.monotonic() >= deadline:
                return found
            time.sleep(min(every, max(0.0, deadline - time.monotonic())))

    def cancel_order(self, order_id: str) -> bool:
        """Cancel an order; False if it is over.

        >>> client.cancel_order("01J0000000000000000000000A")
        """
        return bool(self._transport.post(f"/orders/{quoted(order_id)}/cancel")["requested"])

    def backfills(self) -> Iterator[Document]:
        """All backfills with their progress, highest priority first.

        >>> next(client.backfills())["done"]
        """
        return self._transport.all("/backfills", {"limit": 100})

    def backfill(self, backfill_id: str) -> Document:
        """One backfill with its progress and its failed partitions.

        >>> client.backfill("01J0000000000000000000000A")["failed"]
        """
        return self._transport.get(f"/backfills/{quoted(backfill_id)}")

    # --- tables, sources, history -------------------------------------------------------------------------------------

    def tables(self) -> list[Document]:
        """Every table with its fields and published schema versions.

        >>> [table["table"] for table in client.tables()]
        """
        items: list[Document] = self._transport.get("/tables")["items"]
        return items

    def rows(self, table: str, *, limit: int = 100, columns: Sequence[str] = (), **filters: Any) -> list[Document]:
        """The first rows of a table: customer, date, since, until, schema_version.

        >>> client.rows("demo.campaign_daily", limit=10)
        """
        asked = {**filters, "limit": limit, "column": list(columns)}
        items: list[Document] = self._transport.get(f"/tables/{quoted(table)}/rows", asked)["items"]
        return items

    def sources(self) -> list[Document]:
        """Every source with its breaker and request limits.

        >>> client.sources()[0]["breaker"]
        """
        items: list[Document] = self._transport.get("/sources")["items"]
        return items

    def ready(
        self,
        *tables: str,
        require: str | int = "all",
        explain: bool = False,
        date: date | str | None = None,
        since: date | str | None = None,
        until: date | str | None = None,
        customer: str | Sequence[str] = (),
    ) -> Document:
        """Whether the expected partitions of each day are published, as `penstock ready` decides; with `explain`, why
        not. A day names at most 100 absent partitions.

        >>> client.ready("demo.campaign_daily", date="2024-06-01", require="95%")["ready"]
        """
        asked = {"table": tables, "require": str(require), "explain": explain}
        days = {"date": date, "since": since, "until": until, "customer": customer}
        return self._transport.get("/ready", {**asked, **days})

    def late(self, *tables: str, date: date | str | None = None) -> list[Document]:
        """The tables with a deadline, or the named ones, beside it: what is missing by cause, and the expected time.

        >>> [day["punctuality"] for day in client.late("demo.campaign_daily")]
        """
        items: list[Document] = self._transport.get("/late", {"table": tables, "date": date})["items"]
        return items

    def audit(self) -> Iterator[Document]:
        """The audit log, newest first.

        >>> next(client.audit())["actor"]
        """
        return self._transport.all("/audit", {"limit": 1000})

    def events(self, *, after: int = 0, run: str | None = None, kind: str | None = None) -> Iterator[Document]:
        """The events after a position, in the order of the ledger.

        >>> [event["type"] for event in client.events(after=1000)]
        """
        return self._transport.all("/events", {"after": after, "run": run, "type": kind, "limit": 1000})

    # --- actions ------------------------------------------------------------------------------------------------------

    def preview(
        self,
        act: str,
        selection: Selection | None = None,
        *,
        reason: str | None = None,
        idempotency_key: str | None = None,
        **options: Any,
    ) -> Document:
        """Preview an action: the plan with its counts, refusals and token.

        >>> client.preview("pause", {"customers": ["1000000001"]}, reason="moved account")["total"]
        """
        body = {"act": act, "selection": selection_body(selection), "reason": reason, **options}
        return self._transport.post("/plans", body, idempotency_key)

    def plan(self, token: str) -> Document:
        """A plan, and its result if it is applied.

        >>> client.plan(plan["token"])["applied_at"]
        """
        return self._transport.get(f"/plans/{quoted(token)}")

    def apply(self, token: str, *, force: bool = False, idempotency_key: str | None = None) -> Document:
        """Apply a plan. `result` has the number of changes, and the partitions that changed since the preview.

        >>> client.apply(plan["token"])["result"]["affected"]
        """
        return self._transport.post(f"/plans/{quoted(token)}/apply", {"force": force}, idempotency_key)

    # --- access -------------------------------------------------------------------------------------------------------

    def session(self) -> Document:
        """The name and the role of the token.

        >>> client.session()["role"]
        """
        return self._transport.get("/session")

    def tokens(self) -> list[Document]:
        """Every token, without secrets; for admins.

        >>> [token["name"] for token in client.tokens()]
        """
        items: list[Document] = self._transport.get("/tokens")["items"]
        return items

    def create_token(self, name: str, role: str) -> str:
        """Create a token and return its text; for admins.

        >>> client.create_token("airflow", "operator")
        """
        return str(self._transport.post("/tokens", {"name": name, "role": role})["token"])

    def revoke_token(self, name: str) -> bool:
        """Revoke a token; False if it was revoked before. For admins.

        >>> client.revoke_token("airflow")
        """
        return bool(self._transport.send("DELETE", f"{API}/tokens/{quoted(name)}").json()["changed"])

    def is_ready(self) -> bool:
        """Whether the server and its database respond.

        >>> client.is_ready()
        """
        try:
            return bool(self._transport.send("GET", "/health/ready").json()["status"] == "ok")
        except PenstockError:
            return False

    def openapi(self) -> Document:
        """The OpenAPI document of the server.

        >>> client.openapi()["info"]["version"]
        """
        return self._transport.get("/openapi.json")
