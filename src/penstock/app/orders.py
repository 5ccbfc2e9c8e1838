"""Orders: work that needs Spark. The API stores them, and a control loop executes each exactly once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, assert_never

from penstock.app.context import Context, audit_entry
from penstock.control.action_kinds import expand
from penstock.control.rescue import end_cancelled
from penstock.control.select import Selection
from penstock.errors import ActRefused, LeaseLost, PenstockError, TransientError, UsageError
from penstock.expected import ExpectedRange
from penstock.failpoint import reach
from penstock.ledger.events import RunCancelRequested, RunFinished
from penstock.lifecycle import MAX_LOSSES
from penstock.partition import RunId, new_ulid, run_id
from penstock.partition_set import CompactRanges
from penstock.pipeline.job_errors import ClusterUnfit
from penstock.plural import counted
from penstock.redaction import SECRETS
from penstock.state.audited import AuditedAct, refuse_blank
from penstock.state.orders import Order, OrderKind, OrderState, refuse_other_fields

if TYPE_CHECKING:
    from penstock.app.maintenance import MaintenanceService
    from penstock.app.rechecks import RecheckService
    from penstock.app.runs import RunService
    from penstock.flow.listener import ProgressListener
    from penstock.flow.summary import RunSummary

log = logging.getLogger(__name__)

MAX_FAILURES = 10  # errors that may pass before an order fails: about a quarter of an hour, by the pauses between
_LONGEST_PAUSE = 300.0


def pause_after(failures: int) -> timedelta:
    """The pause of an order whose work failed so often. Other orders, and the rounds of the loop, do not wait."""
    return timedelta(seconds=min(_LONGEST_PAUSE, 2.0 ** min(failures, 10)))


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The result of the runs of an order."""

    result: Mapping[str, Any]
    is_stopped: bool = False  # further runs are left because the process stops

    @property
    def is_cancelled(self) -> bool:
        return bool(self.result["end"] == "cancelled")


