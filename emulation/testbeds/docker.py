"""Docker testbed, launcher's side: hosts are containers of Thalweg's image on an internal network of their own.

A supervisor on this machine shapes the links from outside (``containers.world``). It starts before the containers and
is attached to this process. When this process ends for any reason, the supervisor removes containers and network.
"""

from __future__ import annotations

import ipaddress
import os
import re
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Unpack

import psutil

from thalweg.emulation.containers import engine
from thalweg.emulation.containers.image import check_code, default_image
from thalweg.emulation.containers.limits import Containers
from thalweg.emulation.containers.process import ContainerProcess
from thalweg.emulation.kernel.names import SUBNET_6, ipv6_beside, plain
from thalweg.emulation.supervisor import requests
from thalweg.emulation.supervisor.client import Command, StartedSupervisor, TestbedProcess, start_plain
from thalweg.emulation.supervisor.requests import Container, LaunchedProcess, Plug
from thalweg.emulation.testbeds.netns import SUBNET, host_addresses, next_subnet
from thalweg.emulation.testbeds.testbed import NetworkOptions, Testbed
from thalweg.middleware.errors import CapabilityError, TestbedError, UsageError
from thalweg.middleware.network.view import NET

PORT = 7800
PROCESSES = 512  # limit of processes in a container
MAX_HOSTS = 1000  # ports of one Linux bridge, less the engine's own
SUBNETS_TRIED = 100
TOGETHER = 4  # containers created at once. More do not start sooner on a few cores
OUTBOX = "/home/thalweg/out"
PYTHON = "/opt/thalweg/bin/python"
IDLE = ("sleep", "infinity")
ATTACH_S, OUTBOX_S = 120.0, 60.0
SETTLE_S = 2


