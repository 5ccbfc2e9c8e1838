"""The class data sharing archive of Spark's JVM."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.config.settings import SparkSettings
from penstock.errors import ConfigError, PenstockError
from penstock.pipeline.class_data_sharing import ClassArchive, class_archive
from penstock.pipeline.session_config import JVM_OPTIONS, session_config

JAVA = 'openjdk version "17.0.1"\nOpenJDK 64-Bit Server VM (mixed mode, sharing)'


def ended(code: int, *written: Path) -> subprocess.Popen[bytes]:
    """A process that ends as a JVM does when its standard input is closed, after it wrote its classes."""
    script = "".join(f"open({str(path)!r}, 'w').write('classes');" for path in written)
    program = f"import sys; sys.stdin.read(); {script} sys.exit({code})"
    return subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)


def new_file(archive: ClassArchive) -> Path:
    option, _, _ = archive.write_options().partition(" ")
    return Path(option.removeprefix("-XX:ArchiveClassesAtExit="))


def test_what_the_jvm_wrote_is_used_from_then_on(tmp_path: Path) -> None:
    archive = ClassArchive(tmp_path / "ours", JAVA, "spark 1")
    assert (archive.exists, archive.use_options()) == (False, "")
    size = archive.keep(ended(0, new_file(archive)))
    assert (size, archive.exists) == (len("classes"), True)
    assert f"-XX:SharedArchiveFile={archive.path} " in archive.use_options()


def test_what_others_keep_or_are_just_writing_is_left_alone(tmp_path: Path) -> None:
    one, other = (ClassArchive(tmp_path / "ours", JAVA, f"spark {number}") for number in (1, 2))
    one.keep(ended(0, new_file(one)))
    writing, forgotten = (tmp_path / "ours" / f"spark-0.{number}.new" for number in (1, 2))
    for path in (writing, forgotten):
        path.write_text("half")
    os.utime(forgotten, (0, 0))
    assert other.use_options() == ""
    other.keep(ended(0, new_file(other)))
    assert one.exists
    assert other.exists
    assert (writing.exists(), forgotten.exists()) == (True, False)


def test_a_jvm_that_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.pipeline.class_data_sharing._TIMEOUT_SECONDS", 0.1)
    archive = ClassArchive(tmp_path / "ours", JAVA, "spark 1")
    new_file(archive)
    stubborn = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdin=subprocess.PIPE)
    with pytest.raises(PenstockError, match="did not end"):
        archive.keep(stubborn)
    assert stubborn.poll() is not None


@pytest.mark.parametrize("code", [0, 1])
def test_a_jvm_that_did_not_write_its_classes_changes_nothing(tmp_path: Path, code: int) -> None:
    archive = ClassArchive(tmp_path / "ours", JAVA, "spark 1")
    new_file(archive)
    with pytest.raises(PenstockError, match="did not write"):
        archive.keep(ended(code))
    assert list((tmp_path / "ours").iterdir()) == []


def test_a_half_written_file_of_a_jvm_that_crashed_is_never_used(tmp_path: Path) -> None:
    archive = ClassArchive(tmp_path / "ours", JAVA, "spark 1")
    with pytest.raises(PenstockError):
        archive.keep(ended(1, new_file(archive)))
    assert not archive.exists
    assert list((tmp_path / "ours").iterdir()) == []


def test_a_folder_that_others_may_write_to_is_neither_used_nor_filled(tmp_path: Path) -> None:
    archive = ClassArchive(tmp_path / "ours", JAVA, "spark 1")
    archive.keep(ended(0, new_file(archive)))
    archive.path.parent.chmod(0o777)
    assert archive.use_options() == ""
    with pytest.raises(ConfigError, match="users other than its owner"):
        archive.write_options()


def test_a_folder_that_jvm_options_cannot_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="do not allow"):
        ClassArchive(tmp_path / "with a space", JAVA, "spark 1").write_options()


def test_a_file_that_somebody_else_may_change_or_that_is_only_a_link_is_not_used(tmp_path: Path) -> None:
    archive = ClassArchive(tmp_path / "ours", JAVA, "spark 1")
    archive.keep(ended(0, new_file(archive)))
    archive.path.chmod(0o666)
    assert archive.use_options() == ""
    archive.path.chmod(0o600)
    assert archive.use_options() != ""
    archive.path.rename(tmp_path / "elsewhere")
    archive.path.symlink_to(tmp_path / "elsewhere")
    assert archive.use_options() == ""


@pytest.mark.parametrize("version", ["Eclipse OpenJ9 VM (sharing)", "OpenJDK 64-Bit Server VM (mixed mode)"])
def test_a_jvm_that_shares_no_classes_is_left_alone(tmp_path: Path, version: str) -> None:
    assert class_archive(f'openjdk version "17"\n{version}', tmp_path) is None


def test_a_spark_whose_jars_are_elsewhere_starts_as_ever(tmp_path: Path) -> None:
    assert class_archive(JAVA, tmp_path / "jars") is None


def test_the_driver_of_a_cluster_keeps_the_options_of_its_site() -> None:
    assert JVM_OPTIONS not in session_config(SparkSettings(master="spark://host:7077"), "-XX:SharedArchiveFile=a")
    ours = session_config(SparkSettings(config={JVM_OPTIONS: "-Dmine=1"}), "-XX:SharedArchiveFile=a")[JVM_OPTIONS]
    assert ours.split() == ["-Dmine=1", "-XX:SharedArchiveFile=a"]
    assert "TieredStopAtLevel" not in ours
