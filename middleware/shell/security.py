"""Certificates: access to a host, and proof of the sender of each message.

Rules:

- R1: Each host and each client has a key pair. Its secret certificate is a file that only the owner can read. Its
  public certificate is a file ``NAME.key`` in every member's members folder. Both are in the format of ``zmq.auth``,
  with name, role (``host`` or ``client``) and expiry as metadata. A key without a file there has no access.
- R2: The sender of a message is the member whose key the connection has proved. An identity with a different name is
  refused.
- R3: The folder is read again when it has changed, which is checked at every handshake and in housekeeping. A member
  that was removed or has expired is refused from then on, on open connections too. An unreadable folder admits nobody.
- R4: A host leads no runs, and a client takes part only in its own runs. So ``Install`` and ``Remove`` are refused if
  their sender has role ``host``, or their receiver has role ``client``.
- R5: A certificate, and the members folder, count only if no other user could change them (``platform.trust``). A
  change that keeps size and modification date is found by the ``ctime``.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import re
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import zmq

from thalweg.middleware.errors import ProtocolError, UsageError, one_line
from thalweg.middleware.files.reading import read_bounded
from thalweg.middleware.platform import check_linux
from thalweg.middleware.platform.trust import why_unsafe
from thalweg.middleware.protocol import messages as m

if TYPE_CHECKING:
    from zmq.auth.thread import ThreadAuthenticator

Role = Literal["host", "client"]
PUBLIC, SECRET = ".key", ".key_secret"  # suffixes of pyzmq
MAX_CERTIFICATE_BYTES = 64 * 1024  # a certificate of pyzmq has a few hundred
MEMBERS = "members"  # default folder, beside a secret certificate
_DOMAIN = "thalweg"
TICK_S = 0.05  # longest time between two dates that a kernel distinguishes
_HEARD = 4096  # connections with a remembered sender; beyond that, the table is cleared
_Name = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9._-]*\Z", max_length=128)]
_Z85 = Annotated[str, msgspec.Meta(pattern=r"\A[0-9A-Za-z.:+=^!/*?&<>()\[\]{}@%$#-]{40}\Z")]


class MemberCertificate(msgspec.Struct, frozen=True):
    """Public certificate: name, role, key in Z85 text, and expiry (UTC)."""

    name: _Name
    role: Role
    public: _Z85
    expires: Annotated[datetime, msgspec.Meta(tz=True)] | None = None

    @property
    def until(self) -> str:
        """Expiry as text."""
        return "never" if self.expires is None else f"{self.expires.astimezone(UTC):%Y-%m-%d %H:%M} UTC"

    @property
    def expired(self) -> bool:
        return self.expires is not None and self.expires.timestamp() <= time.time()

    @property
    def fingerprint(self) -> str:
        """Short hash of the key, which two people can compare over the telephone."""
        return hashlib.sha256(self.public.encode()).hexdigest()[:32]

    def text(self, secret: str = "") -> str:
        """Return the content of the certificate's file, with the secret key if that is given."""
        fields = {"name": self.name, "role": self.role}
        if self.expires is not None:
            fields["expires"] = self.expires.isoformat()
        lines = [f"# Thalweg, {'SECRET certificate: keep it to yourself' if secret else 'public certificate'}", ""]
        lines += ["metadata", *(f"    {key} = {value}" for key, value in fields.items())]
        lines += ["curve", f'    public-key = "{self.public}"', *([f'    secret-key = "{secret}"'] if secret else [])]
        return "\n".join(lines) + "\n"


def read_certificate(path: Path) -> tuple[MemberCertificate, str]:
    """Return a certificate and its secret key from a file. The key is empty in a public certificate.

    Raises UsageError for any other file.
    """
    try:
        text = read_bounded(path, MAX_CERTIFICATE_BYTES).decode()
        keys = {name: key for name in ("public", "secret") if (key := _key(text, name))}
        if "public" not in keys:
            raise ValueError("it has no public key")
        fields = {**_metadata(text), "public": keys["public"]}
        return msgspec.convert(fields, MemberCertificate, strict=False), keys.get("secret", "")
    except OSError as error:
        raise UsageError(f"the certificate {path} cannot be read: {error.strerror}") from None
    except (ValueError, msgspec.ValidationError) as error:
        raise UsageError(
            f"{path} is not a certificate with name, role and expiry: {one_line(error)}; make one with thalweg keys new"
        ) from None