class DockerTestbed(Testbed):
    """Testbed whose hosts are containers. It needs an engine on this machine, and root for the shaping."""

    backend: ClassVar[str] = "docker"

    def __init__(
        self,
        hosts: Sequence[str],
        run_id: str | None = None,
        *,
        subnet: str | None = None,
        containers: Containers | None = None,
        **network: Unpack[NetworkOptions],
    ) -> None:
        """Check the options. ``network``: as for ``Testbed``. ``containers``: image and limits of the hosts.

        ``subnet``: the preferred subnet. If it is in use, the testbed gets another. Every further network has a subnet
        of the same size.
        """
        super().__init__(hosts, run_id, **network)
        if len(hosts) > MAX_HOSTS:
            raise UsageError(f"{len(hosts)} hosts are asked for, but a testbed of containers has at most {MAX_HOSTS}")
        self._asked = containers or Containers()
        self._asked.check(hosts)
        self.subnet = subnet or SUBNET
        host_addresses([*hosts, "gateway"], self.subnet)
        self.image = self._asked.image or default_image()
        self._marks: dict[str, str] = {}
        self._containers: dict[str, Any] = {}
        self._outboxes: list[Path] = []

    # --- up and down ----------------------------------------------------------------------------------

    def _start(self, listener: socket.socket | None) -> StartedSupervisor:
        docker, client = engine.sdk()
        try:
            client.images.get(self.image)
        except docker.errors.ImageNotFound:
            raise CapabilityError(
                f"the engine has no image {self.image}; make it with: thalweg testbed build, or name one with --image"
            ) from None
        if self._asked.same_code:
            check_code(client, self.image)
        started = start_plain(self.run_id, listener)
        try:
            with engine.talking(f"making the containers of testbed {self.run_id}"):
                started.client.call(requests.OwnContainers())
                self._marks = engine.labels(self.run_id, started.process.pid)
                self.subnet = self._make_network(docker, client, self._network_names[NET], self.subnet)
                self._addresses, last = host_addresses(self._names, self.subnet), self.subnet
                for via in self._networks:
                    last = self._make_network(docker, client, self._network_names[via], next_subnet(last))
                    self.subnets[via], self._networks[via] = last, host_addresses(self._names, last)
                make = partial(self._make_container, client)
                with ThreadPoolExecutor(TOGETHER) as pool:  # after a failure no container is begun
                    self._containers = dict(zip(self._names, pool.map(make, self._names), strict=True))
                prefix_length = ipaddress.IPv4Network(self.subnet).prefixlen
                attach = requests.Attach(self._described(), prefix_length, self.layer, self.control_band)
                started.client.call(attach, timeout_s=ATTACH_S)
        except BaseException:
            try:
                with suppress(TestbedError):  # the supervisor and `down` also try to remove. The first error counts
                    engine.remove(self.run_id)
            finally:
                started.close()
            raise
        return started

    @property
    def _network_names(self) -> dict[str, str]:
        """Names of the networks at the engine, by the names in the testbed."""
        name = f"thalweg-{self.run_id}"
        return {NET: name} | {via: f"{name}-{number}" for number, via in enumerate(self._networks, 1)}

    def _make_network(self, docker: Any, client: Any, name: str, wished: str) -> str:
        """Create an internal network, with the subnet ``wished`` if it is free, and return its subnet.

        Raises TestbedError if no subnet of that size is free.
        """
        used = _subnets_in_use(client)
        wish = ipaddress.IPv4Network(wished)
        tried, last = 0, ""
        for subnet in _alternatives(wish):
            if any(subnet.overlaps(used_subnet) for used_subnet in used):
                continue
            tried += 1
            pools = [docker.types.IPAMPool(subnet=str(subnet), gateway=str(subnet.broadcast_address - 1))]
            if self.ipv6:
                first = str(subnet.network_address)
                pools.append(docker.types.IPAMPool(subnet=f"{ipv6_beside(first, subnet.prefixlen)}/{SUBNET_6}"))
            try:
                client.api.create_network(
                    name,
                    driver="bridge",
                    internal=True,
                    ipam=docker.types.IPAMConfig(pool_configs=pools),
                    enable_ipv6=self.ipv6,
                    labels=self._marks,
                )
            except docker.errors.APIError as error:
                last = str(error.explanation)
                if "overlap" in last and tried < SUBNETS_TRIED:  # an overlap that is not visible here
                    continue
                raise
            return str(subnet)
        raise TestbedError(
            f"no subnet of the size of {wish} is free ({last or 'all are in use'}); give one with --subnet"
        )

    def _make_container(self, client: Any, name: str) -> Any:
        api, ip, network = client.api, self._addresses[name], self._network_names[NET]
        known = []
        for via, addresses in {NET: self._addresses, **self._networks}.items():
            suffix = "" if via == NET else f".{via}"
            for host, address in addresses.items():
                called = [hostname for hostname in dict.fromkeys((host, plain(host))) if _HOSTNAME.fullmatch(hostname)]
                known += [f"{hostname}{suffix}:{known_ip}" for hostname in called for known_ip in self._both(address)]
        command = [*IDLE]
        if self._asked.serve:
            command = ["thalweg", "host", "--name", name, "--listen", f"tcp://{ip}:{PORT}", "--insecure"]
        limits = api.create_host_config(
            network_mode=network,
            nano_cpus=int(self._asked.cpus_of(name) * 1e9),
            mem_limit=self._asked.memory_of(name),
            memswap_limit=self._asked.memory_of(name),
            pids_limit=PROCESSES,
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
            init=True,
            extra_hosts=known,
            sysctls={"net.ipv4.ip_forward": "0"},  # as on hosts of the other backends
            binds={str(path): {"bind": str(path), "mode": "ro"} for path in self._asked.mounts},
            log_config={"Type": "json-file", "Config": {"max-size": "4m"}},
        )
        container = api.create_container(
            self.image,
            command,
            name=f"thalweg-{self.run_id}-{self._names.index(name)}-{plain(name)}",
            hostname=plain(name),
            labels={**self._marks, engine.HOST: name},
            host_config=limits,
            networking_config=api.create_networking_config({network: api.create_endpoint_config(**self._end(ip))}),
            healthcheck=None if self._asked.serve else {"test": ["NONE"]},
        )
        for via, addresses in self._networks.items():
            api.connect_container_to_network(container["Id"], self._network_names[via], **self._end(addresses[name]))
        api.start(container["Id"])
        return client.containers.get(container["Id"])

    def _both(self, address: str) -> list[str]:
        """Return an IPv4 address of a host, followed by the IPv6 address beside it if hosts have IPv6."""
        prefix_length = ipaddress.IPv4Network(self.subnet).prefixlen
        return [address, ipv6_beside(address, prefix_length)] if self.ipv6 else [address]

    def _end(self, address: str) -> dict[str, str]:
        """Return the addresses of a host as arguments of the engine's API."""
        return dict(zip(("ipv4_address", "ipv6_address"), self._both(address), strict=False))

    def _described(self) -> list[Container]:
        """Return every container's description for the supervisor. Raises TestbedError if a container has ended."""
        rows = []
        for name, container in self._containers.items():
            if not container.attrs["State"]["Running"]:
                raise TestbedError(f"the container of host {name!r} ended at once: {engine.ended(container)}")
            networks = container.attrs["NetworkSettings"]["Networks"]
            ends = [(networks[called], via) for via, called in self._network_names.items()]
            plugs = [
                Plug(end["IPAddress"], end["MacAddress"], via, end.get("GlobalIPv6Address") or "") for end, via in ends
            ]
            rows.append(Container(name, engine.own_container_pid(container), plugs))
        return rows

    def find(self, subnets: Mapping[str, str] = {}) -> None:
        """Read the containers and addresses of a running testbed. ``subnets``: of the further networks."""
        self._networks = {via: host_addresses(self._names, subnet) for via, subnet in subnets.items()}
        self._containers = engine.containers_of(self.run_id)
        self._addresses = host_addresses(self._names, self.subnet)

    def down(self, grace_s: float = 0.0) -> None:
        started = self.supervisor is not None
        try:
            if started and grace_s == 0:
                engine.remove(self.run_id)  # not left to the supervisor, as the wait for it is limited
        finally:
            super().down(grace_s)
            if started:
                engine.remove(self.run_id)

    # --- processes and files --------------------------------------------------------------------------

    @property
    def python(self) -> str:
        return PYTHON

    def _spawn(self, host: str, command: Command) -> TestbedProcess:
        variables = {key: value for key, value in (command.env or {}).items() if os.environ.get(key) != value}
        return self.execute(host, command._replace(env=variables))

    def execute(self, host: str, command: Command) -> ContainerProcess:
        """Start a process. Raises TestbedError if the host's container has ended."""
        container = self._containers.get(self._known(host))
        if container is None:
            raise TestbedError(f"the container of host {host!r} is gone; take the testbed down: thalweg testbed down")
        if why := engine.ended(container):
            raise TestbedError(f"host {host!r} has ended ({why}); take the testbed down: thalweg testbed down")
        return ContainerProcess(container, host, command)

    def spawn(self, host: str, command: Command) -> ContainerProcess:
        """Start a process as ``execute`` does. A process with a terminal gets the terminal's kind (``TERM``)."""
        kind = {"TERM": os.environ.get("TERM", "xterm")} if command.terminal is not None else {}
        return self.execute(host, command._replace(env=kind))

    def launch(self, host: str, command: Command) -> int:
        """Start a process that outlives this process. Return its number in the container."""
        return int(self._said(host, [*LAUNCH, *command.words(host)]))

    def launched(self) -> list[LaunchedProcess]:
        """Return the launched processes of the containers that still exist."""
        return [process for host in self._containers for process in read_launched(host, self._said(host, LAUNCHED))]

    def _said(self, host: str, words: Sequence[str]) -> str:
        with tempfile.TemporaryFile() as output:
            self.execute(host, Command(words, stdin=subprocess.DEVNULL, stdout=output)).wait(OUTBOX_S)
            output.seek(0)
            return output.read().decode(errors="replace")

    def fate(self, host: str) -> str:
        container = self._containers.get(host)
        if container is None:
            return "its container has been removed"
        if any(process.host == host and process.poll() == -signal.SIGKILL for process in self._processes):
            engine.wait_ended(container, SETTLE_S)  # the container ends a moment after its processes
        why = engine.ended(container)
        return f"its container has ended ({why})" if why else ""

    def outbox(self, folder: Path) -> Path:
        self._outboxes.append(folder)
        inside = Path(OUTBOX, folder.name)
        null = subprocess.DEVNULL
        make = Command(["mkdir", "-p", str(inside)], stdin=null, stdout=null, stderr=null)
        processes = [self.execute(host, make) for host in self._names]
        for process in processes:
            if process.wait(OUTBOX_S) != 0:
                raise TestbedError(f"host {process.host!r} has no room for {inside}; see its image's user and disk")
        return inside

    def collect(self) -> None:
        docker, _ = engine.sdk()
        for container in self._containers.values():
            for folder in self._outboxes:
                with tempfile.TemporaryFile() as file:
                    with engine.talking("fetching the records"), suppress(docker.errors.NotFound):
                        file.writelines(container.get_archive(f"{OUTBOX}/{folder.name}")[0])
                    if not file.tell():  # the host wrote nothing, or its container is removed
                        continue
                    file.seek(0)
                    with tarfile.open(fileobj=file) as archive:
                        _extract(archive, folder.parent)


