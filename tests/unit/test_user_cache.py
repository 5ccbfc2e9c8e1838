"""The cache of a user: what it stores, what it ignores, and that it never fails."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from penstock import user_cache
from penstock.user_cache import UserCache


@pytest.fixture
def cache(tmp_path: Path) -> UserCache:
    return UserCache(tmp_path / "caches" / "penstock")


def file_of(cache: UserCache, name: str = "one") -> Path:
    assert cache.folder is not None
    return cache.folder / name


def test_what_is_written_is_read_and_belongs_to_the_user_alone(cache: UserCache) -> None:
    assert cache.read("one") is None
    cache.write("one", b"a")
    cache.write("one", b"b")
    assert cache.read("one") == b"b"
    assert stat.S_IMODE(file_of(cache).stat().st_mode) == 0o600
    assert stat.S_IMODE(file_of(cache).parent.stat().st_mode) == 0o700
    assert os.listdir(file_of(cache).parent) == ["one"]


@pytest.mark.parametrize("damage", [b"", b"x", b"x" * 40])
def test_a_damaged_file_is_ignored_and_replaced(cache: UserCache, damage: bytes) -> None:
    cache.write("one", b"a")
    file_of(cache).write_bytes(damage)
    assert cache.read("one") is None
    cache.write("one", b"b")
    assert cache.read("one") == b"b"


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_a_folder_that_others_may_write_to_is_not_used(cache: UserCache, mode: int) -> None:
    cache.write("one", b"a")
    file_of(cache).parent.chmod(mode)
    cache.write("two", b"a")
    assert (cache.read("one"), file_of(cache, "two").exists()) == (None, False)


def test_a_file_that_others_may_write_to_is_not_used(cache: UserCache) -> None:
    cache.write("one", b"a")
    file_of(cache).chmod(0o666)
    assert cache.read("one") is None


def test_files_of_another_user_are_not_used(cache: UserCache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.write("one", b"a")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    cache.write("two", b"a")
    assert (cache.read("one"), file_of(cache, "two").exists()) == (None, False)


def test_links_are_not_followed(cache: UserCache, tmp_path: Path) -> None:
    cache.write("one", b"a")
    file_of(cache, "link").symlink_to(file_of(cache))
    (tmp_path / "folder").symlink_to(file_of(cache).parent)
    assert (cache.read("link"), UserCache(tmp_path / "folder").read("one")) == (None, None)


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        UserCache(folder).write("one", b"a")
        assert UserCache(folder).read("one") is None


def test_the_oldest_files_beyond_the_limits_are_deleted(cache: UserCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_cache, "_MOST_FILES", 3)
    for number in range(5):
        cache.write(f"entry-{number}", b"a")
        os.utime(file_of(cache, f"entry-{number}"), (number, number))
    cache.write("entry-5", b"a")
    assert sorted(os.listdir(file_of(cache).parent)) == ["entry-3", "entry-4", "entry-5"]
    monkeypatch.setattr(user_cache, "_MOST_BYTES", 100)
    cache.write("entry-6", b"a" * 60)
    assert os.listdir(file_of(cache).parent) == ["entry-6"]
    monkeypatch.setattr(user_cache, "_LARGEST_FILE", 10)
    cache.write("entry-7", b"a" * 11)
    assert os.listdir(file_of(cache).parent) == ["entry-6"]


def test_files_of_the_user_in_the_chosen_folder_are_never_deleted(
    cache: UserCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_cache, "_MOST_FILES", 1)
    cache.write("entry-1", b"a")
    mine = ("thesis.txt", "notes-final", ".profile", "photo-1.jpg")
    for name in mine:
        file_of(cache, name).write_text("mine")
    cache.write("entry-2", b"a")
    assert sorted(os.listdir(file_of(cache).parent)) == sorted([*mine, "entry-2"])


def test_the_environment_names_the_folder_or_turns_the_cache_off() -> None:
    assert UserCache.of({"PENSTOCK_CACHE": "off"}).folder is None
    assert UserCache.of({"PENSTOCK_CACHE": "/somewhere"}).folder == Path("/somewhere")
    assert UserCache.of({"XDG_CACHE_HOME": "/caches"}).folder == Path("/caches/penstock/commands")
    assert UserCache.of({}).folder == Path("~/.cache/penstock/commands").expanduser()
    UserCache(None).write("one", b"a")
    assert UserCache(None).read("one") is None
