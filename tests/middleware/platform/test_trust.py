"""Files that other users could change: every row of the table on the security page, and the text of refusals."""

from __future__ import annotations

import grp
import os
import pwd
import re
import struct
from pathlib import Path
from typing import NamedTuple

import pytest

from thalweg.middleware.platform import trust
from thalweg.middleware.platform.trust import why_unsafe

DOCS = Path(__file__).parents[3] / "docs/explanation/security.md"
OTHER = 65534
FOLDER = 0o040755
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to other users")


class Row(NamedTuple):
    """Row of the table: kind, owner and mode of a path, and whether the path is accepted."""

    kind: str
    owner: str
    mode: str
    outcome: str


def rows() -> list[Row]:
    """Return the rows of the table under its heading."""
    section = DOCS.read_text(encoding="utf-8").partition("## Trusted files")[2].partition("\n#")[0]
    found = [
        Row(*[cell.strip() for cell in line.strip("|").split("|")]) for line in section.splitlines() if "| 0" in line
    ]
    assert len(found) > 20
    return found


def made(row: Row, folder: Path) -> Path:
    """Make the path of a row, with its owner and mode, and return the path to ask about."""
    above = folder / "above"
    above.mkdir()
    path = above / "h1.key"
    path.write_text("text")
    path.chmod(0o600)
    subject = {"folder above": above, "members folder": above / "members", "link on the way": folder / "link"}.get(
        row.kind, path
    )
    if row.kind == "members folder":
        subject.mkdir()
    if row.kind == "link on the way":
        subject.symlink_to(above)
    else:
        subject.chmod(int(row.mode, 8))
    uid, gid = {"you": (os.geteuid(), os.getegid()), "root": (0, 0), "another user": (OTHER, OTHER)}[row.owner]
    os.chown(subject, uid, gid, follow_symlinks=False)
    if subject != path and not subject.is_symlink():
        subject.chmod(int(row.mode, 8))  # a change of owner may clear bits
    return {"members folder": subject, "link on the way": folder / "link" / "h1.key"}.get(row.kind, path)


@as_root
@pytest.mark.parametrize("row", rows(), ids=" ".join)
def test_the_table_of_owners_and_modes_is_true(row: Row, tmp_path: Path) -> None:
    why = why_unsafe(made(row, tmp_path), row.kind, secret=row.kind == "secret certificate")
    assert row.outcome in ("accepted", "refused")
    assert bool(why) == (row.outcome == "refused"), why
    assert "\n" not in why


@as_root
def test_a_refusal_names_the_path_the_owner_and_a_remedy(tmp_path: Path) -> None:
    nobody, me = pwd.getpwuid(OTHER).pw_name, pwd.getpwuid(os.geteuid()).pw_name
    path = tmp_path / "h1.key"
    path.write_text("text")
    os.chown(path, OTHER, -1)
    assert why_unsafe(path, "certificate") == f"the certificate {path} belongs to {nobody}; chown {me} {path}"
    os.chown(path, 0, -1)
    os.chown(tmp_path, OTHER, -1)
    harm = f"replace the certificate {path}"
    assert why_unsafe(path, "certificate") == (
        f"the folder {tmp_path} belongs to {nobody}, who could {harm}; keep it elsewhere"
    )


def test_a_path_with_excessive_rights_is_refused_by_the_mode(tmp_path: Path) -> None:
    path = tmp_path / "members"
    path.mkdir()
    assert why_unsafe(path, "members folder") == ""
    path.chmod(0o757)
    assert why_unsafe(path, "members folder") == f"others may write to the members folder {path}; chmod go-w {path}"
    secret = path / "h1.key_secret"
    secret.write_text("text")
    secret.chmod(0o600)
    harm = f"replace the secret certificate {secret}"
    why = why_unsafe(secret, "secret certificate", secret=True)
    assert why == f"others may write to the folder {path}, and so could {harm}; chmod go-w {path}"
    path.chmod(0o755)
    for mode in (0o640, 0o604, 0o601):
        secret.chmod(mode)
        why = why_unsafe(secret, "secret certificate", secret=True)
        assert why == f"others may read the secret certificate {secret}; chmod 600 {secret}"