_HOSTNAME = re.compile(r"[\w.-]+", re.ASCII)


LOGS = "/tmp/thalweg-launched"
LAUNCH = ("sh", "-c",
    """mkdir -p "$0"; n=$(($(ls "$0" | grep -c words) + 1)); printf '%s' "$*" | tr '\\n' ' ' >"$0/$n.words"
    ("$@" >"$0/$n.log" 2>&1; echo $? >"$0/$n.status") </dev/null >/dev/null 2>&1 & echo $! | tee "$0/$n.pid" """,
    LOGS,
)  # fmt: skip
LAUNCHED = ("sh", "-c",
    """cd "$0" 2>/dev/null || exit 0
    for p in *.pid; do n=${p%.pid}; echo "$n $(cat $p) $(cat $n.status 2>/dev/null || echo -) $(cat $n.words)"; done""",
    LOGS,
)  # fmt: skip


def read_launched(host: str, said: str) -> list[LaunchedProcess]:
    """Return the processes that the output of ``LAUNCHED`` on a host lists, in the order of their start."""
    rows = sorted((line.split() for line in said.splitlines()), key=lambda row: int(row[0]))
    return [
        LaunchedProcess(int(pid), host, words, f"{LOGS}/{n}.log", None if status == "-" else int(status))
        for n, pid, status, *words in rows
    ]


