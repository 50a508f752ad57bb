"""The testbed as a program uses it: hosts, the links between them, and what runs on the hosts.

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
    """What ``Testbed.open`` takes by name.

    ``rate``, ``delay``, ``jitter``, ``loss``, ``queue``, ``mtu``: of every link, as for ``set``; without a rate links
    are not shaped, as fast as the machine is. ``up_rate``, ``down_rate``: of every host, as for ``set``. ``preset``: of
    every host, or of every link, as for ``set``. ``kernel``:
    ``"uml"`` for a User-Mode Linux kernel of its own, which has netem (of netns). ``image``: of containers.
    ``networks``: those in which hosts have an interface besides the one that all share. ``ipv6``: hosts have IPv6
    addresses as well, unless it is False. ``control_band``: on every link, what is marked for expedited forwarding
    goes before all else, as this runtime's control messages then do. ``private``: folders of which each host has its
    own, empty one, such as ``["run", "tmp"]``, instead of sharing the machine's.
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
    """Hosts on this machine, and a link from each to every other one. Made by ``open`` or ``attach``; use it ``with``.

    A link has a direction: ``set("a", "b", …)`` is what a sends to b, and ``both=True`` the way back as well. Without
    ``target`` all links of a host are meant, both ways. They are those of the network that all hosts share, or of the
    one that ``on`` has named. Whatever ends this process, nothing of a testbed that it has
    opened stays. Every error is a ``ThalwegError`` of one line.
    """

    __test__ = False

    def __init__(self, backend: Backend, network: str | None = None) -> None:
        self._bed, self._network = backend, network
        self._outputs: Outputs | None = None

    @classmethod
    def open(
        cls, backend: Literal["netns", "docker", "loopback"], hosts: Sequence[str], **asked: Unpack[Asked]
    ) -> Self:
        """Bring a testbed up, which ends with this process, with ``down`` or with ``with``; ``asked``: see ``Asked``.

        Raises UsageError, and CapabilityError where this machine cannot.
        """
        __tracebackhide__ = True  # of pytest: a failure shows the test
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
            given: dict[str, Any] = {word: value for word, value in asked.items() if value is not None}
            if given:
                bed.set(**given)
        except BaseException:
            bed.down()
            raise
        return bed

    @classmethod
    def attach(cls, identity: str | None = None) -> Self:
        """Use a testbed that ``thalweg testbed up`` has left up, by its id or name, or the only one there is.

        It stays up when this one is closed. Raises UsageError when there is none, or more than one.
        """
        return cls(detached.attach(known.choose(identity)))

    def on(self, network: str) -> Self:
        """The same testbed, where links and addresses are those of one of its networks.

        In one that not all hosts share there are the links that have been set; what names no link means these. Raises
        UsageError for a network that it does not have.
        """
        if network != NET and network not in self._bed.networks:
            raise UsageError(f"there is no network {network!r}; {nearest(network, (NET, *self._bed.networks))}")
        other = type(self)(self._bed, network)
        other._outputs = self._outputs
        return other

    def down(self) -> None:
        """End every process on the hosts and remove all; one that was attached stays. Idempotent."""
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
        """What ``thalweg testbed`` calls it."""
        return self._bed.run_id

    @property
    def hosts(self) -> Mapping[str, str]:
        """Every host's IP address, by name."""
        return self._bed.networks.get(self._network or NET, self._bed.hosts)

    @property
    def hosts_6(self) -> Mapping[str, str]:
        """Every host's IPv6 address, by name; empty where they have none, and of further networks."""
        return {} if self._network not in (None, NET) else self._bed.hosts_6

    @property
    def links(self) -> Mapping[Link, LinkShape]:
        """What every shaped link is set to at this moment."""
        self._bed.status(strangers=False)
        if self._network is None:
            return self._bed.shapes
        return {link: shape for link, shape in self._bed.shapes.items() if link.via == self._network}

    @property
    def unplugged(self) -> list[str]:
        """The hosts that have no carrier. In a further network a host is called ``HOST.NETWORK``."""
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
        """Change what is given of a link, in place, and leave the rest; without a host of all. ``delay``: one way.

        ``loss``: a share, or ``{"p": "1%", "burst": 5}`` for bursts of 5 packets on average.
        ``queue``: what waits for the link at most, ``"100ms"`` of its rate, ``"64kb"``, a number of packets; or what
        keeps it short: ``"fq_codel"``, ``"codel"``, ``"pie"``, ``"red"``. ``up_rate``, ``down_rate``: of all that the
        host ``source`` sends together, or receives, whatever its links have (``"unlimited"`` lifts it); without a host
        of every one. ``mtu``: bytes of the longest packet; the source gets to know it, unless it is
        ``{"bytes": 1400, "silent": True}``. ``carrier``: of the interface of the host ``source``, ``"down"`` takes the
        plug out. A rate below the least that a link has (8 kbit/s) becomes that one, with a warning.
        ``preset``: the access line of the host ``source`` (``"4g"``), or a path that links are (``"transatlantic"``);
        its figures replace all of these links, and figures that are given beside it win.
        Raises UsageError for what no link can be, CapabilityError for what this machine's kernel cannot.
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
        """Give a host, or all hosts, an access line. Change their links, whose other ends keep their own lines."""
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
        """Set the sending and the receiving rate of a host, or of all hosts. None keeps a rate."""
        __tracebackhide__ = True
        chosen = self._hosts_alone("up_rate and down_rate are", host, target)
        up_bps, down_bps = ({} if rate is None else dict.fromkeys(chosen, _limit(rate)) for rate in rates)
        self._bed.limit_hosts(up_bps, down_bps, self._network or NET)

    def _hosts_alone(self, what: str, host: str | None, target: str | None) -> list[str]:
        """Return the host, or all hosts. Raises UsageError if a link is named."""
        __tracebackhide__ = True
        if target is not None:
            raise UsageError(f"{what} of a host, not of the link to {target!r}; name {host!r} alone")
        if host is not None:
            self.named(host, None, both=False)
        return [*self.hosts] if host is None else [host]

    def reset(self, source: str | None = None, target: str | None = None) -> int:
        """Reset the TCP connections between two hosts, of one host, or of all hosts. Return their number.

        Programs on ``source`` get ECONNABORTED. The reset travels over the link, and programs on ``target`` get
        ECONNRESET when it arrives. Raises CapabilityError if the kernel cannot.
        """
        __tracebackhide__ = True
        links = self.named(source, target, both=False)
        return self._bed.reset([link for link in links if source in (None, link.source)])

    def cut(self, source: str, target: str | None = None, *, both: bool = False) -> None:
        """Let nothing pass any more; what is under way is lost."""
        __tracebackhide__ = True
        self._alter(self.named(source, target, both=both), {"cut": True})

    def restore(self, source: str | None = None, target: str | None = None, *, both: bool = False) -> None:
        """Let links that were cut be what they were; without a host all of them."""
        __tracebackhide__ = True
        named = self.named(source, target, both=both)
        self._alter([*self.shapes_of(named)], {"cut": False})

    def play(
        self, file: str | os.PathLike[str], source: str | None = None, target: str | None = None, *, both: bool = False
    ) -> None:
        """Let a scenario file (``.toml``), or a trace on the links named or on all, begin now.

        A trace has rates, delays or losses; what it has not stays. Delays and losses repeat for a day at most, of many
        links for half a million changes in all.
        It takes the place of what was played before. Raises UsageError for a file that cannot be read, or that has
        other hosts.
        """
        __tracebackhide__ = True
        from thalweg.emulation.playing import play  # what reads files takes longer to import than all else here

        whole = os.fspath(file).endswith(".toml")
        if whole and source is not None:
            raise UsageError(f"{os.fspath(file)} says itself which links it is for; leave out {source!r}")
        play(self._bed, Path(file), None if whole else self.named(source, target, both=both))

    def stop(self) -> None:
        """Stop what is being played; every link stays as it is now. Idempotent."""
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
        """Fill links, all that have a rate by default, and measure what they deliver; what is played rests meanwhile.

        ``seconds``: of measuring each. Raises TestbedError when a link is off, unless ``check`` is False.
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
                "nothing is asked of the link; give a rate, a delay, a jitter, a loss, a queue, an mtu, a preset, or a"
                " host's up_rate, down_rate or carrier"
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
        """Run a command on a host to its end, and return its exit status and what it wrote, as ``subprocess.run``.

        Raises TestbedError when it takes longer than ``timeout_s``, which ends it, and with ``check`` CommandError,
        which has its output, when it fails.
        """
        __tracebackhide__ = True
        with ExitStack() as files:
            given, out, err = (files.enter_context(tempfile.TemporaryFile()) for _ in range(3))
            given.write(input.encode())
            given.seek(0)
            process = self.start(host, argv, env=env, cwd=cwd, stdin=given, stdout=out, stderr=err)
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
        """Start a command on a host and return at once; streams as for ``subprocess.Popen``.

        It ends with the testbed, or with this object where that was attached.
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
        """From now on print output that is not redirected behind its host's name, and keep it for ``condition``."""
        self._outputs = self._outputs or Outputs()
        return self._outputs

    def condition(self) -> str:
        """Return links, cuts and processes since ``follow_outputs``, in lines for people.

        The processes are those that ``start`` has started, and the last commands of ``run`` that have failed.
        """
        from thalweg.emulation.condition import condition  # a failed test alone needs it

        return condition(self._bed, self._outputs or Outputs())

    def report(self, folder: str | os.PathLike[str], *, last: Quantity | None = None, title: str = "") -> Path:
        """Write a report of all that went on since the start, and return its page, ``FOLDER/index.html``.

        Beside the page are Parquet tables: counters of links over time, changes, cuts, rates of hosts, processes.
        ``last``: only the last so many seconds (``"5min"``). ``title``: of the page. Raises CapabilityError if pyarrow
        or jinja2 is not installed, and UsageError if the folder cannot be written.
        """
        __tracebackhide__ = True
        require("pyarrow", "jinja2")
        from thalweg.emulation.reports.report import About, last_lines, write_report  # a report alone needs it

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
    from thalweg.emulation.uml.testbed import UmlTestbed  # few need it

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
    """Return the fields of a shape that are given, in bit/s, seconds and shares."""
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
