"""The workspace file of the Kubernetes page makes Spark ask for the executor pods that the page promises."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from support.doc_blocks import HOWTO, files
from support.kubernetes_api import KubernetesApi, kubernetes_api

_START = """
import json, sys
from pyspark.sql import SparkSession

builder = SparkSession.builder.appName("penstock").master(sys.argv[1])
for name, value in json.loads(sys.argv[2]).items():
    builder = builder.config(name, value)
builder.getOrCreate()
"""


def test_the_executor_pods_are_as_the_page_describes(tmp_path: Path) -> None:
    written = files(HOWTO / "kubernetes.md")
    (tmp_path / "executor.yaml").write_text(written["executor.yaml"])
    settings = yaml.safe_load(written["penstock.yaml"].replace("${POD_NAME}", "penstock-0"))["spark"]
    config = settings["config"] | {
        "spark.kubernetes.executor.podTemplateFile": str(tmp_path / "executor.yaml"),
        "spark.driver.port": "0",  # two tests may run at the same time
        "spark.driver.blockManager.port": "0",
        "spark.driver.memory": "512m",
        "spark.dynamicAllocation.minExecutors": "1",  # a pod without a job
    }
    with kubernetes_api() as server:
        pod = _first_pod(server, config, tmp_path)

    [owner] = pod["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Pod", "penstock-0", "driver-uid")
    assert pod["metadata"]["labels"]["app"] == "penstock-executor"
    spec = pod["spec"]
    assert spec["serviceAccountName"] == "penstock-executor"
    assert spec["securityContext"] == {"runAsNonRoot": True, "runAsUser": 1000, "fsGroup": 0}
    [container] = spec["containers"]
    assert container["image"] == config["spark.kubernetes.container.image"]
    assert container["args"] == ["executor"]
    assert container["resources"]["requests"] == {"cpu": "1800m", "memory": "4096Mi"}
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    variables = {variable["name"]: variable.get("value") for variable in container["env"]}
    driver = str(variables["SPARK_DRIVER_URL"])
    assert driver.startswith(f"spark://CoarseGrainedScheduler@{config['spark.driver.host']}:")
    assert (variables["AWS_REGION"], variables["SPARK_LOCAL_DIRS"]) == ("eu-central-1", "/scratch")
    scratch = next(volume for volume in spec["volumes"] if volume["name"] == "spark-local-dir-1")
    assert scratch["emptyDir"]["sizeLimit"] == "20Gi"


def _first_pod(server: KubernetesApi, config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Start a driver in a process of its own, and end it when it has asked for a pod."""
    command = [sys.executable, "-c", _START, server.master, json.dumps(config)]
    with open(folder / "log", "w+b") as log:
        driver = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, cwd=folder)
        try:
            deadline = time.monotonic() + 120
            while driver.poll() is None and time.monotonic() < deadline:
                try:
                    return server.pods.get(timeout=0.2)
                except queue.Empty:
                    continue
            log.seek(0)
            raise AssertionError(f"no pod was requested:\n{log.read().decode(errors='replace')}")
        finally:
            os.killpg(driver.pid, 9)  # the session of this process: the driver and its JVM
            driver.wait()
