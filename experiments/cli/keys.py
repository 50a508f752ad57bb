"""``thalweg keys``: certificates of hosts and clients, and who is a member."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from thalweg.experiments.cli.console import JsonOption, end, new_table, output, print_json, say
from thalweg.middleware.errors import UsageError, nearest
from thalweg.middleware.shell.security import (
    MEMBERS,
    PUBLIC,
    Member,
    check_members,
    new_certificate,
    read_certificate,
    read_members,
    write_certificate,
)

app = typer.Typer(name="keys", no_args_is_help=True, help="Certificates of hosts and clients, and who is a member.")

MembersOption = Annotated[
    Path, typer.Option("--members", metavar="DIR", help="The folder of public certificates of all who may talk.")
]


class Role(StrEnum):
    """What a certificate is for."""

    host = "host"
    client = "client"


@app.command("new", epilog="Example: thalweg keys new h1 --out keys --expires 365")
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The host's or client's name.", show_default=False)],
    role: Annotated[Role, typer.Option(help="A client leads runs, a host takes part in them.")] = Role.host,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write the two files into.")] = Path(),
    expires: Annotated[
        int | None, typer.Option(metavar="DAYS", min=1, help="For how long it is good.", show_default="for ever")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a key pair: a secret certificate, which stays where it is used, and a public one for all members."""
    member, public, secret = new_certificate(name, role.value, out, expires)
    text = f"{secret}: keep it to yourself\n{public}: for thalweg keys allow on every host and client\n{_told(member)}"
    say(as_json, {"public": str(public), "secret": str(secret), **_as_row(member)}, text)


@app.command("allow", epilog="Example: thalweg keys allow h1.key alice.key --members members")
def allow(
    certificates: Annotated[
        list[Path], typer.Argument(metavar="CERT...", help="Public certificates, NAME.key.", show_default=False)
    ],
    members: MembersOption = Path(MEMBERS),
    as_json: JsonOption = False,
) -> None:
    """Make members: their public certificates are copied into the folder, which running hosts look at again."""
    made = []
    for path in certificates:
        member, secret = read_certificate(path)
        if secret:
            raise UsageError(f"{path} is a secret certificate, which nobody else needs; give {member.name}{PUBLIC}")
        if member.expired:
            raise UsageError(f"the certificate {path} has expired on {member.expires}")
        target = members / f"{member.name}{PUBLIC}"
        if not target.exists():
            write_certificate(target, member.text())
        elif read_certificate(target)[0] != member:
            raise UsageError(f"{target} is another certificate; first thalweg keys revoke {member.name}")
        made.append(member)
    say(as_json, {"members": [_as_row(member) for member in made]}, "\n".join(map(_told, made)))


@app.command("revoke", epilog="Example: thalweg keys revoke h1 --members members")
def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The member's name.", show_default=False)],
    members: MembersOption = Path(MEMBERS),
    as_json: JsonOption = False,
) -> None:
    """Remove a member: hosts that look at this folder refuse what it says within seconds."""
    check_members(members)
    known = [path.stem for path in members.glob(f"*{PUBLIC}")]
    if name not in known:
        raise UsageError(f"there is no member {name!r} in {members}; {nearest(name, known)}")
    (members / f"{name}{PUBLIC}").unlink()
    say(as_json, {"revoked": name}, f"{name} is revoked; hosts that look at {members} refuse it within seconds")


@app.command("list", epilog="Example: thalweg keys list --members members --json")
def listed(members: MembersOption = Path(MEMBERS), as_json: JsonOption = False) -> None:
    """Who is a member: name, role, expiry, and the fingerprint of the key."""
    check_members(members)
    found, wrong = read_members(members)
    if as_json:
        print_json({"members": [_as_row(member) for member in found]})
    elif found:
        table = new_table("name", "role", "expires", "fingerprint", left=("role", "expires", "fingerprint"))
        for member in found:
            table.add_row(member.name, member.role, _until(member), member.fingerprint)
        output().print(table)
    elif not wrong:
        print(f"{members} has no members; thalweg keys allow NAME{PUBLIC} --members {members}")
    end(wrong)


def _until(member: Member) -> str:
    if member.expires is None:
        return "never"
    return f"{member.expires:%Y-%m-%d %H:%M} UTC{' (has expired)' if member.expired else ''}"


def _as_row(member: Member) -> dict[str, Any]:
    return {name: getattr(member, name) for name in ("name", "role", "expires", "expired", "fingerprint")}


def _told(member: Member) -> str:
    return f"{member.name}: {member.role}, expires {_until(member)}, fingerprint {member.fingerprint}"
