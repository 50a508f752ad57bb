"""Files on every system: the substitutes for missing POSIX functions behave the same."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from thalweg.middleware.platform import files

TAKE = """
import os, sys
from thalweg.middleware.platform.files import lock
descriptor = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
try:
    lock(descriptor)
except BlockingIOError:
    print("refused")
else:
    print("taken")
"""


def taken_elsewhere(path: Path) -> str:
    return subprocess.run([sys.executable, "-c", TAKE, path], capture_output=True, text=True, check=True).stdout.strip()


def test_a_lock_is_refused_to_other_processes_until_the_file_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    files.lock(descriptor)
    assert taken_elsewhere(path) == "refused"
    os.close(descriptor)
    assert taken_elsewhere(path) == "taken"


def test_a_folder_is_locked_like_a_file(tmp_path: Path) -> None:
    first, second = (files.open_folder(tmp_path, ".lock") for _ in range(2))
    files.lock(first)
    with pytest.raises(BlockingIOError):
        files.lock(second)
    os.close(first)
    files.lock(second)
    os.close(second)


@pytest.mark.parametrize("missing", ["", "pwrite"])
def test_data_written_at_a_position_stands_there(missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if missing:
        monkeypatch.delattr(os, missing)
    path = tmp_path / "log"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    for data, at in ((b"abcdef", 0), (b"XY", 2), (b"g", 6)):
        assert files.write_at(descriptor, data, at) == len(data)
    os.close(descriptor)
    assert path.read_bytes() == b"abXYefg"


@pytest.mark.parametrize("missing", ["", "posix_fallocate"])
def test_space_is_reserved_or_an_error_reports_the_full_disk(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing:
        monkeypatch.delattr(os, missing)
    with (tmp_path / "room").open("wb") as file:
        files.allocate(file.fileno(), 1 << 20)
        assert os.fstat(file.fileno()).st_size == 1 << 20
    full = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(OSError, match="No space left" if missing else "."):
        files.allocate(full, 1 << 20)
    os.close(full)


def test_rights_of_other_users_follow_the_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "key"
    path.touch()
    for mode, rights, may in ((0o600, 0o077, False), (0o640, 0o077, True), (0o644, 0o022, False)):
        path.chmod(mode)
        assert files.others_may(path.stat(), rights) is may
    path.chmod(0o666)
    monkeypatch.setattr(sys, "platform", "win32")
    assert not files.others_may(path.stat(), 0o077)


def test_the_owner_and_the_user_match_the_owner_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own").touch()
    assert (tmp_path / "own").stat().st_uid == files.owner()
    assert files.user() == os.getuid()
    for name in ("getuid", "geteuid"):
        monkeypatch.delattr(os, name)
    assert (files.user(), files.owner()) == (0, 0)


# --- what is no regular file ------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such files")
@pytest.mark.parametrize("kind", ["pipe", "device", "socket", "folder"])
def test_only_a_regular_file_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Opening a pipe without a writer would wait, see open(2)."""
    path = tmp_path / kind
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            monkeypatch.chdir(tmp_path)  # a name of a socket is short
            server.bind(kind)
    else:
        path.mkdir()
    for look in (files.open_regular, files.check_regular):
        with pytest.raises(OSError, match="Is a directory" if kind == "folder" else f"it is a {kind}") as refused:
            look(path)
        assert refused.value.filename == str(path)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pipes with names")
def test_opening_a_file_that_was_replaced_by_a_pipe_does_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, before = tmp_path / "file", os.stat
    path.touch()

    def swapped(name: os.PathLike[str]) -> os.stat_result:
        found = before(name)
        path.unlink()
        os.mkfifo(path)
        return found

    monkeypatch.setattr(files.os, "stat", swapped)
    with pytest.raises(OSError, match="it is a pipe"):
        files.open_regular(path)


def test_a_regular_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"text")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with files.open_regular(tmp_path / "link") as file:
        assert file.read() == b"text"
