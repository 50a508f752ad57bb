"""Private folders of hosts: the folders that may be private, and the view of processes on hosts and on the machine."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from beds import need_own_folders, use_user_namespaces
from patience import patience

from thalweg import CapabilityError, Testbed, UsageError
from thalweg.emulation.kernel import folders
from thalweg.emulation.kernel.folders import read_private, usable_private
from thalweg.emulation.testbeds.netns import NetnsTestbed
from thalweg.emulation.testbeds.open import open_testbed
from thalweg.middleware.platform import python
from thalweg.middleware.platform.python import PYTHON

# --- which folders may be a host's own ----------------------------------------------------------------


def test_private_folders_may_be_written_with_or_without_the_first_slash() -> None:
    assert read_private(["run", "/tmp/", "var/lib/no-such", Path("/run"), "/dev/shm"]) == (
        "/run", "/tmp", "/var/lib/no-such", "/dev/shm",
    )  # fmt: skip
    assert read_private([]) == ()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (["/"], "/ has all folders of the machine; name some of them, such as run or tmp"),
        (["//"], "/ has all folders of the machine; name some of them, such as run or tmp"),
        (["proc"], "/proc cannot be a host's own, as every program needs /proc; leave it out"),
        (["/usr/local"], "/usr/local cannot be a host's own, as every program needs /usr; leave it out"),
        (["/dev"], "/dev cannot be a host's own, as every program needs /dev; leave it out"),
        (["/dev/shmem"], "/dev/shmem cannot be a host's own, as every program needs /dev; leave it out"),
        ([""], "'' is no folder that a host can have of its own; write run, tmp or /var/lib/NAME"),
        (
            ["run/../proc"],
            "'run/../proc' is no folder that a host can have of its own; write run, tmp or /var/lib/NAME",
        ),
        (["r\nun"], "'r\\nun' is no folder that a host can have of its own; write run, tmp or /var/lib/NAME"),
        ("run,tmp", "private is a list of folders, not the text 'run,tmp'; write ['run', 'tmp']"),
    ],
)
def test_an_impossible_private_folder_is_refused_in_a_single_line(wrong: list[str], says: str) -> None:
    with pytest.raises(UsageError) as error:
        read_private(wrong)
    assert str(error.value) == says


def test_private_folders_are_compared_after_resolving_links_and_must_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    own, link, system = tmp_path / "own", tmp_path / "link", tmp_path / "system"
    own.mkdir()
    (own / "inner").mkdir()
    link.symlink_to(own)
    system.symlink_to("/usr")
    assert usable_private([str(own), str(link)]) == (str(own.resolve()),)
    with pytest.raises(UsageError, match=r"no-such cannot be a host's own, as this machine has no such folder; make"):
        usable_private([str(own / "no-such")])
    with pytest.raises(UsageError, match=r"inner is in .*/own, which is a host's own already; leave it out"):
        usable_private([str(own / "inner"), str(link)])
    with pytest.raises(UsageError, match=r"^/usr cannot be a host's own"):
        usable_private([str(system)])


def test_a_folder_with_the_interpreter_thalweg_or_the_working_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work" / "deeper"
    work.mkdir(parents=True)
    monkeypatch.chdir(work)
    for folder in (work, work.parent):
        with pytest.raises(
            UsageError, match=r"as it has the folder from which this is run \(.*/deeper\); leave it out"
        ):
            usable_private([str(folder)])
    monkeypatch.chdir("/")
    monkeypatch.setattr(folders, "SYSTEM", ())
    with pytest.raises(UsageError, match=r"as it has the interpreter \("):
        usable_private([os.path.realpath(sys.prefix)])
    monkeypatch.setattr(python, "PYTHON", "/elsewhere/python")
    monkeypatch.setattr(sys, "prefix", "/elsewhere")
    monkeypatch.setattr(sys, "base_prefix", "/elsewhere")
    package = Path(os.path.abspath(folders.__file__)).parents[2]
    for folder in (package, package / "middleware"):
        with pytest.raises(UsageError, match=r"as it has Thalweg \("):
            usable_private([folder])


def test_the_records_of_a_run_may_not_lie_in_a_private_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    bed = NetnsTestbed(["a"], private=[str(tmp_path)])
    with pytest.raises(UsageError, match=r"of which each host has its own \(private\), .* write it elsewhere"):
        bed.outbox(tmp_path / "records")
    assert bed.outbox(Path("/elsewhere")) == Path("/elsewhere")


def test_containers_can_have_private_folders_and_loopback_cannot() -> None:
    assert open_testbed("docker", ["a"], private=["run"]).backend == "docker"
    with pytest.raises(UsageError, match="/proc cannot be a host's own"):
        open_testbed("docker", ["a"], private=["proc"])
    with pytest.raises(UsageError, match="the loopback testbed has no option 'private'; it has none"):
        open_testbed("loopback", ["a"], private=["run"])


# --- on real hosts ------------------------------------------------------------------------------------

SERVER = """
import os, socket, sys
with open("/run/server.pid", "x") as file:
    file.write(str(os.getpid()))
