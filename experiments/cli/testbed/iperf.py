"""``thalweg testbed verify --with iperf3``: measurements of links by a tool that everybody knows.

Links are measured in turn: with one TCP flow, with four flows at once, and with UDP at a little more than the link's
rate. iperf3 counts the bytes of programs. Headers are added, so that the figures count the same bits as the asked rate.
Links with delay or losses are measured too, but do not decide, because TCP is slow there.
"""

from __future__ import annotations

import math
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from rich.table import Table

from thalweg.emulation.kernel.names import end_name
from thalweg.emulation.links.shape import LinkShape
from thalweg.emulation.links.units import format_rate
from thalweg.emulation.proofs.proof import RATE_ERROR, RATE_FROM_BPS
from thalweg.emulation.testbeds.testbed import Testbed as Backend
from thalweg.emulation.wan import Testbed
from thalweg.experiments.cli.console import output
from thalweg.middleware.errors import CapabilityError, TestbedError
from thalweg.middleware.files.reading import read_bounded
from thalweg.middleware.network.view import NET, Link
from thalweg.middleware.platform.packages import install_line
from thalweg.middleware.platform.python import find_program

TOOL = "iperf3"
SEGMENT_BYTES, SLOW_SEGMENT_BYTES = 1448, (524, 256)  # of TCP; with one flow and with four on links below …
SLOW_BPS = 1.2e6
FITTING_BPS = 2e7  # below this, flows keep less under way than a queue holds: a loss would distort a short measurement
DATAGRAM_BYTES, SLOW_DATAGRAM_BYTES, SLOW_DATAGRAMS_BPS = 1400, 476, 2e5
CONTROL = "cubic"  # BBR, which a machine may have by default, does not fill a link
HEADERS_BYTES = {"tcp": {3: 52, 2: 66}, "udp": {3: 28, 2: 42}}
FOUR = ("-P", "4")
RUNS = (("-P", "1"), FOUR, ("-u", "-w", "2M"))
FOUR_BPS = 6e4
MORE = 1.03  # factor by which UDP is sent faster than the link's rate
PACKETS = 60  # least number of packets of a measurement
LEAST_S, BEGIN_S, WAIT_S = 4.0, 1.0, 30.0
DATAGRAMS_BPS = 1e8  # above this, iperf3's UDP measures the machine, so UDP does not decide


class Measured(msgspec.Struct, frozen=True):
    """Rates of a link that iperf3 measured, at the testbed's layer: of one TCP flow, of four together, and of UDP.

    ``tcp4_bps`` None: the link is so slow that iperf3 gives up on four connections at once.
    """

    src: str
    dst: str
    asked_bps: float
    tcp_bps: float
    tcp4_bps: float | None
    udp_bps: float
    decides: bool
    via: str | msgspec.UnsetType = msgspec.UNSET

    @property
    def link(self) -> Link:
        return Link(self.src, self.dst, NET if self.via is msgspec.UNSET else self.via)

    def errors(self) -> dict[str, float]:
        """Return the error of each measurement: delivered / asked - 1."""
        rates = {"one TCP flow": self.tcp_bps, "four TCP flows": self.tcp4_bps, "UDP": self.udp_bps}
        return {name: bps / self.asked_bps - 1 for name, bps in rates.items() if bps is not None}


def measure(bed: Backend) -> list[Measured]:
    """Measure all links that have a rate and are not cut. Raise CapabilityError if iperf3 is missing."""
    tool = TOOL if bed.backend == "docker" else find_program(TOOL)
    if tool is None:
        raise CapabilityError(f"{TOOL} is not installed; {install_line(TOOL, TOOL)}")
    wan = Testbed(bed)
    shapes = {link: shape for link, shape in bed.shapes.items() if shape.rated and shape.passes}
    status = bed.status()
    results = []
    control = ("-C", CONTROL) if _has_control(bed) else ()
    for link, shape in shapes.items():
        source, target = map(end_name, link.ends)
        up_bps, down_bps = status["up_bps"].get(source, math.inf), status["down_bps"].get(target, math.inf)
        asked_bps = min(shape.set_bps, up_bps, down_bps)
        network = wan.on(link.via)
        single, four, udp = (
            None
            if more == FOUR and asked_bps < FOUR_BPS
            else _run(
                network,
                bed.layer,
                link,
                shape._replace(rate_bps=asked_bps),
                [tool, *more, *(() if "-u" in more else control)],
            )
            for more in RUNS
        )
        assert single is not None
        assert udp is not None
        via = msgspec.UNSET if link.via == NET else link.via
        results.append(Measured(*link[:2], asked_bps, single, four, udp, decides=not shape.needs_netem, via=via))
    return results


