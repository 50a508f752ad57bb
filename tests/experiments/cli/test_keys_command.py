"""``thalweg keys``: certificates are made, allowed, listed and revoked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from thalweg.experiments.cli.main import invoke


def test_a_member_is_created_allowed_listed_and_revoked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def answer(*words: str) -> dict[str, object]:
        assert invoke(["keys", *words, "--json"]) == 0
        output: dict[str, object] = json.loads(capsys.readouterr().out)
        return output

    def refused(*words: str) -> str:
        assert invoke(["keys", *words]) == 2
        line = capsys.readouterr().err
        assert line.count("\n") == 1
        return line

    created = answer("new", "h1", "--expires", "2")
    assert (created["name"], created["role"], created["public"], created["expired"]) == ("h1", "host", "h1.key", False)
    assert (tmp_path / "h1.key_secret").stat().st_mode & 0o777 == 0o600
    assert answer("new", "alice", "--role", "client")["expires"] is None
    assert "h1.key_secret exists; a certificate is never overwritten" in refused("new", "h1")
    assert "is a secret certificate, which stays on its machine; give h1.key" in refused("allow", "h1.key_secret")
    allowed = answer("allow", "h1.key", "alice.key")
    assert answer("allow", "h1.key")["members"] == [made_row(created)]  # once more
    assert answer("list") == {"members": sorted(allowed["members"], key=lambda row: row["name"])}  # type: ignore
    answer("new", "h1", "--out", "other")
    assert "is another certificate; first run thalweg keys revoke h1" in refused("allow", "other/h1.key")
    assert "there is no member 'h2' in members; did you mean 'h1'?" in refused("revoke", "h2")
    assert answer("revoke", "h1") == {"revoked": "h1"}
    assert invoke(["keys", "list"]) == 0
    assert [line.split()[:3] for line in capsys.readouterr().out.splitlines() if "alice" in line] == [
        ["alice", "client", "never"]
    ]
    Path("members/bad.key").write_text("garbled")
    assert invoke(["keys", "list"]) == 1
    assert "bad.key is not a certificate" in capsys.readouterr().err


def test_an_invalid_certificate_is_named_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.key"
    bad.write_text("garbled")
    assert invoke(["keys", "allow", str(bad)]) == 2
    error = capsys.readouterr().err
    assert error.count("bad.key") == 1
    assert "it has no public key; make one with thalweg keys new" in error


@pytest.mark.parametrize("words", [["list"], ["list", "--json"], ["revoke", "h1"]])
def test_the_error_for_a_missing_members_folder_names_the_keys_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke(["keys", *words]) == 2
    advice = "name another with --members, or make it with: thalweg keys allow NAME.key --members members"
    assert capsys.readouterr().err == f"thalweg: there is no members folder members; {advice}\n"
    Path("members").touch()
    assert invoke(["keys", *words]) == 2
    assert "the members folder members cannot be read: Not a directory; name another" in capsys.readouterr().err


def made_row(made: dict[str, object]) -> dict[str, object]:
    return {name: made[name] for name in ("name", "role", "expires", "expired", "fingerprint")}