def _extract(archive: tarfile.TarFile, folder: Path) -> None:
    """Extract plain files and folders into ``folder``, as this process's own.

    Raises TestbedError if a file would leave the folder.
    """
    plain = [member for member in archive if member.isdir() or member.isfile()]
    try:
        archive.extractall(folder, plain, filter="data")
    except tarfile.FilterError as error:
        raise TestbedError(f"a container left a file that would leave the run folder: {error.tarinfo.name}") from None


def _subnets_in_use(client: Any) -> list[ipaddress.IPv4Network]:
    """Return the IPv4 subnets of the engine's networks and of this machine's own interfaces."""
    subnets = []
    for network in client.api.networks():
        for pool in (network.get("IPAM") or {}).get("Config") or []:
            if pool.get("Subnet") and ":" not in pool["Subnet"]:
                subnets.append(ipaddress.IPv4Network(pool["Subnet"], strict=False))
    for addresses in psutil.net_if_addrs().values() if sys.platform == "linux" else ():
        for address in addresses:
            if address.family == socket.AF_INET and address.netmask:
                subnets.append(ipaddress.IPv4Network(f"{address.address}/{address.netmask}", strict=False))
    return subnets


def _alternatives(wish: ipaddress.IPv4Network) -> Any:
    """Yield the preferred subnet, then subnets of its size in 10.0.0.0/8 (RFC 1918), from ``wish`` on."""
    yield wish
    private = ipaddress.IPv4Network("10.0.0.0/8")
    step = wish.num_addresses
    if not wish.subnet_of(private):
        wish = next(private.subnets(new_prefix=max(wish.prefixlen, 16)))
    count = private.num_addresses // step
    first = (int(wish.network_address) - int(private.network_address)) // step
    for offset in range(1, min(count, 10_000)):
        number = int(private.network_address) + (first + offset) % count * step
        yield ipaddress.IPv4Network((number, wish.prefixlen))