server = socket.socket(socket.AF_UNIX)
server.bind("/run/server.sock")
server.listen()
print("up", flush=True)
while True:
    server.accept()[0].sendall(sys.argv[1].encode())
"""
ASK = "import socket; s = socket.socket(socket.AF_UNIX); s.connect('/run/server.sock'); print(s.recv(99).decode())"


@pytest.fixture(params=["root", "user"])
def rights(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Rights of the testbed: the rights of the user who runs the tests, or the rights of an ordinary user."""
    need_own_folders()
    if request.param == "user":
        use_user_namespaces(monkeypatch)
    return str(request.param)


def names_here() -> list[str]:
    """Return the paths of the named network namespaces on the machine, including the folder itself."""
    return [os.path.join(root, name) for root, _, names in os.walk(folders.NETNS) for name in ("", *names)]


@pytest.mark.netns
@pytest.mark.program("ip")
@pytest.mark.parametrize("private", [(), ("run",)])
def test_a_named_namespace_stays_on_its_host(rights: str, private: tuple[str, ...]) -> None:
    before = names_here()
    with Testbed.open("netns", ["a", "b"], private=private) as bed:
        for host in ("a", "b"):
            bed.run(host, ["ip", "netns", "add", "blue"], check=True)
        bed.run("b", ["ip", "netns", "add", "red"], check=True)
        assert {host: bed.run(host, ["ip", "netns", "list"]).stdout.split() for host in bed.hosts} == {
            "a": ["blue"], "b": ["red", "blue"],
        }  # fmt: skip
        inside = bed.run("a", ["ip", "netns", "exec", "blue", "ip", "-o", "link"], check=True).stdout
        assert " lo: " in inside
        assert "eth0" not in inside
        assert names_here() == before
    assert names_here() == before


OPEN = """
import os, sys
from thalweg import Testbed
before = sorted(os.listdir("/run"))
with Testbed.open("netns", ["a", "b"]) as bed:
    for host in bed.hosts:
        bed.run(host, ["ip", "netns", "add", "blue"], check=True)
        print(*bed.run(host, ["ip", "netns", "list"]).stdout.split())
    bed.run("a", ["sh", "-c", "echo more >>/run/file; echo new >/run/folder/new; mkdir -p /run/empty"], check=True)
    print(*sorted(os.listdir("/run/netns") if os.path.isdir("/run/netns") else ()))
    print(bed.run("b", ["cat", "/run/file", "/run/link/new"], check=True).stdout.split())
assert sorted(os.listdir("/run")) == before
print(open("/run/file").read().split())
"""


@pytest.mark.netns
@pytest.mark.program("ip", "unshare", "mount")
@pytest.mark.parametrize(("as_user", "names"), [(True, None), (False, "of-the-machine")])
def test_names_of_namespaces_stay_on_hosts_with_or_without_a_folder_on_the_machine(
    as_user: bool, names: str | None
) -> None:
    """Hosts share the rest of /run with the machine, even if the machine has no /run/netns."""
    need_own_folders()
    user = ["--user", "--map-root-user"] if as_user or os.geteuid() != 0 else []
    setup = "mkdir /run/netns; touch /run/netns/of-the-machine;" if names else ""
    script = (
        f"mount -t tmpfs none /run; mkdir /run/folder /run/empty; ln -s folder /run/link; echo one >/run/file; {setup}"
    )
    command = ["unshare", "--mount", *user, "sh", "-ec", f'{script} exec "$@"', "_", PYTHON, "-c", OPEN]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(60), check=False)
    assert done.stdout.splitlines() == ["blue", "blue", names or "", "['one', 'more', 'new']", "['one', 'more']"], done


@pytest.mark.netns
def test_two_servers_have_the_same_pid_file_and_socket_in_private_folders(rights: str) -> None:
    with Testbed.open("netns", ["a", "b"], private=["run", "/tmp"]) as bed:
        for folder in ("/run", "/tmp"):
            assert bed.run("a", ["ls", "-A", folder]).stdout.split() == _of_variables(folder)
        servers = [bed.start(host, [PYTHON, "-c", SERVER, host], stdout=subprocess.PIPE) for host in bed.hosts]
        for server in servers:
            assert server.stdout is not None
            assert server.stdout.readline() == b"up\n"
        answers = [bed.run(host, [PYTHON, "-c", ASK], check=True).stdout.strip() for host in ("a", "b", "a")]
        assert answers == ["a", "b", "a"]
        bed.run("a", ["sh", "-c", "echo a >/tmp/thalweg-own"], check=True)
        assert bed.run("a", ["cat", "/tmp/thalweg-own"]).stdout == "a\n"
        assert "thalweg-own" not in bed.run("b", ["ls", "-A", "/tmp"]).stdout.split()
        assert not os.path.exists("/tmp/thalweg-own")
        assert not os.path.exists("/run/server.pid")
        assert bed._bed.status()["private"] == ["/run", "/tmp"]


