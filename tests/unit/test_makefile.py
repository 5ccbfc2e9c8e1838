"""`make help` lists every target of the Makefile; every older version of Spark and every integration is tested and
locked."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_make_help_lists_every_target() -> None:
    phony = re.findall(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    targets = [target for line in phony for target in line.split()]
    done = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    listed = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert list(listed) == targets
    written = re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert sorted(written) == sorted(targets)


def test_every_older_version_of_spark_is_tested_and_locked() -> None:
    text = (ROOT / "Makefile").read_text()
    [tested] = re.findall(r"scripts/test-spark-versions \$\(or \$\(VERSIONS\),([\d. ]+)\)", text)
    [locked] = re.findall(r"for version in ([\d. ]+);", text)
    locks = sorted(path.name for path in (ROOT / "requirements").glob("spark-*.lock"))
    assert [f"spark-{version}.lock" for version in tested.split()] == locks
    assert locked.split() == tested.split()


def test_a_version_of_spark_without_a_lock_is_refused() -> None:
    done = subprocess.run(
        [ROOT / "scripts" / "test-spark-versions", "3.5"], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (2, "test-spark-versions: there is no requirements/spark-3.5.lock\n")


def test_every_integration_is_tested_and_locked() -> None:
    integrations = sorted(path.parent.name for path in (ROOT / "integrations").glob("*/pyproject.toml"))
    locks = sorted(path.name for path in (ROOT / "requirements").glob("integration-*.lock"))
    assert locks == [f"integration-{name}.lock" for name in integrations]
    written = re.findall(r"-o requirements/(integration-[\w-]+\.lock)", (ROOT / "Makefile").read_text())
    assert sorted(written) == locks
    command = ["make", "--no-print-directory", "--dry-run", "--assume-old=.venv/.dev", "test-integrations"]
    planned = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert planned.split("\n")[0].split(" -- ")[0] == " ".join(["scripts/test-integrations", *integrations])


def test_an_integration_without_a_lock_is_refused() -> None:
    done = subprocess.run(
        [ROOT / "scripts" / "test-integrations", "cron"], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (2, "test-integrations: there is no requirements/integration-cron.lock\n")