def _key(text: str, name: str) -> str:
    """Return the key with this name, in the format of pyzmq. Empty if there is none."""
    match = re.search(rf"^[ \t]*{name}-key[^=\n]*=(.*)$", text, re.MULTILINE)
    return match[1].strip().strip("\"'") if match else ""


def _metadata(text: str) -> dict[str, str]:
    """Return the ``key = value`` lines under ``metadata``."""
    section = re.search(r"^metadata[ \t]*\n((?:[ \t]+.*\n?|\s*\n)*)", text, re.MULTILINE)
    lines = section[1].splitlines() if section else []
    pairs = (line.partition("=") for line in lines if "=" in line)
    return {key.strip(): value.strip().strip("\"'") for key, _, value in pairs}


def new_certificate(
    name: str, role: Role, out: Path, days: float | None = None
) -> tuple[MemberCertificate, Path, Path]:
    """Make a key pair for a new member. Return the member, and its public and secret file in folder ``out``.

    An existing file is never overwritten. Raises UsageError for an existing file or an invalid name.
    """
    public, secret = zmq.curve_keypair()
    expires = None if days is None else datetime.now(UTC).replace(microsecond=0) + timedelta(days=days)
    try:
        fields = {"name": name, "role": role, "public": public.decode(), "expires": expires}
        member = msgspec.convert(fields, MemberCertificate)
    except msgspec.ValidationError:
        raise UsageError(f"{name!r} is no name of a certificate; use letters, digits, '.', '_' and '-'") from None
    files = out / f"{name}{PUBLIC}", out / f"{name}{SECRET}"
    for path, text, mode in ((files[1], member.text(secret.decode()), 0o600), (files[0], member.text(), 0o644)):
        write_certificate(path, text, mode)
    return member, *files