def _of_variables(folder: str) -> list[str]:
    """Return the names at the top of a new private folder."""
    paths = (os.path.normpath(os.environ.get(variable, "/")) for variable in folders.VARIABLES)
    return sorted({path[len(folder) + 1 :].split("/")[0] for path in paths if path.startswith(f"{folder}/")})


@pytest.mark.netns
def test_a_private_folder_has_the_rights_of_the_machines_folder_and_the_folders_of_variables(
    rights: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    own.chmod(0o3775)
    (own / "of-the-machine").touch()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(own / "runtime"))
    monkeypatch.setenv("TMPDIR", str(own / "a/b"))
    with Testbed.open("netns", ["a"], private=[str(own), "var"]) as bed:
        assert bed.run("a", ["stat", "-c", "%a", str(own)]).stdout == "3775\n"
        assert sorted(bed.run("a", ["ls", "-A", str(own)]).stdout.split()) == ["a", "runtime"]
        assert bed.run("a", [PYTHON, "-c", "import tempfile; print(tempfile.mkdtemp())"]).stdout.startswith(
            f"{own}/a/b/"
        )
        assert set(bed.run("a", ["ls", "-A", "/var"]).stdout.split()) <= {"run", "lock"}
        bed.run("a", ["touch", str(own / "of-the-host")], check=True)
    assert [path.name for path in own.iterdir()] == ["of-the-machine"]


@pytest.mark.netns
def test_a_command_in_a_folder_that_the_host_lacks_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    need_own_folders()
    with Testbed.open("netns", ["a"], private=[str(tmp_path)]) as bed:
        with pytest.raises(
            UsageError, match=r"^cannot run 'pwd' on 'a' in /.*/here: No such file or directory, as the"
        ):
            bed.run("a", ["pwd"], cwd=tmp_path / "here")
        with pytest.raises(UsageError, match=r"^cannot run 'no-such-program' on 'a': No such file or directory$"):
            bed.run("a", ["no-such-program"])
        assert bed.run("a", ["pwd"], cwd=tmp_path).stdout == f"{tmp_path}\n"


@pytest.fixture
def launcher(rights: str) -> Iterator[subprocess.Popen[str]]:
    script = f"""
        import signal
        from thalweg import Testbed
        from thalweg.emulation.supervisor.client import start_isolated
        from thalweg.emulation.testbeds import netns
        netns.start_isolated = lambda *of: start_isolated(*of, as_user={rights == "user"})
        bed = Testbed.open("netns", ["a", "b"], private=["run"])
        for host in bed.hosts:
            print(bed.run(host, ["readlink", "/proc/self/ns/mnt"]).stdout.strip(), flush=True)
        print(bed._bed.supervisor.process.pid, flush=True)
        signal.pause()
    """
    with subprocess.Popen([PYTHON, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


@pytest.mark.netns
def test_private_folders_end_with_a_killed_launcher(launcher: subprocess.Popen[str]) -> None:
    assert launcher.stdout is not None
    of_a, of_b, supervisor = (launcher.stdout.readline().strip() for _ in range(3))
    assert of_a.startswith("mnt:")
    assert of_a != of_b
    handle = os.pidfd_open(int(supervisor))
    launcher.send_signal(signal.SIGKILL)
    assert select.select([handle], [], [], patience(10))[0]
    os.close(handle)
    for process in Path("/proc").glob("[0-9]*/ns/mnt"):
        try:
            assert os.readlink(process) not in (of_a, of_b)
        except OSError:  # it has ended, or is another user's
            continue


@pytest.mark.netns
def test_private_folders_are_refused_where_mounts_are_forbidden(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The supervisor starts with a library that refuses mounts, as a container's profile does."""
    (tmp_path / "sitecustomize.py").write_text(
        "from thalweg.emulation.kernel import calls\n"
        "def refuse(*_): raise PermissionError(1, 'mount: Operation not permitted')\n"
        "calls.mount = refuse\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(CapabilityError) as error:
        Testbed.open("netns", ["a"], private=["run"])
    assert str(error.value) == (
        "hosts cannot have /run of their own here (mount: Operation not permitted); leave private out, or use --kernel"
        " uml or docker"
    )
    with Testbed.open("netns", ["a"]) as bed:
        assert bed._bed.unnamed == "mount: Operation not permitted"
        assert bed.run("a", ["true"]).returncode == 0
