"""The events of the log, with a sentence for each. The names are stable: scripts and alerts select lines by them."""

from __future__ import annotations

LOG_EVENTS: dict[str, str] = {
    # The command
    "command.failed": "The command ended with an error. `exit_code` 75 means that it may succeed later.",
    "command.broken": "The command ended with an unexpected error; `traceback` shows where.",
    "command.interrupted": "A signal ended the command.",
    "thread.broken": "A thread of the process ended with an unexpected error.",
    "note": "A message for the operator.",
    "library.message": "A warning or an error of a library; `logger` names it.",
    # The control loop
    "started": "The control loop started.",
    "stopping": "The control loop got a signal: it issues no more attempts and finishes the open work.",
    "stopped": "The control loop ended.",
    "round.finished": "A round of the control loop ended, with the counts of its run.",
    "round.failed": "A round failed, because the database, the storage or the cluster did not respond. It is repeated.",
    "order.executed": "An order of the API was executed; `state` tells how it ended.",
    "order.lost": "Another loop or an operator took the order while it was executed. Its end is recorded there.",
    "order.postponed": "An order failed with an error that may pass. It is executed again after `retry_in_seconds`.",
    "order.broken": "An order failed with an unexpected error; `traceback` shows where.",
    "heartbeat.missed": "A heartbeat of a worker could not be stored. Its leases expire 60 seconds after the last one.",
    "attempts.rescued": "Attempts of dead workers were closed, so that their partitions can be attempted again.",
    # Runs
    "run.started": "A run started; `partitions` counts its plan.",
    "run.finished": "A run ended, with its counts; `end` is done or cancelled.",
    "run.broken": "A run ended with an error. Its open attempts were cancelled.",
    "stage.finished": "One stage of a batch ended.",
    "attempts.rejected": "Attempts of one source were rejected with one class of error; `partition` is an example.",
    "attempts.cancelled": "Attempts of one source were closed without a verdict; `partition` is an example.",
    "loads.failed": "Accepted partitions could not be published; `partition` is an example.",
    "source.warned": "A source announced something that fails nothing yet, such as the end of its API.",
    "quota.not_settled": "Unused requests of a claim could not be returned. They are lost until the window renews.",
    "models.refused": "A model was left out of the round, because Spark refuses its code or its checks.",
    "models.stale_unknown": "Stale partitions of models are not derived again, because the projections are damaged.",
    "projections.behind": "Events could not be folded into the projections. The next command catches up.",
    "lineage.behind": "Lineage could not be sent. `penstock lineage emit RUN` sends it again.",
    "lineage.columns_unknown": "The lineage event of a model has no columns, because its SQL does not show them.",
    "lateness.history_lost": "Completion is expected without the history of lateness, because it cannot be read.",
    # Alerts
    "alert.fired": "An alert fired; `alert_id` is that of its notifications.",
    "alert.repeated": "A firing alert is sent again, as its rule asks.",
    "alert.recovered": "The condition of an alert has ended.",
    "alert.not_evaluated": "A rule could not be evaluated. Its alerts keep their state.",
    "alerts.failed": "An evaluation or a delivery of alerts failed. It is repeated at the next interval.",
    "notification.delivered": "A channel accepted a notification.",
    "notification.failed": "A channel did not accept a notification. It is sent again at `next_try`.",
    "notification.dropped": "A channel did not accept a notification for too long. It is not sent again.",
    # The server
    "serving": "The server accepts requests at `address`.",
    "request": "The server answered a request.",
    "request.failed": "A request failed, because something that the server needs does not respond.",
    "request.broken": "A request ended with an unexpected error.",
    "request.not_given_up": "A request could not be released for a repetition. The server tries it again.",
    "plan.not_released": "A plan could not be released for another application. This server can still apply it.",
    "metrics.incomplete": "Metrics of the status board are missing, because the projections cannot be read.",
    "sql.broken": "The process that executed a statement of the SQL box ended with an error.",
}