def write_certificate(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a certificate, and its folder if missing. Raises UsageError for an existing file, which is kept."""
    try:
        path.parent.mkdir(0o755, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        raise UsageError(f"{path} exists; a certificate is never overwritten") from None
    except OSError as error:
        raise UsageError(f"the certificate {path} cannot be written: {error.strerror}") from None
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


def check_members(folder: Path) -> None:
    """Raise UsageError, with the remedy, if the members folder is missing or cannot be read."""
    try:
        os.scandir(folder).close()
    except FileNotFoundError:
        allow = f"thalweg keys allow NAME{PUBLIC} --members {folder}"
        raise UsageError(
            f"there is no members folder {folder}; name another with --members, or make it with: {allow}"
        ) from None
    except OSError as error:
        raise UsageError(
            f"the members folder {folder} cannot be read: {error.strerror}; name another with --members"
        ) from None


def read_members(folder: Path) -> tuple[list[MemberCertificate], list[str]]:
    """Return the public certificates in a folder, including expired ones, and the faults of other files.

    A file that other users could change does not count. In a folder that other users could change, no file counts (R5).
    If two files have the same key, both are left out.
    """
    members: dict[Path, MemberCertificate] = {}
    wrong = []
    try:
        if why := why_unsafe(folder, "members folder"):
            return [], [why]
        paths = sorted(path for path in folder.iterdir() if path.suffix == PUBLIC)
    except OSError as error:
        return [], [f"the members folder {folder} cannot be read: {error.strerror}"]
    for path in paths:
        try:
            member, _ = _read_safe(path, "certificate")
        except UsageError as error:
            wrong.append(str(error))
            continue
        if member.name == path.stem:
            members[path] = member
        else:
            wrong.append(f"{path} is the certificate of {member.name!r}; name the file {member.name}{PUBLIC}")
    by_key: dict[str, list[Path]] = {}
    for path, member in members.items():
        by_key.setdefault(member.public, []).append(path)
    for same in by_key.values():
        if len(same) > 1:
            names = " and ".join([path.name for path in same])
            wrong.append(f"{names} in {folder} hold the same key, which proves one name only; remove all but one")
    return [member for path, member in members.items() if len(by_key[member.public]) == 1], wrong


def _read_safe(path: Path, what: str, *, secret: bool = False) -> tuple[MemberCertificate, str]:
    """Read a certificate that no other user could change. Raises UsageError for an unsafe or invalid file.

    ``secret``: the file has to be a secret certificate.
    """
    why = ""
    with contextlib.suppress(OSError):  # the read below explains the error
        why = why_unsafe(path, what, secret=secret)
    member, key = read_certificate(path)
    if secret and not key:
        raise UsageError(f"{path} is a public certificate; give the secret one, {path.stem}{SECRET}")
    if why:
        raise UsageError(why)
    return member, key


class Members:
    """Members of a host: the public certificates in a folder, as of now. Raises UsageError for an unusable folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.version = 0  # number of changes of the members
        self._by_key: dict[str, MemberCertificate] = {}
        self._by_name: dict[str, MemberCertificate] = {}
        self._heard: dict[tuple[bytes, str], MemberCertificate] = {}  # by identity and key of the connection
        self.wrong: list[str] = []  # faults of files that therefore admit nobody
        self.all: dict[str, MemberCertificate] = {}  # by name, with expired members
        self._seen: object = None
        self._until_s = -math.inf  # time of the next expiry
        self._folder_seen: object = None
        self._lock = threading.Lock()  # the authenticator's thread reads the folder too
        check_members(folder)
        _, wrong = read_members(folder)
        if wrong:
            raise UsageError(wrong[0])
        self.refresh()

    def refresh(self) -> int:
        """Read the folder again if it has changed or a member has expired (R3). Return the version."""
        with self._lock:
            folder_seen, seen = _stamp(self.folder), _folder_stamp(self.folder)
            if seen != self._seen or time.time() >= self._until_s:
                members, self.wrong = read_members(self.folder)
                self.all = {member.name: member for member in members}
                valid = {name: member for name, member in self.all.items() if not member.expired}
                if not self.version or valid != self._by_name:
                    self.version += 1
                self._by_name = valid
                self._by_key = {member.public: member for member in valid.values()}
                self._heard = {}  # last: a look-up that misses the table finds the present members
                self._until_s = min(
                    (member.expires.timestamp() for member in valid.values() if member.expires), default=math.inf
                )
                self._seen = seen
            self._folder_seen = folder_seen
            return self.version

    def admits(self, public: str) -> bool:
        """Return whether a key belongs to a member now."""
        if _stamp(self.folder) != self._folder_seen or time.time() >= self._until_s:
            self.refresh()
        return public in self._by_key

    def knows(self, public: str) -> bool:
        """Return whether a key belonged to a member when the folder was last read."""
        return public in self._by_key

    def sender(self, identity: bytes, public: str) -> MemberCertificate:
        """Return the member that sent a message, by the connection's identity and key (R2).

        Raises ProtocolError for a key of no member, or an identity with a different name.
        """
        heard = self._heard
        member = heard.get((identity, public))
        if member is None:
            member = self._by_key.get(public)
            claimed = identity.partition(b"/")[0].decode(errors="replace")
            if member is None:
                raise ProtocolError(f"a message of {claimed!r} came with a key of no present member")
            if member.name != claimed:
                raise ProtocolError(f"a message of {member.name!r} names {claimed!r} as its sender")
            if len(heard) >= _HEARD:
                heard.clear()
            heard[identity, public] = member
        return member

    def public_of(self, name: str) -> str:
        """Return the key of a member. Empty: no member has this name."""
        member = self._by_name.get(name)
        return "" if member is None else member.public

    def key_of(self, name: str) -> str:
        """Return the key that a member proves when dialled. Raises UsageError if no member has this name."""
        if not self.public_of(name):
            self.refresh()
        if not (public := self.public_of(name)):
            raise UsageError(
                f"there is no valid certificate of {name!r} in {self.folder}; thalweg keys allow {name}{PUBLIC}"
                f" --members {self.folder}"
            )
        return public


def _stamp(path: Path | os.DirEntry[str]) -> tuple[int, ...] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size


def _folder_stamp(folder: Path) -> object:
    """Return a value that differs if files of the folder have changed. After a recent change it equals nothing.

    A file that changes twice within ``TICK_S`` may have the same dates after both changes.
    """
    try:
        with os.scandir(folder) as entries:
            files = {entry.name: _stamp(entry) for entry in entries}
            young_ns = (time.time() - TICK_S) * 1e9
            return object() if any(seen and seen[2] > young_ns for seen in files.values()) else files
    except OSError:
        return None


class Keys(msgspec.Struct, frozen=True):
    """Own certificate of a host or client, with the secret key and the accepted members."""

    own: MemberCertificate
    secret: str
    members: Members

    @classmethod
    def load(cls, path: Path, members: Path | None = None, role: Role | None = None) -> Keys:
        """Return the keys from a secret certificate and a members folder, by default the folder beside the file.

        Raises UsageError for unusable files, for a file that other users can read, and for a different role.
        """
        own, secret = _read_safe(path, "secret certificate", secret=True)
        try:
            matches = zmq.curve_public(secret.encode()).decode() == own.public
        except (ValueError, zmq.ZMQError):
            matches = False
        if not matches:
            raise UsageError(f"{path} does not hold a key pair; make one with thalweg keys new")
        if own.expired:
            raise UsageError(f"the certificate {path} expired on {own.until}; make one with thalweg keys new")
        if role not in (None, own.role):
            raise UsageError(f"{path} is the certificate of a {own.role}; make one with thalweg keys new --role {role}")
        known = Members(members or path.parent / MEMBERS)
        for member in known.all.values():
            if member.public == own.public and member.name != own.name:
                same = f"{member.name}{PUBLIC} in {known.folder} holds the key of {own.name!r}"
                raise UsageError(f"{same}, which proves one name only; remove the file")
        return cls(own, secret, known)


def check_open(keys: Keys | None, endpoint: str, *, insecure: bool) -> None:
    """Raise UsageError for an endpoint that would be open to strangers, unless ``insecure``.

    Raises CapabilityError for an endpoint that other machines can dial on a system where no ``Guard`` can watch.
    """
    if endpoint.startswith("ipc://"):  # a Unix socket is protected by its folder
        return
    address = endpoint.removeprefix("tcp://").rpartition(":")[0]
    loopback = address.startswith("127.") or address in ("localhost", "[::1]")
    if not loopback:
        check_linux(f"to listen at {endpoint}, where other machines can dial, needs", "listen at tcp://127.0.0.1:*")
    if keys is not None or insecure:
        return
    raise UsageError(
        f"without keys {endpoint} is open to {'every user of this machine' if loopback else 'all who reach it'};"
        " give --keys FILE, or listen on a Unix socket (ipc:///FOLDER/NAME), or say --insecure (of a Client: keys,"
        " listen, insecure)"
    )


def secure_router(socket: zmq.Socket[bytes], keys: Keys | None, endpoint: str, *, insecure: bool) -> None:
    """Make a socket demand a member's key before it is bound. Refuse an open endpoint without keys (``check_open``)."""
    check_open(keys, endpoint, insecure=insecure)
    if keys is None:
        return
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    socket.setsockopt_string(zmq.CURVE_SECRETKEY, keys.secret)
    socket.setsockopt_string(zmq.CURVE_PUBLICKEY, keys.own.public)
    socket.setsockopt_string(zmq.ZAP_DOMAIN, _DOMAIN)


def start_authenticator(context: zmq.Context[zmq.Socket[bytes]], members: Members) -> ThreadAuthenticator:
    """Start a thread that admits only members to the context's servers. Stop it before the context."""
    from zmq.auth.thread import ThreadAuthenticator

    authenticator = ThreadAuthenticator(context)
    authenticator.start()

    def admit(domain: str, key: bytes) -> bool:
        return members.admits(key.decode())

    authenticator.configure_curve_callback(domain=_DOMAIN, credentials_provider=SimpleNamespace(callback=admit))
    return authenticator


def secure_dealer(socket: zmq.Socket[bytes], keys: Keys | None, host: str) -> None:
    """Make a socket that dials ``host`` prove its own key, and demand the key of ``host``.

    Raises UsageError if there is no certificate of ``host``.
    """
    if keys is not None:
        socket.setsockopt_string(zmq.CURVE_SERVERKEY, keys.members.key_of(host))
        socket.setsockopt_string(zmq.CURVE_PUBLICKEY, keys.own.public)
        socket.setsockopt_string(zmq.CURVE_SECRETKEY, keys.secret)


def check_leader(
    keys: Keys, sender: MemberCertificate, message: m.Install | m.Remove | m.AddMember | m.InstallSubscriber
) -> None:
    """Raise ProtocolError if the sender may not lead runs (R4), or a host of the run is no member here."""
    if sender.role != "client":
        raise ProtocolError(f"{sender.name!r} has the certificate of a host, which leads no runs")
    if keys.own.role == "client" and not isinstance(message, m.InstallSubscriber):  # requested here, or ignored
        raise ProtocolError(f"{keys.own.name!r} is a client, which takes part in no runs of {sender.name!r}")
    peers: tuple[m.Peer, ...] = ()
    match message:
        case m.Install() | m.InstallSubscriber():
            peers = (message if isinstance(message, m.Install) else message.install).peers
        case m.AddMember():
            peers = (message.peer,)
    for peer in peers:
        if peer.name != keys.own.name:
            try:
                keys.members.key_of(peer.name)
            except UsageError as error:
                raise ProtocolError(str(error)) from None
