"""Testbed for the use in programs: hosts, the links between them, and processes on the hosts.

::

    from thalweg import Testbed

    with Testbed.open("netns", ["a", "b"], rate="10mbit") as bed:
        bed.set("a", "b", rate="2mbit")
        print(bed.run("a", ["ping", "-c1", "b"]).stdout)
        bed.prove()

Rates, times and shares are written as everywhere: ``2mbit``, ``20ms``, ``1%``, or bare numbers of bit/s and seconds.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, Literal, Self, TypedDict, Unpack

from thalweg.emulation.kernel.folders import Folders
from thalweg.emulation.kernel.names import end_name
from thalweg.emulation.links import units
from thalweg.emulation.links.shape import LinkShape, Queue, ShapeFigures, loss_figures
from thalweg.emulation.outputs import Outputs
from thalweg.emulation.presets.table import between, by_lines, find_preset, line
from thalweg.emulation.proofs.proof import LinkProof, failures
from thalweg.emulation.supervisor.client import Redirect, TestbedProcess
from thalweg.emulation.supervisor.requests import HostLine
from thalweg.emulation.testbeds import detached, known
from thalweg.emulation.testbeds.open import open_testbed
from thalweg.emulation.testbeds.testbed import Testbed as Backend
from thalweg.emulation.uml.files import NEEDED, inside_uml
from thalweg.middleware.errors import CommandError, TestbedError, UsageError, nearest, require
from thalweg.middleware.network.view import NET, Link, cable_of, links_between
from thalweg.middleware.platform import check_linux

Quantity = str | float
MtuText = str | int | Mapping[str, Any]
"""Bytes, or ``{"bytes": 1400, "silent": True}`` for an MTU of which the sender hears nothing."""
Losses = Quantity | Mapping[str, Quantity]
"""A share, or ``{"p": "1%", "burst": 5}`` for losses in bursts, as in scenario files."""
Words = Sequence[str | os.PathLike[str]]


class Asked(TypedDict, total=False):
    """Keyword arguments of ``Testbed.open``.

    ``rate``, ``delay``, ``jitter``, ``loss``, ``queue``, ``mtu``: figures of every link, as for ``set``. Without a rate
    links are not shaped, and as fast as the machine. ``up_rate``, ``down_rate``: of every host, as for ``set``.
    ``preset``: of every host, or of every link, as for ``set``. ``kernel``: ``"uml"`` for a separate User-Mode Linux
    kernel, which has netem (of netns). ``image``: of containers. ``networks``: further networks, in which hosts have an
    interface besides the interface in the shared network. ``ipv6``: unless False, hosts have IPv6 addresses too.
    ``control_band``: on every link, packets marked for expedited forwarding pass first. This runtime's control messages
    then have this mark. ``private``: folders such as ``["run", "tmp"]``. Every host has its own, empty folder of that
    name instead of the machine's.
    """

    rate: Quantity | None
    delay: Quantity | None
    jitter: Quantity | None
    loss: Losses | None
    queue: Quantity | None
    mtu: MtuText | None
    up_rate: Quantity | None
    down_rate: Quantity | None
    preset: str | None
    kernel: Literal["host", "uml"]
    image: str | None
    networks: Sequence[str]
    ipv6: bool
    control_band: bool
    private: Folders


class Testbed:
    """Emulated WAN on this machine: hosts, and a link for every directed pair. Create it by ``open`` or ``attach``.

    Use a testbed in a ``with`` statement. A link has a direction: ``set("a", "b", …)`` concerns the way from a to b,
    and ``both=True`` the way back too. Without ``target`` a call concerns every link of a host, in both directions. The
    links are those of the shared network, or of the network that ``on`` has selected. For whatever reason this process
    ends, no part of a testbed that it has opened stays. Every error is a ``ThalwegError`` of one line.
    """

    __test__ = False

    def __init__(self, backend: Backend, network: str | None = None) -> None:
        self._bed, self._network = backend, network
        self._outputs: Outputs | None = None

    @classmethod
    def open(
        cls, backend: Literal["netns", "docker", "loopback"], hosts: Sequence[str], **asked: Unpack[Asked]
    ) -> Self:
        """Start a testbed, which ends with this process, with ``down`` or with ``with``. ``asked``: see ``Asked``.

        Raises UsageError, and CapabilityError if this machine lacks a capability.
        """
        __tracebackhide__ = True  # for pytest: a failure shows the test
        for unknown in asked.keys() - Asked.__annotations__.keys():
            raise UsageError(f"Testbed.open takes no {unknown!r}; {nearest(unknown, Asked.__annotations__)}")
        image, kernel, networks = asked.pop("image", None), asked.pop("kernel", "host"), asked.pop("networks", ())
        more: dict[str, Any] = {"networks": _words(networks, "networks")} if networks else {}
        if private := asked.pop("private", ()):
            more["private"] = private
        for word in ("ipv6", "control_band"):
            if word in asked:
                more[word] = asked.pop(word)
        if image is not None:
            more["image"] = image
        bed = cls(_on_uml(backend, hosts, more) if kernel == "uml" else _on_host(backend, hosts, kernel, more))
        try:
            bed._bed.up()
            figures: dict[str, Any] = {word: value for word, value in asked.items() if value is not None}
            if figures:
                bed.set(**figures)
        except BaseException:
            bed.down()
            raise
        return bed

    @classmethod
    def attach(cls, identity: str | None = None) -> Self:
        """Connect to a testbed that ``thalweg testbed up`` has started, by its id or name.

        None: the only such testbed. The testbed stays up when this object is closed. Raises UsageError if there is no
        such testbed, or more than one.
        """
        return cls(detached.attach(known.choose(identity)))

    def on(self, network: str) -> Self:
        """Return this testbed with the links and addresses of one of its networks.

        A further network has only the links that have been set. A call without a link concerns these links. Raises
        UsageError if the testbed lacks the network.
        """
        if network != NET and network not in self._bed.networks:
            raise UsageError(f"there is no network {network!r}; {nearest(network, (NET, *self._bed.networks))}")
        other = type(self)(self._bed, network)
        other._outputs = self._outputs
        return other

    def down(self) -> None:
        """End every process on the hosts and remove the testbed. An attached testbed stays. Idempotent."""
        self._bed.down()
        if self._outputs is not None:
            self._outputs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    def __repr__(self) -> str:
        return f"<Testbed {self.id}: {', '.join(self.hosts)}>"

    @property
    def id(self) -> str:
        """Id of the testbed, as in ``thalweg testbed``."""
        return self._bed.run_id

    @property
    def hosts(self) -> Mapping[str, str]:
        """IP address of every host, by name."""
        return self._bed.networks.get(self._network or NET, self._bed.hosts)

    @property
    def hosts_6(self) -> Mapping[str, str]:
        """IPv6 address of every host, by name. Empty if hosts have none, and for further networks."""
        return {} if self._network not in (None, NET) else self._bed.hosts_6

    @property
    def links(self) -> Mapping[Link, LinkShape]:
        """Present shape of every shaped link."""
        self._bed.status(strangers=False)
        if self._network is None:
            return self._bed.shapes
        return {link: shape for link, shape in self._bed.shapes.items() if link.via == self._network}

    @property
    def unplugged(self) -> list[str]:
        """Hosts without a carrier. In a further network a host is called ``HOST.NETWORK``."""
        return [*self._bed.status((), strangers=False).get("unplugged", ())]

    def shapes_of(self, links: Sequence[Link]) -> Mapping[Link, LinkShape]:
        """Return the present shapes of these links. A link that is not shaped is left out."""
        return self._bed.shapes_of(links)

    # --- links ----------------------------------------------------------------------------------------

    def set(
        self,
        source: str | None = None,
        target: str | None = None,
        *,
        rate: Quantity | None = None,
        delay: Quantity | None = None,
        jitter: Quantity | None = None,
        loss: Losses | None = None,
        queue: Quantity | None = None,
        mtu: MtuText | None = None,
        up_rate: Quantity | None = None,
        down_rate: Quantity | None = None,
        carrier: Literal["up", "down"] | None = None,
        preset: str | None = None,
        both: bool = False,
    ) -> None:
        """Change the given figures of a link in place, and keep the remaining figures.

        Without a host, change every link. ``delay``: one way. ``loss``: a share, or ``{"p": "1%", "burst": 5}`` for
        bursts of 5 packets on average. ``queue``: limit of the link's queue (``"100ms"`` at its rate, ``"64kb"``, or a
        number of packets), or a discipline that keeps the queue short (``"fq_codel"``, ``"codel"``, ``"pie"``,
        ``"red"``). ``up_rate``, ``down_rate``: limit of the total that the host ``source`` sends, or receives,
        independent of its links. ``"unlimited"`` removes the limit. Without a host the limit holds for every host.
        ``mtu``: bytes of the longest packet. The source gets to know the MTU, unless ``mtu`` is ``{"bytes": 1400,
        "silent": True}``. ``carrier``: of the interface of the host ``source``. ``"down"`` takes the plug out.
        ``preset``: access line of the host ``source`` (``"4g"``), or path for the links (``"transatlantic"``). The
        preset's figures replace the figures of these links, except for figures that the call gives.

        A rate below the minimum of a link (8 kbit/s) becomes the minimum, with a warning. Raises UsageError for
        impossible figures, CapabilityError for figures that this machine's kernel cannot emulate.
        """
        __tracebackhide__ = True
        figures = _figures(rate=rate, delay=delay, jitter=jitter, loss=loss, queue=queue, mtu=mtu)
        limited = up_rate is not None or down_rate is not None
        if preset is not None and find_preset(preset).of_host:
            own = line(preset)
            rates = (own.up_bps if up_rate is None else up_rate, own.down_bps if down_rate is None else down_rate)
            for limit in rates:
                _limit(limit)  # refused before the links are changed
            self._set_line(preset, source, target, figures)
            self._limit_hosts(source, target, *rates)
        else:
            figures = figures if preset is None else {**between(preset), **figures}
            if limited:
                self._limit_hosts(source, target, up_rate, down_rate)
            if figures or not (limited or carrier):
                self._alter(self.named(source, target, both=both), figures)
        if carrier is not None:
            self._bed.set_carrier(self._hosts_alone("carrier is", source, target), carrier, self._network or NET)

    def _set_line(self, preset: str, host: str | None, target: str | None, figures: Mapping[str, Any]) -> None:
        """Give a host, or every host, an access line. Change its links. Hosts at the far ends keep their lines."""
        __tracebackhide__ = True
        if target is not None:
            raise UsageError(
                f"preset {preset!r} is the line of a host, not of a link to {target!r}; name {host!r} alone"
            )
        via, links = self._network or NET, self.named(host, None, both=False)
        self._bed.status((), strangers=False)
        lines = {name: self._bed.lines.get(end_name(cable_of(name, via))) for name in self.hosts}
        changed = [*self.hosts] if host is None else [host]
        lines |= dict.fromkeys(changed, preset)
        for ends, some in by_lines(lines, links).items():
            self._alter(some, {**between(*ends), **figures})
        queue = figures.get("queue", line(preset).queue)
        assert isinstance(queue, Queue)
        self._bed.set_lines(dict.fromkeys(changed, HostLine(preset, queue)), via)

    def _limit_hosts(self, host: str | None, target: str | None, *rates: Quantity | None) -> None:
        """Set the sending and the receiving rate of a host, or of every host. None keeps a rate."""
        __tracebackhide__ = True
        chosen = self._hosts_alone("up_rate and down_rate are", host, target)
        up_bps, down_bps = ({} if rate is None else dict.fromkeys(chosen, _limit(rate)) for rate in rates)
        self._bed.limit_hosts(up_bps, down_bps, self._network or NET)

    def _hosts_alone(self, what: str, host: str | None, target: str | None) -> list[str]:
        """Return the host, or every host. Raises UsageError if a link is named."""
        __tracebackhide__ = True
        if target is not None:
            raise UsageError(f"{what} of a host, not of the link to {target!r}; name {host!r} alone")
        if host is not None:
            self.named(host, None, both=False)
        return [*self.hosts] if host is None else [host]

    def reset(self, source: str | None = None, target: str | None = None) -> int:
        """Reset the TCP connections between two hosts, of one host, or of every host. Return their number.

        Programs on ``source`` get ECONNABORTED. The reset travels over the link, and programs on ``target`` get
        ECONNRESET when it arrives. Raises CapabilityError if the kernel cannot.
        """
        __tracebackhide__ = True
        links = self.named(source, target, both=False)
        return self._bed.reset([link for link in links if source in (None, link.source)])

    def cut(self, source: str, target: str | None = None, *, both: bool = False) -> None:
        """Cut links: nothing passes, and data under way is lost."""
        __tracebackhide__ = True
        self._alter(self.named(source, target, both=both), {"cut": True})

    def restore(self, source: str | None = None, target: str | None = None, *, both: bool = False) -> None:
        """Restore the former shapes of cut links. Without a host, restore every link."""
        __tracebackhide__ = True
        named = self.named(source, target, both=both)
        self._alter([*self.shapes_of(named)], {"cut": False})

    def play(
        self, file: str | os.PathLike[str], source: str | None = None, target: str | None = None, *, both: bool = False
    ) -> None:
        """Start to play a scenario file (``.toml``), or a trace on the named links or on every link.

        A trace has rates, delays or losses. Figures that the trace lacks stay. Delays and losses repeat for a day at
        most, and with many links for half a million changes in total. An earlier replay ends. Raises UsageError for a
        file that cannot be read, or with hosts that the testbed lacks.
        """
        __tracebackhide__ = True
        from thalweg.emulation.playing import play  # the import of file readers is slow

        whole = os.fspath(file).endswith(".toml")
        if whole and source is not None:
            raise UsageError(f"{os.fspath(file)} names its links itself; leave out {source!r}")
        play(self._bed, Path(file), None if whole else self.named(source, target, both=both))

    def stop(self) -> None:
        """Stop the replay. Every link stays as it is now. Idempotent."""
        self._bed.stop_replay(missing_ok=True)

    def prove(
        self,
        source: str | None = None,
        target: str | None = None,
        *,
        both: bool = False,
        seconds: float | None = None,
        check: bool = True,
    ) -> list[LinkProof]:
        """Fill links with traffic and measure the result. By default, prove every link that has a rate.

        A replay stops meanwhile, and begins anew afterwards. ``seconds``: time of a measurement. Raises TestbedError if
        a link is off, unless ``check`` is False.
        """
        __tracebackhide__ = True
        every = source is None and target is None
        chosen = None if every and self._network is None else self.named(source, target, both=both)
        if every and chosen is not None:
            chosen = [link for link in chosen if link in self.links and self.links[link].rated]
        with self._bed.resting():
            proofs = self._bed.prove(chosen, seconds)
        if check and (off := failures(proofs)):
            more = f" (and {len(off) - 1} more)" if len(off) > 1 else ""
            raise TestbedError(f"{off[0]}{more}")
        return proofs

    def named(self, source: str | None, target: str | None, *, both: bool) -> list[Link]:
        """Return the links that ``set`` means by these hosts. Raises UsageError for an unknown host."""
        __tracebackhide__ = True
        for name in (source, target):
            if name is not None and name not in self.hosts:
                raise UsageError(f"there is no host {name!r}; {nearest(name, self.hosts)}")
        via = self._network or NET
        if target is None:
            known = links_between(self.hosts) if via == NET else self.links
            return [link for link in known if source is None or source in link[:2]]
        if source is None:
            raise UsageError(f"a link to {target!r} has a source; name it")
        if source == target:
            raise UsageError(f"host {source!r} has no link to itself")
        link = Link(source, target, via)
        return [link, *([link.back] if both else [])]

    def _alter(self, links: Sequence[Link], figures: Mapping[str, Any]) -> None:
        __tracebackhide__ = True
        if not figures:
            raise UsageError(
                "no setting of the link is given; give a rate, a delay, a jitter, a loss, a queue, an mtu, a preset, or"
                " a host's up_rate, down_rate or carrier"
            )
        if links:
            self._bed.alter(links, ShapeFigures(**figures))

    # --- processes ------------------------------------------------------------------------------------

    def run(
        self,
        host: str,
        argv: Words,
        *,
        input: str = "",
        timeout_s: float | None = None,
        check: bool = False,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host to its end. Return its exit status and its output, as ``subprocess.run`` does.

        After ``timeout_s`` the command is killed and TestbedError is raised. With ``check``, a command that fails
        raises CommandError with its output.
        """
        __tracebackhide__ = True
        with ExitStack() as files:
            stdin, out, err = (files.enter_context(tempfile.TemporaryFile()) for _ in range(3))
            stdin.write(input.encode())
            stdin.seek(0)
            process = self.start(host, argv, env=env, cwd=cwd, stdin=stdin, stdout=out, stderr=err)
            name, late = os.path.basename(process.args[0]), False
            try:
                status = process.wait(timeout_s)
            except TimeoutError:
                process.kill()
                status, late = process.wait(), True
            except BaseException:
                process.kill()
                raise
            written = [_text(file) for file in (out, err)]
            if self._outputs is not None:
                self._outputs.end(process, *written, failed=status != 0)
            if late:
                raise TestbedError(f"{name!r} on {host!r} still runs after {timeout_s:g} s{_last_line(err)}")
            if check and status != 0:
                text = f"{name!r} on {host!r} has ended with {status}{_last_line(err) or _last_line(out)}"
                raise CommandError(text, returncode=status, stdout=written[0], stderr=written[1])
        return subprocess.CompletedProcess(process.args, status, *written)

    def start(
        self,
        host: str,
        argv: Words,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        stdin: Redirect = subprocess.DEVNULL,
        stdout: Redirect = None,
        stderr: Redirect = None,
    ) -> TestbedProcess:
        """Start a command on a host and return at once. Streams are as for ``subprocess.Popen``.

        The command ends with the testbed. With an attached testbed, it ends with this object.
        """
        __tracebackhide__ = True
        words = _words(argv, "a command")
        read = self._outputs is not None and stdout is None and stderr is None
        if read:
            stdout, stderr = subprocess.PIPE, subprocess.STDOUT
        process = self._bed.run(host, words, env=env, cwd=cwd, stdin=stdin, stdout=stdout, stderr=stderr)
        if self._outputs is not None:
            self._outputs.add(process, read=read)
        return process

    def follow_outputs(self) -> Outputs:
        """Print output that is not redirected, after its host's name, and keep the output for ``condition``."""
        self._outputs = self._outputs or Outputs()
        return self._outputs

    def condition(self) -> str:
        """Return links, cuts and processes since ``follow_outputs``, in lines for people.

        The processes are the processes of ``start``, and the last failed commands of ``run``.
        """
        from thalweg.emulation.condition import condition  # only a failed test needs this

        return condition(self._bed, self._outputs or Outputs())

    def report(self, folder: str | os.PathLike[str], *, last: Quantity | None = None, title: str = "") -> Path:
        """Write a report of the events since the start, and return its page, ``FOLDER/index.html``.

        Beside the page are Parquet tables: counters of links over time, changes, cuts, rates of hosts, processes.
        ``last``: only the last seconds (``"5min"``). ``title``: of the page. Raises CapabilityError if pyarrow or
        jinja2 is not installed, and UsageError if the folder cannot be written.
        """
        __tracebackhide__ = True
        require("pyarrow", "jinja2")
        from thalweg.emulation.reports.report import About, last_lines, write_report  # only a report needs this

        last_s = None if last is None else units.seconds(last)
        if last_s == 0:
            raise UsageError("the last 0 s cover no time; give a longer one, such as 5min")
        record = self._bed.recording()
        outputs = {} if self._outputs is None else self._outputs.by_pid()
        about = About(self.id, self._bed.backend, self._bed.hosts, title, last_lines(record, outputs))
        return write_report(record, about, Path(folder), last_s)


