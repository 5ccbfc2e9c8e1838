"""Servers and the Spark session: started once, and only for tests that need them."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import boto3
import hypothesis
import pytest

import penstock.source.google_ads  # noqa: F401 - sets up gRPC, before any test loads it
from support import made_workspaces, servers

# Commands print without a terminal's width in any environment; a test about a width sets it.
os.environ.pop("COLUMNS", None)

# Commands use a cache of this session, not that of the user.
os.environ["PENSTOCK_CACHE"] = tempfile.mkdtemp(prefix="penstock-cache-")
atexit.register(shutil.rmtree, os.environ["PENSTOCK_CACHE"], ignore_errors=True)

# How long something takes proves nothing: the machine may be busy.
hypothesis.settings.register_profile("house", deadline=None)
hypothesis.settings.load_profile("house")


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    with servers.postgres() as url:
        yield url


@pytest.fixture(scope="session")
def s3_url() -> Iterator[str]:
    """A prefix of its own in a fresh bucket; the environment of the session points at the server."""
    with servers.s3() as endpoint, pytest.MonkeyPatch.context() as patch:
        for name, value in servers.s3_environment(endpoint).items():
            patch.setenv(name, value)
        boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1").create_bucket(Bucket="penstock-tests")
        yield f"s3://penstock-tests/{uuid4().hex}"


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """One small local session for all tests, configured as for a run."""
    from penstock.config.settings import SparkSettings
    from penstock.pipeline.session import start_session

    session = start_session(SparkSettings(master="local[2]", config={"spark.sql.shuffle.partitions": "2"}))
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def loads_by_workers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Load on Spark's workers, however little there is to load, unless a test sets it otherwise."""
    if request.path.parent.name == "spark":
        from penstock.pipeline import load

        monkeypatch.setattr(load, "_LOCAL_BYTES", -1)


_CHECKED = ("crash", "acceptance", "cluster")  # the tiers whose tests end with the independent checker


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Every workspace that a passed test of these tiers leaves is checked: a violation fails the test."""
    own: Path | None = getattr(item, "funcargs", {}).get("tmp_path")
    try:
        result = yield
        if item.path.parent.name in _CHECKED:
            if own is not None and item.get_closest_marker("damages_workspace"):
                made_workspaces.forget(own)
            elif own is not None:
                made_workspaces.remember_below(own)
            if found := made_workspaces.violations(own):
                pytest.fail("the checker found violations:\n" + "\n".join(found))
    finally:
        if own is not None:
            made_workspaces.forget(own)
    return result


@pytest.fixture(autouse=True, scope="module")
def projections_of_shared_workspaces(request: pytest.FixtureRequest) -> Iterator[None]:
    """The workspaces that the tests of one module share are compared with a rebuild when the last test is over."""
    made_workspaces.forget()
    yield
    if request.path.parent.name in _CHECKED and (found := made_workspaces.all_projection_violations()):
        pytest.fail("the checker found violations:\n" + "\n".join(found))
