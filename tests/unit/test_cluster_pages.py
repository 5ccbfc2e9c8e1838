"""The pages about clusters: their YAML is valid, their workspace files load, and Spark knows every setting."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pyspark
import pytest
import yaml

from penstock.config.loading import load_settings
from penstock.config.settings import SparkSettings
from penstock.source.registry import hooks_of
from support.doc_blocks import HOWTO, blocks, files

PAGES = [HOWTO / "kubernetes.md", HOWTO / "yarn.md"]
JARS = Path(pyspark.__file__).parent / "jars"
_SETTING = re.compile(r"(?<![\w-])spark(?:\.[A-Za-z0-9_-]+)+")
_OURS = {f"spark.{name}" for name in SparkSettings.model_fields}  # keys of penstock.yaml
_CLIENT = {"spark.kubernetes.authenticate.executor": "serviceAccountName"}  # composed of a prefix and a name

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


@pages
def test_every_yaml_block_parses(page: Path) -> None:
    found = [document for block in blocks(page, "yaml") for document in yaml.safe_load_all(block)]
    assert len(found) >= 2
    assert all(isinstance(document, dict) for document in found)


def test_every_kubernetes_object_has_a_name_and_one_namespace() -> None:
    objects = list(yaml.safe_load_all(files(HOWTO / "kubernetes.md")["kubernetes.yaml"]))
    assert {each["kind"] for each in objects} == {"ServiceAccount", "Role", "RoleBinding", "Service", "Deployment"}
    assert all(each["apiVersion"] and each["metadata"]["name"] for each in objects)
    assert {each["metadata"]["namespace"] for each in objects} == {"penstock"}
    by_kind = {each["kind"]: each for each in objects}
    deployment, service = by_kind["Deployment"]["spec"], by_kind["Service"]
    [container] = deployment["template"]["spec"]["containers"]
    config = yaml.safe_load(files(HOWTO / "kubernetes.md")["penstock.yaml"])["spark"]["config"]
    assert deployment["template"]["metadata"]["labels"] == service["spec"]["selector"]
    ports = {str(port["port"]) for port in service["spec"]["ports"]}
    assert ports == {config["spark.driver.port"], config["spark.driver.blockManager.port"]}
    assert config["spark.driver.host"] == f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc"
    assert config["spark.kubernetes.container.image"] == container["image"]
    accounts = {each["metadata"]["name"] for each in objects if each["kind"] == "ServiceAccount"}
    executor = config["spark.kubernetes.authenticate.executor.serviceAccountName"]
    assert accounts == {executor, deployment["template"]["spec"]["serviceAccountName"]}
    assert "POD_NAME" in {variable["name"] for variable in container["env"]}


@pages
def test_the_workspace_file_loads(page: Path, tmp_path: Path) -> None:
    (tmp_path / "penstock.yaml").write_text(files(page)["penstock.yaml"])
    settings = load_settings(tmp_path, {"POD_NAME": "penstock-0"}, hooks_of)
    assert settings.spark.master.startswith(("k8s://", "yarn"))
    assert settings.state.url.startswith("postgresql")
    assert settings.lake.startswith("s3://")


@pytest.fixture(scope="module")
def known() -> set[str]:
    """Every name that begins with `spark.` in the classes of Spark."""
    found: set[bytes] = set()
    for jar in sorted(JARS.glob("spark-*.jar")):
        if re.match(r"spark-(core|kubernetes|yarn|network-common|common-utils|launcher|catalyst|sql-api)_", jar.name):
            with zipfile.ZipFile(jar) as archive:
                for name in archive.namelist():
                    if name.endswith(".class"):
                        found.update(re.findall(rb"spark(?:\.[A-Za-z0-9_-]+)+\.?", archive.read(name)))
    return {name.decode() for name in found}


@pages
def test_spark_knows_every_setting_of_the_page(page: Path, known: set[str]) -> None:
    named = set(_SETTING.findall(page.read_text())) - _OURS
    assert len(named) >= 15
    assert sorted(name for name in named if not _is_known(name, known)) == []


def test_a_misspelt_setting_is_found(known: set[str]) -> None:
    assert _is_known("spark.kubernetes.namespace", known)
    assert not _is_known("spark.kubernetes.name-space", known)
    assert not _is_known("spark.yarn.queues", known)


def _is_known(name: str, known: set[str]) -> bool:
    if name in known or f"{name}." in known:
        return True
    prefix, _, last = name.rpartition(".")
    if _CLIENT.get(prefix) == last:
        return prefix in known
    parts = name.split(".")
    return any(".".join(parts[:length]) + "." in known for length in range(2, len(parts)))


def test_the_cluster_managers_of_both_pages_are_in_the_package() -> None:
    service = "META-INF/services/org.apache.spark.scheduler.ExternalClusterManager"
    managers = set()
    for jar in [*JARS.glob("spark-kubernetes_*.jar"), *JARS.glob("spark-yarn_*.jar")]:
        with zipfile.ZipFile(jar) as archive:
            name = archive.read(service).decode().split()[-1]
            assert f"{name.replace('.', '/')}.class" in archive.namelist()
            managers.add(name.rpartition(".")[2])
    assert managers == {"KubernetesClusterManager", "YarnClusterManager"}