def _has_control(bed: Backend) -> bool:
    """Return whether hosts may choose ``CONTROL``. Hosts without privileges may choose from a list of the kernel."""
    known = "allowed" if bed.backend == "docker" else "available"
    try:
        return CONTROL.encode() in read_bounded(f"/proc/sys/net/ipv4/tcp_{known}_congestion_control").split()
    except OSError:
        return False


def _run(wan: Testbed, layer: int, link: Link, shape: LinkShape, command: Sequence[str]) -> float:
    """Return the rate that one run of iperf3 measured on a link of this shape, in bits of the layer."""
    asked_bps, udp, flows = shape.rate_bps, "-u" in command, 4 if FOUR[1] in command else 1
    slow = asked_bps < SLOW_BPS
    if udp:
        size = SLOW_DATAGRAM_BYTES if asked_bps < SLOW_DATAGRAMS_BPS else DATAGRAM_BYTES
    else:
        size = SLOW_SEGMENT_BYTES[flows > 1] if slow else SEGMENT_BYTES
    packet = size + HEADERS_BYTES["udp" if udp else "tcp"][layer]
    seconds = max(LEAST_S, flows * PACKETS * 8 * packet / asked_bps)
    begin_s = max(BEGIN_S, seconds / 4)
    words = [*command, "-c", wan.hosts[link.target], "-J", "-t", f"{seconds:.0f}", "-O", f"{begin_s:.0f}"]
    if udp:
        words += ["-l", str(size), "-b", f"{MORE * asked_bps * size / packet:.0f}"]
    elif slow:
        words += ["-M", str(size + 12), "-l", "2K"]
    if not udp and asked_bps < FITTING_BPS:
        words += ["-w", str(shape.queue_bytes // (2 * flows))]
    server = wan.start(link.target, [command[0], "-s", "-1", "--forceflush"], stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        while b"listening" not in (line := server.stdout.readline()):
            if not line:
                raise CapabilityError(f"{TOOL} does not run on host {link.target!r}; is it installed there?")
        finished = wan.run(link.source, words, timeout_s=seconds + begin_s + WAIT_S)
    finally:
        server.kill()
        server.wait()
        server.close()
    return _received_bps(finished.stdout, link) * packet / size


def _received_bps(text: str, link: Link) -> float:
    try:
        report: dict[str, Any] = msgspec.json.decode(text)
        if "error" not in report:
            return float(report["end"].get("sum_received", report["end"].get("sum"))["bits_per_second"])
        why = report["error"]
    except (ValueError, KeyError, TypeError):
        why = "its report cannot be read"
    raise TestbedError(f"{TOOL} from {link.source} to {link.target}: {why}")


def failures(found: Sequence[Measured]) -> Iterator[str]:
    """Yield a line for every link that is off."""
    for measured in found:
        most = RATE_ERROR if measured.asked_bps >= RATE_FROM_BPS else 2 * RATE_ERROR
        off = {
            name: error
            for name, error in measured.errors().items()
            if measured.decides and abs(error) > most and (name != "UDP" or measured.asked_bps <= DATAGRAMS_BPS)
        }
        if off:
            text = ", ".join(f"{name} {error:+.1%}" for name, error in off.items())
            yield f"link {measured.link.text} at {format_rate(measured.asked_bps)} is off by {TOOL}: {text}"


def print_table(found: Sequence[Measured]) -> None:
    """Print the measurements as a table."""
    columns = ("from", "to", "asked", "one TCP flow", "error", "four TCP flows", "error", "UDP", "error")
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for measured in found:
        row = [measured.src, measured.link.goal, format_rate(measured.asked_bps)]
        errors = measured.errors()
        for name, bps in (
            ("one TCP flow", measured.tcp_bps),
            ("four TCP flows", measured.tcp4_bps),
            ("UDP", measured.udp_bps),
        ):
            row += ["", ""] if bps is None else [format_rate(bps), f"{errors[name]:+.2%}"]
        table.add_row(*row)
    output().print(table)
