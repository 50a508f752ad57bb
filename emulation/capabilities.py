"""Capabilities of this machine, found by trying: namespaces, queueing disciplines, Docker, User-Mode Linux."""

from __future__ import annotations

import platform
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import msgspec

from thalweg.emulation.containers import engine
from thalweg.emulation.links.units import MANAGED
from thalweg.emulation.supervisor import requests
from thalweg.emulation.supervisor.client import start_isolated
from thalweg.emulation.uml import registers
from thalweg.emulation.uml.files import NEEDED, find_kernel, find_memory
from thalweg.middleware.errors import CapabilityError, TestbedError, install
from thalweg.middleware.platform import memory_bytes, needs_linux, on_linux, usable_processors
from thalweg.middleware.platform.packages import find_package, install_line
from thalweg.middleware.platform.python import find_program

NETNS_FEATURES = ("bridge", "veth", "htb", "stab", "bfifo", "u32")  # needs of the netns testbed
ENGINE_TIMEOUT_S = 1.0
SYSTEM_FOLDERS = ("/usr/sbin", "/sbin")  # programs for root, missing on the PATH of an ordinary user


UML_RIGHTS = "a program there cannot reach this machine's kernel, but can reach all files that you can"


class Capability(msgspec.Struct, frozen=True):
    """Result of one trial. ``detail`` has the finding, or the reason of the failure and a remedy."""

    name: str
    works: bool
    detail: str


class Capabilities(msgspec.Struct, frozen=True):
    """Results of the trials on a machine. ``cpus``: processors that this process may use."""

    netns: Capability
    netem: Capability
    queues: Capability
    host_rates: Capability
    user_namespaces: Capability
    docker: Capability
    uml: Capability
    cpus: int
    memory_bytes: int

    def listed(self) -> tuple[Capability, ...]:
        return (
            self.netns, self.netem, self.queues, self.host_rates, self.user_namespaces, self.docker, self.uml
        )  # fmt: skip


def probe() -> Capabilities:
    """Try every feature, in well under two seconds. Without Linux nothing is tried, and nothing works."""
    if not on_linux():
        return _elsewhere()
    with ThreadPoolExecutor() as pool:
        kernel, users, docker = pool.submit(_kernel), pool.submit(_user_namespaces), pool.submit(_docker)
        netns, netem, queues, host_rates = kernel.result()
        return Capabilities(
            netns=netns,
            netem=netem,
            queues=queues,
            host_rates=host_rates,
            user_namespaces=users.result(),
            docker=docker.result(),
            uml=_uml(),
            cpus=usable_processors(),
            memory_bytes=memory_bytes(),
        )


def _elsewhere() -> Capabilities:
    """Return the capabilities without Linux: none works.

    Every testbed needs the Linux kernel. Containers need it too: their links are shaped from outside.
    """
    return Capabilities(
        netns=Capability("netns", False, needs_linux("network namespaces need")),
        netem=Capability("netem", False, needs_linux("netem needs")),
        queues=Capability(QUEUES, False, needs_linux("managed queues need")),
        host_rates=Capability(HOST_RATES, False, needs_linux("rates of hosts need")),
        user_namespaces=Capability("user namespaces", False, needs_linux("user namespaces need")),
        docker=Capability("docker", False, needs_linux("testbeds of containers need")),
        uml=Capability("user-mode linux", False, needs_linux(NEEDED)),
        cpus=usable_processors(),
        memory_bytes=memory_bytes(),
    )


def _kernel() -> tuple[Capability, Capability, Capability, Capability]:
    """Try namespaces with shaped links, and netem, managed queues and rates of hosts in a namespace."""
    try:
        supervisor = start_isolated("probe")
    except CapabilityError as error:
        without = (_no_netem(), NO_QUEUES, NO_HOST_RATES)
        rest = [f"there is no namespace for the test; {remedy}" for remedy in without]
        names = ("netem", QUEUES, HOST_RATES)
        netem, queues, rates = (Capability(name, False, why) for name, why in zip(names, rest, strict=True))
        return Capability("netns", False, str(error)), netem, queues, rates
    try:
        verdict: dict[str, str] = supervisor.client.call(requests.Probe())
    except TestbedError as error:
        netem, queues, rates = (
            Capability(name, False, why)
            for name, why in (("netem", _no_netem()), (QUEUES, NO_QUEUES), (HOST_RATES, NO_HOST_RATES))
        )
        return Capability("netns", False, str(error)), netem, queues, rates
    finally:
        supervisor.close()
    missing = [f"{name} ({verdict[name]})" for name in NETNS_FEATURES if verdict[name]]
    if missing:
        detail = f"the kernel lacks {', '.join(missing)}; load those modules, or use --testbed loopback"
    else:
        detail = f"namespaces as {supervisor.mode}, with {', '.join(NETNS_FEATURES)}; {_rights(supervisor.mode)}"
    refused = verdict["netem"]
    has = [name for name in MANAGED if not verdict[name]]
    ifb = verdict["ifb"]
    return (
        Capability("netns", not missing, detail),
        Capability("netem", not refused, f"{refused}: {_no_netem()}" if refused else "delay, jitter and loss on links"),
        Capability(QUEUES, bool(has), f"{', '.join(has)} with ECN" if has else NO_QUEUES),
        Capability(HOST_RATES, not ifb, f"{ifb}: {NO_HOST_RATES}" if ifb else "up_rate and down_rate of hosts"),
    )


