"""``thalweg keys``: certificates of hosts and clients, and the folder of members."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from thalweg.experiments.cli.commands import group
from thalweg.experiments.cli.console import JsonOption, end, new_table, output, print_json, say
from thalweg.experiments.cli.options import choice, number
from thalweg.middleware.errors import UsageError, nearest
from thalweg.middleware.shell.security import (
    MEMBERS,
    PUBLIC,
    MemberCertificate,
    check_members,
    new_certificate,
    read_certificate,
    read_members,
    write_certificate,
)

app = group(
    "keys",
    """Manage the certificates of hosts and clients.

    Each host and client has a secret certificate of its own. A folder of public certificates says who is a member.

    A certificate for host h1: thalweg keys new h1 --out keys

    Membership for a host and a client: thalweg keys allow h1.key alice.key --members members
    """,
)

MembersOption = Annotated[
    Path, typer.Option("--members", metavar="DIR", help="Folder of the public certificates of all members.")
]
ROLES = ("host", "client")


@app.command("new")
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the host or client.", show_default=False)],
    role: Annotated[Any, choice(ROLES, "--role", "A client leads runs. A host takes part in them.")] = "host",
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write the two files into.")] = Path(),
    expires: Annotated[
        int | None,
        number(int, "--expires", "Days until the certificate expires.", metavar="DAYS", least=1, show_default="never"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a key pair: a secret certificate and a public one.

    The secret certificate stays on the machine that uses it. The public one is for all members.

    Example: thalweg keys new h1 --out keys --expires 365
    """
    member, public, secret = new_certificate(name, role, out, expires)
    text = f"{secret}: keep it to yourself\n{public}: for thalweg keys allow on every host and client\n{_told(member)}"
    say(as_json, {"public": str(public), "secret": str(secret), **_as_row(member)}, text)


@app.command("allow")
def allow(
    certificates: Annotated[
        list[Path], typer.Argument(metavar="CERT…", help="Public certificates, NAME.key.", show_default=False)
    ],
    members: MembersOption = Path(MEMBERS),
    as_json: JsonOption = False,
) -> None:
    """Make members of hosts and clients.

    Their public certificates are copied into the folder. Running hosts read the folder again within seconds.

    Example: thalweg keys allow h1.key alice.key --members members
    """
    allowed = []
    for path in certificates:
        member, secret = read_certificate(path)
        if secret:
            raise UsageError(f"{path} is a secret certificate, which stays on its machine; give {member.name}{PUBLIC}")
        if member.expired:
            raise UsageError(f"the certificate {path} expired on {member.until}")
        target = members / f"{member.name}{PUBLIC}"
        if not target.exists():
            write_certificate(target, member.text())
        elif read_certificate(target)[0] != member:
            raise UsageError(f"{target} is another certificate; first run thalweg keys revoke {member.name}")
        allowed.append(member)
    say(as_json, {"members": [_as_row(member) for member in allowed]}, "\n".join(map(_told, allowed)))


@app.command("revoke")
def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the member.", show_default=False)],
    members: MembersOption = Path(MEMBERS),
    as_json: JsonOption = False,
) -> None:
    """Remove a member.

    Running hosts that read this folder refuse messages of the member within seconds.

    Example: thalweg keys revoke h1 --members members
    """
    check_members(members)
    known = [path.stem for path in members.glob(f"*{PUBLIC}")]
    if name not in known:
        raise UsageError(f"there is no member {name!r} in {members}; {nearest(name, known)}")
    (members / f"{name}{PUBLIC}").unlink()
    say(as_json, {"revoked": name}, f"{name} is revoked; hosts that read {members} refuse it within seconds")


@app.command("list")
def listed(members: MembersOption = Path(MEMBERS), as_json: JsonOption = False) -> None:
    """List the members: name, role, expiry, and fingerprint of the key.

    Example: thalweg keys list --members members --json
    """
    check_members(members)
    certificates, wrong = read_members(members)
    if as_json:
        print_json({"members": [_as_row(member) for member in certificates]})
    elif certificates:
        table = new_table("name", "role", "expires", "fingerprint", left=("role", "expires", "fingerprint"))
        for member in certificates:
            table.add_row(member.name, member.role, _until(member), member.fingerprint)
        output().print(table)
    elif not wrong:
        print(f"{members} has no members; add one with: thalweg keys allow NAME{PUBLIC} --members {members}")
    end(wrong)


def _until(member: MemberCertificate) -> str:
    return f"{member.until}{' (has expired)' if member.expired else ''}"


def _as_row(member: MemberCertificate) -> dict[str, Any]:
    return {name: getattr(member, name) for name in ("name", "role", "expires", "expired", "fingerprint")}


def _told(member: MemberCertificate) -> str:
    return f"{member.name}: {member.role}, expires {_until(member)}, fingerprint {member.fingerprint}"
