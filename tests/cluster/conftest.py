"""A real cluster, PostgreSQL and S3 for the tests of this folder: started once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import boto3
import pytest

from support import servers
from support.cluster import standalone
from support.cluster_site import BUCKET, Run, Site, tables


@pytest.fixture(scope="session")
def site(postgres_url: str) -> Iterator[Site]:
    with servers.s3(host="0.0.0.0") as local:
        port = local.rpartition(":")[2]
        environment = servers.s3_environment(local)
        with standalone(environment={**environment, "AWS_ENDPOINT_URL": f"http://{{driver}}:{port}"}) as cluster:
            endpoint = f"http://{cluster.driver}:{port}"
            client = boto3.client(
                "s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b"
            )
            client.create_bucket(Bucket=BUCKET)
            yield Site(cluster, postgres_url, endpoint)


@pytest.fixture(autouse=True)
def reach_the_lake(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of a test and the checker after it use the S3 server of the site."""
    for name, value in site.environment().items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="session")
def undisturbed(site: Site, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The tables of the same workspace on local Spark."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in site.environment().items():
            patch.setenv(name, value)
        folder = site.workspace(tmp_path_factory.mktemp("local"), {"master": "local[2]"})
        Run(folder).finished(code=1)
        found = tables(folder)
    assert len(found["rows"]["demo.campaign_daily"]) == 299 * 5
    assert len(found["rows"]["models.total"]) == 10
    return found