QUEUES, HOST_RATES = "managed queues", "host rates"
NO_QUEUES = (
    f"links have fifo queues; for {', '.join(MANAGED)} load their modules (modprobe sch_fq_codel …), or run inside a"
    " User-Mode Linux kernel"
)
NO_HOST_RATES = (
    "hosts have a down_rate and no up_rate; load ifb, sch_ingress and act_mirred (modprobe), or run inside a User-Mode"
    " Linux kernel"
)


def _rights(mode: str) -> str:
    """Return the rights of a program in a namespace testbed on the machine, and the safer way."""
    if mode.startswith("root"):
        return (
            "a program on a host is root on this machine, with all its files: run code that you do not trust with"
            " --testbed docker, or as an ordinary user, or keep it from this kernel with --kernel uml"
        )
    return "a program on a host can do to this machine's files what you can: run code that you do not trust with docker"


def _no_netem() -> str:
    """Return the effect of a missing netem on links, and the steps to get netem here."""
    modules = f"linux-modules-extra-{platform.release()}"  # a separate package of Ubuntu has the module
    steps = [install_line("the kernel's further modules", modules)] if find_package(modules) else []
    if find_program("modprobe", *SYSTEM_FOLDERS) is None:
        steps.append(install_line("modprobe", "kmod"))
    steps.append("load sch_netem (modprobe sch_netem)")
    return f"links have rates only; for delays {', '.join(steps)}, or run inside a User-Mode Linux kernel"


def _user_namespaces() -> Capability:
    name = "user namespaces"
    try:
        supervisor = start_isolated("probe", as_user=True)
    except CapabilityError:
        remedy = "sysctl -w user.max_user_namespaces=15000 kernel.apparmor_restrict_unprivileged_userns=0"
        return Capability(name, False, f"ordinary users cannot have netns testbeds; allow it with {remedy}")
    supervisor.close()
    return Capability(name, True, "netns testbeds without root")


def _docker() -> Capability:
    """Try Docker by a request for the engine's version, over HTTP as in the Docker API (GET /version)."""
    where = engine.endpoint()
    try:
        with engine.dial(ENGINE_TIMEOUT_S) as connection:
            connection.sendall(b"GET /version HTTP/1.0\r\nHost: docker\r\n\r\n")
            answer = b""
            while piece := connection.recv(1 << 16):
                answer += piece
        version = msgspec.json.decode(answer.partition(b"\r\n\r\n")[2], type=dict[str, object]).get("Version")
    except PermissionError:
        return Capability("docker", False, engine.not_permitted())
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        steps = ["start Docker", "join the group docker"]
        if find_program("dockerd", *SYSTEM_FOLDERS) is None:
            steps.insert(0, install_line("Docker", "docker.io", "docker-ce"))
        return Capability("docker", False, f"no engine at {where} ({why}); {', '.join(steps)}")
    if find_spec("docker") is None:
        return Capability("docker", False, f"engine {version} at {where}, but not its library: {install('docker')}")
    rights = "hosts have no capabilities and none of this machine's files: the safer place for code you do not trust"
    return Capability("docker", True, f"engine {version} at {where}; {rights}")


def _uml() -> Capability:
    """Look for a User-Mode Linux kernel, its modules, and room for its memory. Booting would take seconds."""
    name = "user-mode linux"
    try:
        files = find_kernel()
        find_memory()
        registers.library()
    except CapabilityError as error:
        return Capability(name, False, f"{error} (only needed for delays on a kernel without netem)")
    return Capability(
        name, True, f"{files.version} at {files.binary}: --kernel uml gives netns testbeds delays; {UML_RIGHTS}"
    )
