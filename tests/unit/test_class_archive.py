"""Spark's classes, kept ready between processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import ConfigError, PenstockError
from penstock.pipeline.archive import ClassArchive, class_archive

JAVA = 'openjdk version "17.0.1"\nOpenJDK 64-Bit Server VM'


def ended(code: int, *written: Path) -> subprocess.Popen[bytes]:
    """A process that ends as a JVM does when its standard input is closed, after it wrote its classes."""
    script = "".join(f"open({str(path)!r}, 'w').write('classes');" for path in written)
    words = f"import sys; sys.stdin.read(); {script} sys.exit({code})"
    return subprocess.Popen([sys.executable, "-c", words], stdin=subprocess.PIPE)


def new_file(archive: ClassArchive) -> Path:
    option, _, _ = archive.making().partition(" ")
    return Path(option.removeprefix("-XX:ArchiveClassesAtExit="))


def test_what_the_jvm_wrote_is_used_from_then_on_and_replaces_what_was_for_other_versions(tmp_path: Path) -> None:
    archive = ClassArchive(tmp_path / "ours", JAVA, "spark 1")
    assert (archive.is_there, archive.using()) == (False, "")
    size = archive.keep(ended(0, new_file(archive)))
    assert (size, archive.is_there) == (len("classes"), True)
    assert f"-XX:SharedArchiveFile={archive.path} " in archive.using()

    other = ClassArchive(tmp_path / "ours", JAVA, "spark 2")
    assert other.using() == ""
    other.keep(ended(0, new_file(other)))
    assert sorted(path.name for path in (tmp_path / "ours").iterdir()) == [other.path.name]


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
    assert not archive.is_there
    assert list((tmp_path / "ours").iterdir()) == []


def test_a_folder_that_others_may_write_to_is_neither_used_nor_filled(tmp_path: Path) -> None:
    archive = ClassArchive(tmp_path / "ours", JAVA, "spark 1")
    archive.keep(ended(0, new_file(archive)))
    archive.path.parent.chmod(0o777)
    assert archive.using() == ""
    with pytest.raises(ConfigError, match="nobody else's"):
        archive.making()


def test_a_folder_that_the_jvm_could_not_be_told_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="too odd"):
        ClassArchive(tmp_path / "with a space", JAVA, "spark 1").making()


def test_a_jvm_of_another_make_is_left_alone(tmp_path: Path) -> None:
    assert class_archive('openjdk version "17"\nEclipse OpenJ9 VM', tmp_path) is None
