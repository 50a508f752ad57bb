"""Permissions of single clients to run code and read folders on a host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from flows import chain
from runtime_codes import ALLOW

from thalweg.middleware.client.client import Client
from thalweg.middleware.client.cluster import LocalCluster
from thalweg.middleware.dataflow import Code, Dataflow
from thalweg.middleware.errors import MoveRefused, OperatorError, RunError, UsageError
from thalweg.middleware.grants import ALL, Grants, read_packages, read_roots
from thalweg.middleware.loading import DEFAULT_ALLOW, MAX_PICTURE_BYTES, Allowed, load_code
from thalweg.middleware.shell.security import MEMBERS, Keys, Role, new_certificate, write_certificate
from thalweg.middleware.shell.shell import Shell, ShellConfig

MIX = chain(Code("scenes", {"site": 0, "sites": 1, "seed": 1}), Code("runtime_codes:Mix"))


def test_permissions_of_a_client_add_to_the_permissions_of_all_clients(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "more").mkdir()
    packages = read_packages(["json", "alice=csv", "alice=xml.dom", "bob=csv"])
    assert packages == {ALL: (*DEFAULT_ALLOW, "json"), "alice": ("csv", "xml.dom"), "bob": ("csv",)}
    roots = read_roots([str(tmp_path / "data"), f"alice={tmp_path / 'more'}"])
    grants = Grants(packages, roots)
    every = (str(tmp_path / "data"),)
    assert grants.of("alice") == Allowed(
        (*DEFAULT_ALLOW, "json", "csv", "xml.dom"), (*every, str(tmp_path / "more")), MAX_PICTURE_BYTES, "alice"
    )
    assert grants.of("bob").packages == (*DEFAULT_ALLOW, "json", "csv")
    for stranger in ("carol", "", "Alice", "alice "):
        assert (grants.of(stranger).packages, grants.of(stranger).data_roots) == ((*DEFAULT_ALLOW, "json"), every)
    assert not Grants(read_packages(["json"]), read_roots([str(tmp_path)])).tells_clients_apart
    assert Grants(read_packages([])).of("alice") == Allowed(DEFAULT_ALLOW, ())


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("alice=", "'alice=' names client 'alice' and no package or folder; give CLIENT=PACKAGE or CLIENT=FOLDER"),
        ("alice=nosuch", "no package or module 'nosuch' is found here"),
        ("=json", "no package or module '=json' is found here"),
    ],
)
def test_an_invalid_permission_is_refused_with_the_reason(setting: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        read_packages([setting])


def test_a_folder_with_an_equals_sign_is_accepted_by_a_path_with_a_slash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "year=2026").mkdir()
    monkeypatch.chdir(tmp_path)
    assert read_roots(["./year=2026"]) == {ALL: (str(tmp_path / "year=2026"),)}
    with pytest.raises(UsageError, match="'2026' is not a folder"):
        read_roots(["year=2026"])


def test_a_refusal_of_code_or_of_a_folder_names_the_client(tmp_path: Path) -> None:
    grants = Grants(read_packages([f"alice={ALLOW[0]}"]), read_roots([f"alice={tmp_path}"]))
    load_code(Code("runtime_codes:Mix"), grants.of("alice"))
    says = "this host does not allow client 'bob' code from 'runtime_codes'; start it with --allow bob=runtime_codes"
    with pytest.raises(OperatorError, match=says):
        load_code(Code("runtime_codes:Mix"), grants.of("bob"))
    says = "this host gives client 'bob' no folder to read; start it with --data-root bob=FOLDER"
    with pytest.raises(OperatorError, match=says):
        load_code(Code("image_folder", {"folder": str(tmp_path)}), grants.of("bob"))


def test_permissions_of_single_clients_need_keys() -> None:
    with pytest.raises(UsageError, match=r"need --keys: without keys, a client's name proves nothing"):
        Shell(ShellConfig("h1", insecure=True, allow={ALL: DEFAULT_ALLOW, "alice": ALLOW}))


def make(folder: Path, name: str, role: Role) -> Path:
    made, _, secret = new_certificate(name, role, folder)
    write_certificate(folder / MEMBERS / f"{name}.key", made.text())
    return secret


@contextmanager
def shared(folder: Path) -> Iterator[dict[str, Client]]:
    """Start a host that allows code to alice and not to bob. Yield both as clients."""
    secret = make(folder, "h1", "host")
    clients = {name: make(folder, name, "client") for name in ("alice", "bob")}
    with ExitStack() as stack:
        config = ShellConfig("h1", allow={ALL: DEFAULT_ALLOW, "alice": tuple(ALLOW)})
        shell = Shell(config, keys=Keys.load(secret))
        stack.callback(shell.close)
        where = {"h1": shell.me.control}
        yield {name: stack.enter_context(Client(where, keys=keys, allow=ALLOW)) for name, keys in clients.items()}


def test_a_member_cannot_run_code_that_is_allowed_for_a_second_member(tmp_path: Path) -> None:
    with shared(tmp_path) as clients:
        assert len(list(clients["alice"].run(MIX, {"o": "h1"}, partitions=3))) == 3
        with pytest.raises(RunError, match="does not allow client 'bob' code from 'runtime_codes'"):
            list(clients["bob"].run(MIX, {"o": "h1"}, partitions=3))
        assert len(list(clients["alice"].run(MIX, {"o": "h1"}, partitions=3))) == 3


def test_an_operator_does_not_move_to_a_host_that_forbids_the_code_to_the_client(tmp_path: Path) -> None:
    with shared(tmp_path) as clients:
        run = clients["bob"].run(MIX, {"o": "bob"}, partitions=60)
        assert next(run).index == 0
        asked = run.move({"o": "h1"})
        rest = [partition.index for partition in run]
        with pytest.raises(MoveRefused, match="does not allow client 'bob' code from 'runtime_codes'"):
            asked.result(10)
        assert rest == list(range(1, 60))


def test_the_error_about_a_forbidden_class_of_a_value_names_the_client_as_the_refuser() -> None:
    flow = Dataflow()
    plates = flow.source(Code("runtime_codes:Gives", {"kind": "struct", "every": 1}), at="h1")
    flow.sink("plates", plates)
    with LocalCluster(1, allow=ALLOW) as cluster, Client(cluster) as client:
        says = r"this client does not allow code from 'runtime_codes'; give Client\(allow=\['runtime_codes'\]\)"
        with pytest.raises(RunError, match=says):
            list(client.run(flow, {}, partitions=2))
