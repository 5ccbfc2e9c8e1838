"""A session that is ready for work: configured, with our package on its executors, and probed once."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, WeakSet

from penstock.config.settings import Settings, SparkSettings, is_local_master
from penstock.pipeline.connect import prepare_connect_session
from penstock.pipeline.executor_probe import Probe, probe_executors, require_fit
from penstock.pipeline.session import is_started_here, start_session
from penstock.pipeline.session_config import RESULTS
from penstock.pipeline.spark_jobs import forget_parallelism, is_local
from penstock.pipeline.spark_versions import has_connect_new_session, require_supported_session
from penstock.pipeline.worker_code import package_zip

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MOST_TASKS = 256  # of a probe before a run; `doctor --cluster` has no limit

_ADOPTED: WeakKeyDictionary[SparkSession, SparkSession] = WeakKeyDictionary()  # by the caller's session
_OURS: WeakSet[SparkSession] = WeakSet()  # the values of _ADOPTED
_PROBED: WeakKeyDictionary[SparkSession, list[Probe]] = WeakKeyDictionary()


def ready_session(settings: Settings, given: SparkSession | None = None, probe: Probe | None = None) -> SparkSession:
    """Return the session that the workspace file describes, or one on the cluster of `given`. The executors of a
    cluster are probed before the first work of a session: raises ClusterUnfit if they cannot do it."""
    session = start_session(settings.spark) if given is None else _adopted(given)
    if is_local(session):
        return session
    forget_parallelism(session)
    wanted, done = probe or Probe.of(settings), _PROBED.setdefault(session, [])
    if not any(one.covers(wanted) for one in done):
        require_fit(probe_executors(session, wanted, _MOST_TASKS), _where(session, settings.spark))
        done.append(wanted)
    return session


def _adopted(given: SparkSession) -> SparkSession:
    """Return a session with our settings on the cluster of a session that somebody else started. A Connect session
    before Spark 4.3 cannot be divided: it gets our settings itself."""
    if is_started_here(given) or given in _OURS:
        return given
    if (known := _ADOPTED.get(given)) is not None:
        return known
    require_supported_session(given)
    context = getattr(given, "_sc", None)
    if context is None:
        session = given.newSession() if has_connect_new_session() else given
        prepare_connect_session(session, SparkSettings(remote="local"))
    else:
        session = given.newSession()
        if not is_local_master(context.master):
            context.addPyFile(package_zip())
        for name, value in RESULTS.items():
            session.conf.set(name, value)
    _ADOPTED[given] = session
    _OURS.add(session)
    return session


def _where(session: SparkSession, settings: SparkSettings) -> str:
    context = getattr(session, "_sc", None)
    if context is not None:
        return str(context.master)
    return settings.where if settings.remote else "the Spark Connect server"