def test_every_folder_on_the_path_counts_even_through_links(tmp_path: Path) -> None:
    """The path goes into a folder that other users may write to, and out of it again."""
    (open_ := tmp_path / "open").mkdir()
    open_.chmod(0o777)
    (safe := tmp_path / "safe").mkdir()
    (safe / "h1.key").write_text("text")
    assert why_unsafe(safe / "h1.key", "certificate") == ""
    assert f"the folder {open_}," in why_unsafe(open_ / ".." / "safe" / "h1.key", "certificate")
    (open_ / "inner").symlink_to("../safe")
    (tmp_path / "outer").symlink_to(open_ / "inner")
    assert f"the folder {open_}," in why_unsafe(tmp_path / "outer" / "h1.key", "certificate")
    (tmp_path / "straight").symlink_to("safe/../safe")
    assert why_unsafe(tmp_path / "straight" / "h1.key", "certificate") == ""
    (safe / "last").symlink_to(open_ / "h2.key")  # a link that is the file itself
    (open_ / "h2.key").write_text("text")
    assert f"the folder {open_}," in why_unsafe(safe / "last", "certificate")


def test_circular_links_and_absent_files_raise_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="Too many levels"):
        why_unsafe(tmp_path / "a", "certificate")
    with pytest.raises(FileNotFoundError):
        why_unsafe(tmp_path / "absent", "certificate")


def test_a_relative_path_starts_at_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "h1.key").write_text("text")
    monkeypatch.chdir(tmp_path)
    assert why_unsafe(Path("h1.key"), "certificate") == ""
    tmp_path.chmod(0o777)
    assert f"the folder {tmp_path}," in why_unsafe(Path("h1.key"), "certificate")


def test_only_a_private_group_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "h1.key"
    path.write_text("text")
    path.chmod(0o664)
    user, own = pwd.getpwuid(os.geteuid()), grp.getgrgid(path.stat().st_gid)
    private = grp.struct_group((user.pw_name, "x", own.gr_gid, []))
    monkeypatch.setattr(
        trust.pwd, "getpwuid", lambda _: pwd.struct_passwd((user.pw_name, "x", user.pw_uid, own.gr_gid, "", "/", ""))
    )
    for group, safe in (
        (private, True),
        (grp.struct_group((user.pw_name, "x", own.gr_gid, [user.pw_name])), True),
        (grp.struct_group((user.pw_name, "x", own.gr_gid, ["mallory"])), False),
        (grp.struct_group(("staff", "x", own.gr_gid, [])), False),
        (grp.struct_group((user.pw_name, "x", own.gr_gid + 1, [])), False),
    ):
        monkeypatch.setattr(trust.grp, "getgrgid", lambda _, group=group: group)
        assert (why_unsafe(path, "certificate") == "") is safe, group
    monkeypatch.setattr(trust.grp, "getgrgid", lambda _: private)
    monkeypatch.setattr(trust.os, "listxattr", lambda _: [trust.LIST])
    assert re.fullmatch("others may write to .*", why_unsafe(path, "certificate"))


def test_an_access_control_list_that_lets_a_second_user_write_is_detected(tmp_path: Path) -> None:
    path = tmp_path / "h1.key"
    path.write_text("text")
    entries = (
        (0x01, 6, 0xFFFFFFFF),
        (0x02, 6, OTHER),
        (0x04, 4, 0xFFFFFFFF),
        (0x10, 6, 0xFFFFFFFF),
        (0x20, 4, 0xFFFFFFFF),
    )
    try:  # user, another user, group, mask and others, as in acl_ea.h of Linux
        os.setxattr(
            path, trust.LIST, struct.pack("<I", 2) + b"".join([struct.pack("<HHI", *entry) for entry in entries])
        )
    except OSError as error:
        pytest.skip(f"no access control lists here: {error.strerror}")
    assert why_unsafe(path, "certificate") == f"others may write to the certificate {path}; chmod go-w {path}"


@pytest.mark.parametrize(
    ("step", "uid", "mode", "maps_root", "says"),
    [
        ("/home", OTHER, FOLDER, False, ""),
        ("/tmp", OTHER, FOLDER | 0o1777, False, ""),
        ("/tmp", OTHER, FOLDER | 0o777, False, "others may write to the folder /tmp"),
        ("/home", OTHER, FOLDER, True, "the folder /home belongs to"),
        ("/home/mallory", OTHER, FOLDER, False, "the folder /home/mallory belongs to"),
        ("/home", 12345, FOLDER, False, "the folder /home belongs to 12345"),
    ],
)
def test_folders_of_an_unmapped_root_count_as_folders_of_root(
    step: str, uid: int, mode: int, maps_root: bool, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R5: as in a testbed of an ordinary user, where / seems to belong to nobody."""
    monkeypatch.setattr(trust, "maps_root", lambda: maps_root)
    monkeypatch.setattr(trust, "unmapped_owner", lambda: OTHER)
    found = os.stat_result((mode, 0, 0, 1, uid, uid, 0, 0, 0, 0))
    why = trust._why_unsafe_above(Path(step), found, "replace it")
    assert why.startswith(says)
    assert bool(why) is bool(says)
