"""The configuration of a session by its master: what suits one host applies to a local master only."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from penstock.config.settings import SparkSettings, is_local_master
from penstock.errors import ConfigError, TransientError
from penstock.pipeline.session_config import (
    RESULTS,
    driver_address,
    environment_archive,
    executor_python,
    masters,
    require_master,
    session_config,
)

CLUSTERS = ("spark://host:7077", "yarn", "k8s://https://host:6443", "local-cluster[2,1,1024]")


@pytest.mark.parametrize("master", ["local", "local[*]", "local[4]", "local[4,2]"])
def test_a_local_master_gets_what_suits_one_host(master: str) -> None:
    settings = SparkSettings(master=master)
    config = session_config(settings, "-XX:SharedArchiveFile=a")
    assert is_local_master(master)
    assert RESULTS.items() <= config.items()
    assert config["spark.sql.shuffle.partitions"] == "4"
    assert config["spark.sql.adaptive.enabled"] == "false"
    assert config["spark.python.daemon.module"] == "penstock.pipeline.daemon"
    assert "-XX:SharedArchiveFile=a" in config["spark.driver.extraJavaOptions"]
    assert "spark.submit.pyFiles" not in config
    assert executor_python(settings, {"PYSPARK_PYTHON": "/other/python"}) == sys.executable
    assert driver_address(settings) == "127.0.0.1"


@pytest.mark.parametrize("master", CLUSTERS)
def test_on_a_cluster_its_own_configuration_applies(master: str) -> None:
    config = session_config(SparkSettings(master=master), "-XX:SharedArchiveFile=a")
    assert not is_local_master(master)
    ours = {"spark.ui.showConsoleProgress", "spark.log.level", "spark.submit.pyFiles", "spark.penstock.executorTimeout"}
    assert set(config) == RESULTS.keys() | ours | {"spark.shuffle.reduceLocality.enabled"}
    assert config["spark.shuffle.reduceLocality.enabled"] == "false"
    assert config["spark.submit.pyFiles"].endswith("/penstock.zip")
    assert config["spark.penstock.executorTimeout"] == "120.0"


def test_lists_of_the_user_are_kept_beside_ours(tmp_path: Path) -> None:
    archive = tmp_path / "env.tar.gz"
    archive.touch()
    written = {"spark.submit.pyFiles": "/a.py,/b.zip", "spark.archives": "/c.zip#c", "spark.executor.memory": "8g"}
    config = session_config(SparkSettings(master="yarn", environment=str(archive), config=written))
    assert config["spark.submit.pyFiles"].split(",")[:2] == ["/a.py", "/b.zip"]
    assert config["spark.submit.pyFiles"].split(",")[2].endswith("/penstock.zip")
    assert config["spark.archives"] == f"/c.zip#c,{archive}#environment"
    assert config["spark.executor.memory"] == "8g"


def test_the_interpreter_of_executors_is_the_configured_one_or_that_of_the_cluster(tmp_path: Path) -> None:
    inherited = {"PYSPARK_PYTHON": "/site/python"}
    by_spark = SparkSettings(master="yarn", config={"spark.pyspark.python": "/conf/python"})
    assert executor_python(SparkSettings(master="yarn", python="/ours/python"), inherited) == "/ours/python"
    assert executor_python(SparkSettings(master="yarn", environment="/a.tgz"), inherited) == "./environment/bin/python"
    assert executor_python(by_spark, inherited) == "/conf/python"
    assert executor_python(SparkSettings(master="yarn"), inherited) == "/site/python"
    assert executor_python(SparkSettings(master="yarn"), {}) == "python3"


def test_an_environment_that_does_not_exist_is_an_error_that_says_how_to_pack_it(tmp_path: Path) -> None:
    missing = SparkSettings(master="yarn", environment=str(tmp_path / "env.tar.gz"))
    with pytest.raises(ConfigError, match=r"there is no file .*env\.tar\.gz: pack it with `venv-pack -o "):
        environment_archive(missing)
    remote = SparkSettings(master="yarn", environment="hdfs:///env.tar.gz")
    assert environment_archive(remote) == ["hdfs:///env.tar.gz#environment"]


def test_masters_are_read_from_the_address() -> None:
    assert masters("spark://one:7077,two:7078") == [("one", 7077), ("two", 7078)]
    assert masters("yarn") == masters("local[2]") == []
    with pytest.raises(ConfigError, match="write spark://host:7077"):
        masters("spark://host")


def test_a_driver_never_offers_a_loopback_address_to_a_cluster() -> None:
    assert driver_address(SparkSettings(master="spark://127.0.0.1:7077")) is None
    assert driver_address(SparkSettings(master="yarn")) is None


def test_a_master_that_does_not_answer_is_named_before_spark_starts() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        with pytest.raises(TransientError, match=f"no Spark master answers at spark://127.0.0.1:{port} .*refused"):
            require_master(SparkSettings(master=f"spark://127.0.0.1:{port}"))
        listener.listen()
        require_master(SparkSettings(master=f"spark://127.0.0.1:1,127.0.0.1:{port}"))
    require_master(SparkSettings(master="yarn"))