class OrderService:
    """Stores orders, and executes them in the process of a control loop.

    A run of an order starts in the transaction that records it in the order, under the claim of one worker. If the
    worker dies, the next loop continues that run and starts no second one. The other kinds of work change nothing when
    they are repeated.
    """

    def __init__(
        self, context: Context, runs: RunService, rechecks: RecheckService, maintenance: MaintenanceService
    ) -> None:
        self._context = context
        self._runs = runs
        self._rechecks = rechecks
        self._maintenance = maintenance

    def create(
        self,
        kind: OrderKind | str,
        selection: Selection | None = None,
        options: Mapping[str, Any] | None = None,
        *,
        reason: str | None = None,
        actor: str | None = None,
        order_id: str | None = None,
        partitions: CompactRanges | None = None,
    ) -> Order:
        """Store an order. A repeated call with the same `order_id` stores nothing and returns the first order. The work
        is limited to the selected partitions that are also in `partitions`, if given. Audited. Raises UsageError for
        unknown names, and for a selection or options that the kind does not take.

        >>> ws.orders.create("run", Selection(since="2024-06-01"), {"reprocess": True}, actor="kim").order_id
        """
        refuse_blank(reason)
        chosen, wanted, what = selection or Selection(), dict(options or {}), OrderKind(kind)
        refuse_other_fields(what, chosen.as_dict(), wanted)
        self._refuse_unknown(what, chosen, wanted)
        noted = {"kind": what.value, **wanted, **({"reason": reason} if reason else {})}
        entry = audit_entry(actor, AuditedAct.ORDERS_CREATE, chosen.as_dict(), noted)
        order = Order(
            order_id or new_ulid(),
            what,
            chosen.as_dict(),
            wanted,
            reason,
            entry.actor,
            OrderState.QUEUED,
            self._context.now(),
            partitions=partitions,
        )
        return self._context.orders.create(order, entry)

    def get(self, order_id: str) -> Order:
        """One order. Raises UsageError for an unknown id.

        >>> ws.orders.get("01J0000000000000000000000A").state
        """
        return self._context.orders.get(order_id)

    def page(self, limit: int, before: str | None = None) -> tuple[list[Order], int]:
        """The newest orders, or those older than one; and the number of all orders.

        >>> ws.orders.page(20)
        """
        return self._context.orders.page(limit, before)

    def unfinished(self, limit: int) -> list[Order]:
        """The newest orders that are not finished.

        >>> ws.orders.unfinished(5)
        """
        return self._context.orders.unfinished(limit)

    def cancel(self, order_id: str, *, actor: str | None = None) -> bool:
        """Cancel an order. While a run of it is in progress, the run is cancelled, and the order ends with the run;
        otherwise the order ends at once, and no further run of it starts. Returns False if the order is over. Raises
        ActRefused for other work that has begun. Audited.

        >>> ws.orders.cancel("01J0000000000000000000000A", actor="kim")
        """
        entry = audit_entry(actor, AuditedAct.ORDERS_CANCEL, {"order_id": order_id})
        while True:
            found = self.get(order_id)
            if found.finished_at is None and found.run_id is not None:
                requested = self._runs.cancel(RunId(found.run_id), actor=actor)
                row = self._context.state.run(RunId(found.run_id))
                if requested and row is not None and row.finished_at is None:
                    return True
            try:
                return self._context.orders.cancel(order_id, entry)
            except ActRefused:
                if self.get(order_id).run_id == found.run_id:
                    raise  # else its next run has started meanwhile

    def warning(self, order: Order) -> str | None:
        """Why an unfinished order makes no progress: no control loop is alive, or its work failed and is tried again
        later. None if neither is the case.

        >>> ws.orders.warning(ws.orders.get("01J0000000000000000000000A"))
        """
        return None if order.finished_at is not None else self.loop_warning() or pause_message(order)

    def loop_warning(self) -> str | None:
        """Why no order is executed now: no control loop is alive. None if one is.

        >>> ws.orders.loop_warning()
        """
        alive, at = self._context.orders.last_loop()
        if alive:
            return None
        since = "was ever started" if at is None else f"has been alive since {at:%Y-%m-%d %H:%M:%S} UTC"
        return f"no control loop {since}: start `penstock control serve`"

    def is_waiting(self, worker_token: str) -> bool:
        """Whether there is an order that this worker can take.

        >>> ws.orders.is_waiting(worker_token)
        """
        return self._context.orders.is_waiting(worker_token)

    def execute_next(
        self,
        worker_token: str,
        listener: ProgressListener | None = None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> Order | None:
        """Take the oldest order that no live worker holds, and execute it. Returns the order with its end; None if
        there is none. An error of the work is not raised: it ends the order as failed. After an error that may pass
        (the lake or the cluster does not respond, a lease was lost), the order returns to the queue with a pause, so
        that the orders behind it are next; it fails after a number of them. Raises DatabaseUnavailable if that cannot
        be recorded either: then this worker takes the order again.

        >>> ws.orders.execute_next(worker_token)
        """
        orders = self._context.orders
        self._context.workers.mark_dead_workers()
        order = orders.claim(worker_token)
        if order is None:
            return None
        reach("order.claimed")
        try:
            self._execute(order, listener, stopping)
        except (TransientError, ClusterUnfit) as error:
            self._postpone(order, error)
        except PenstockError as error:
            orders.finish(order.claim, OrderState.FAILED, error=SECRETS.hide(str(error)))
        except Exception as error:  # one faulty order must not end the loop
            log.exception("order.broken", extra={"facts": {"order_id": order.order_id, "error": str(error)}})
            message = (
                f"internal error: {type(error).__name__}; the log of the control loop has the details:"
                f" order.broken with order_id {order.order_id}"
            )
            orders.finish(order.claim, OrderState.FAILED, error=message)
        return orders.get(order.order_id)

    def _postpone(self, order: Order, error: PenstockError) -> None:
        """Return the order to the queue after an error that may pass, or end it after too many of them. Changes nothing
        if this worker does not hold the order any more: another loop has it, or it was cancelled."""
        orders, failures = self._context.orders, order.failures + 1
        facts: dict[str, Any] = {"order_id": order.order_id, "error": str(error)}
        if failures < MAX_FAILURES:
            pause = pause_after(failures)
            is_mine = orders.put_back(order.claim, pause)
            facts |= {"failures": failures, "retry_in_seconds": pause.total_seconds()} if is_mine else {}
        else:
            message = f"the work failed {MAX_FAILURES} times; the last error: {SECRETS.hide(str(error))}"
            is_mine = orders.finish(order.claim, OrderState.FAILED, error=message)
        if not is_mine:
            log.warning("order.lost", extra={"facts": facts})
        elif failures < MAX_FAILURES:
            log.warning("order.postponed", extra={"facts": facts})

    def _execute(self, order: Order, listener: ProgressListener | None, stopping: Callable[[], bool]) -> None:
        orders = self._context.orders
        if order.claims > MAX_LOSSES:
            message = f"the control loop was lost {MAX_LOSSES} times in a row while it executed this order"
            orders.finish(order.claim, OrderState.FAILED, error=message)
            return
        if order.kind in (OrderKind.RUN, OrderKind.RESUME):
            self._execute_run(order, listener, stopping)
            return
        self._begin(order)
        result = self._result(order, listener)
        reach("order.executed")
        orders.finish(order.claim, OrderState.SUCCEEDED, result=result)

    def _begin(self, order: Order, run: RunId | None = None) -> None:
        if not self._context.orders.begin(order.claim, run):
            raise LeaseLost(f"order {order.order_id} was cancelled, or taken over by another control loop")

    def _result(self, order: Order, listener: ProgressListener | None) -> Mapping[str, Any]:
        """Execute an order that is no run. Repeating it changes nothing further."""
        selection, actor = Selection.from_dict(order.selection), order.actor
        match order.kind:
            case OrderKind.VALIDATE:
                checked = self._rechecks.run(selection, listener=listener, actor=actor, within=_within(order))
                return {
                    "examined": checked.examined,
                    "demoted": [str(key) for key in checked.demoted],
                    "unreadable": [str(key) for key in checked.unreadable],
                }
            case OrderKind.RECONCILE:
                published = self._maintenance.reconcile(actor=actor)
                return {"loaded": published.loaded, "hidden": published.hidden}
            case OrderKind.COMPACT:
                names = [head.name for _, head in self._maintenance.tables(order.options.get("tables", ()))]
                done = self._maintenance.compact(names, actor=actor) if names else []
                return {"tables": [{"table": d.table, "files_before": d.before, "files_after": d.after} for d in done]}
            case OrderKind.RUN | OrderKind.RESUME:
                raise AssertionError("a run is executed by _execute_run")
            case kind:
                assert_never(kind)

    def _execute_run(self, order: Order, listener: ProgressListener | None, stopping: Callable[[], bool]) -> None:
        """Start or resume the run of an order, or continue the run that an earlier claim started or resumed."""
        orders, claim = self._context.orders, order.claim
        if order.run_id is not None:
            outcome = self._continue(RunId(order.run_id), order, listener, stopping)
        elif order.kind is OrderKind.RESUME:
            run = run_id(order.options["run_id"])
            self._begin(order, run)
            outcome = self._resume(run, order, listener, stopping)
        else:
            selection, reprocess = Selection.from_dict(order.selection), bool(order.options.get("reprocess"))
            summary = self._runs.start(
                selection,
                listener=listener,
                reprocess=reprocess,
                actor=order.actor,
                order=claim,
                stopping=stopping,
                within=_within(order),
            )
            outcome = _outcome(summary)
        reach("order.executed")
        if outcome.is_cancelled:
            orders.finish(claim, OrderState.CANCELLED, result=outcome.result)
        elif outcome.is_stopped or (stopping() and self._is_left(orders.get(order.order_id))):
            orders.release(claim)  # the process stops: the next loop does the rest
        else:
            orders.finish(claim, OrderState.SUCCEEDED, result=outcome.result)

    def _resume(
        self, run: RunId, order: Order, listener: ProgressListener | None, stopping: Callable[[], bool]
    ) -> _Outcome:
        return _outcome(
            self._runs.resume(run, listener=listener, actor=order.actor, order=order.claim, stopping=stopping)
        )

    def _is_left(self, order: Order) -> bool:
        """Whether the run of an order left partitions."""
        return order.run_id is not None and bool(self._runs.left_of(RunId(order.run_id)))

    def _continue(
        self, run: RunId, order: Order, listener: ProgressListener | None, stopping: Callable[[], bool]
    ) -> _Outcome:
        """Finish the run that an earlier claim of the order began. Starts another run only for the partitions that
        the run left, and for the rest of a plan that is divided into several runs."""
        row = self._context.state.run(run)
        filters = self._context.run_filters(run)
        if self._is_cancelled(run):
            end_cancelled(self._context.workers, self._context.control, run)
            return self._recorded(run)
        if row is not None and (row.finished_at is None or self._runs.left_of(run)):
            outcome = self._resume(run, order, listener, stopping)
        else:
            outcome = self._recorded(run)
        is_whole = order.kind is OrderKind.RESUME or not filters.get("is_divided")
        if is_whole or outcome.is_cancelled or outcome.is_stopped:
            return outcome
        if stopping():
            return replace(outcome, is_stopped=True)
        return self._do_rest(order, outcome, listener, stopping)

    def _do_rest(
        self, order: Order, before: _Outcome, listener: ProgressListener | None, stopping: Callable[[], bool]
    ) -> _Outcome:
        """Start the further runs of a divided order. Partitions that were reprocessed since the order was created are
        not due again. Returns the outcome of the earlier runs if nothing is left."""
        reprocess = bool(order.options.get("reprocess"))
        summary = self._runs.start(
            Selection.from_dict(order.selection),
            listener=listener,
            reprocess=reprocess,
            actor=order.actor,
            order=order.claim,
            stopping=stopping,
            unless_judged_since=order.created_at if reprocess else None,
            within=_within(order),
        )
        return before if summary.end == "done" and not summary.planned else _outcome(summary)

    def _is_cancelled(self, run: RunId) -> bool:
        """Whether an operator cancelled the run, also after its end."""
        return any(fact.type == RunCancelRequested.type for fact in self._context.ledger.of_run(run))

    def _recorded(self, run: RunId) -> _Outcome:
        """The outcome of a finished run, from the ledger. The ledger has the end `cancelled` also for a run that a
        signal interrupted; such a run is broken, because no operator cancelled it."""
        ended = [fact for fact in self._context.ledger.of_run(run) if fact.type == RunFinished.type]
        payload: Mapping[str, Any] = ended[-1].payload if ended else {}
        end = payload.get("end", "done")
        if self._is_cancelled(run):
            end = "cancelled"
        elif end == "cancelled":
            end = "broken"
        return _Outcome({"run_id": run, "end": end, "counts": dict(payload.get("counts", {}))})

    def _refuse_unknown(self, kind: OrderKind, selection: Selection, options: Mapping[str, Any]) -> None:
        """Raise UsageError for names that the workspace does not have, before the order is stored."""
        match kind:
            case OrderKind.RUN | OrderKind.VALIDATE:
                self._context.ranges(selection)
            case OrderKind.COMPACT:
                self._context.require_tables(options.get("tables", ()))
            case OrderKind.RESUME:
                if "run_id" not in options:
                    raise UsageError("name the run to resume: run_id")
                self._context.run_filters(run_id(options["run_id"]))
            case OrderKind.RECONCILE:
                pass
            case other:
                assert_never(other)


def _within(order: Order) -> list[ExpectedRange] | None:
    """The partitions to which the work of an order is limited; None without a limit besides its selection."""
    return None if order.partitions is None else expand(order.partitions)


def pause_message(order: Order) -> str | None:
    """Why an order waits although a control loop is alive: its work failed. None if it does not wait for that."""
    if order.finished_at is not None or order.retry_at is None:
        return None
    return (
        f"its work failed {counted(order.failures, 'time')} with an error that may pass, and is tried again after"
        f" {order.retry_at:%Y-%m-%d %H:%M:%S} UTC: the log of the control loop has the error (order.postponed)"
    )


def _outcome(summary: RunSummary) -> _Outcome:
    result = {
        "run_id": summary.run_id,
        "end": summary.end,
        "counts": summary.counts(),
        "problems": list(summary.problems),
    }
    return _Outcome(result, summary.is_stopped)