def _on_host(backend: str, hosts: Sequence[str], kernel: str, more: Mapping[str, Any]) -> Backend:
    if kernel != "host":
        raise UsageError(f"there is no kernel {kernel!r}; there are host, uml")
    return open_testbed(backend, _words(hosts, "hosts"), **more)


def _on_uml(backend: str, hosts: Sequence[str], more: Mapping[str, Any]) -> Backend:
    if backend != "netns":
        raise UsageError(f"kernel 'uml' goes with netns, and this testbed is {backend}; leave one of them out")
    if inside_uml():
        return _on_host(backend, hosts, "host", more)
    check_linux(NEEDED)
    from thalweg.emulation.uml.testbed import UmlTestbed  # only few testbeds need this

    return UmlTestbed(_words(hosts, "hosts"), **more)


def _words(given: Words, what: str) -> list[str]:
    if isinstance(given, str | bytes):
        raise UsageError(f"{what} is a list of words, not the text {given!r}; write [{given!r}]")
    return [os.fspath(word) for word in given]


_READERS: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "rate": lambda value: {"rate_bps": units.rate_bps(value)},
    "delay": lambda value: {"delay_s": units.seconds(value)},
    "jitter": lambda value: {"jitter_s": units.seconds(value)},
    "loss": lambda value: loss_figures(units.loss(value)),
    "queue": lambda value: {"queue": Queue(*units.queue(value))},
    "mtu": lambda value: {"mtu": units.mtu(value)},
}


def _figures(**asked: Any) -> dict[str, Any]:
    """Return the given fields of a shape, in bit/s, seconds and shares."""
    fields: dict[str, Any] = {}
    for name, value in asked.items():
        fields |= {} if value is None else _READERS[name](value)
    return fields


UNLIMITED = "unlimited"


def _limit(rate: Quantity) -> float | None:
    """Return a host's rate in bit/s, or None for no limit."""
    return None if rate == UNLIMITED else units.rate_bps(rate)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _last_line(file: IO[bytes]) -> str:
    lines = _text(file).strip().splitlines()
    return f": {lines[-1]}" if lines else ""
