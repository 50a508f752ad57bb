"""Condition of a testbed in a few lines, as in the report of a failed test."""

from __future__ import annotations

from collections.abc import Iterator

from thalweg.emulation.links.shape import LinkShape
from thalweg.emulation.links.words import shape_text
from thalweg.emulation.outputs import Outputs
from thalweg.emulation.reports.process_text import ending, short_command
from thalweg.emulation.testbeds.testbed import Testbed
from thalweg.middleware.errors import ThalwegError, counted, one_line

NAMED = 6  # most links of one shape that are named; of more only the number is written
COMMAND = 100  # most characters of a command


def condition(bed: Testbed, outputs: Outputs) -> str:
    """Return a text of the hosts, links and cuts of a testbed, and of the processes that a test has started."""
    try:
        return "\n".join([*_network(bed), *_processes(outputs)])
    except ThalwegError as error:
        return f"the testbed does not answer: {one_line(error)}"


def _network(bed: Testbed) -> Iterator[str]:
    status = bed.status()
    yield "hosts: " + ", ".join(f"{host} {address}" for host, address in bed.hosts.items())
    by_shape: dict[LinkShape, list[str]] = {}
    for link, shape in bed.shapes.items():
        by_shape.setdefault(shape._replace(cut=False), []).append(link.text)
    for shape, links in sorted(by_shape.items(), key=lambda entry: -len(entry[1])):
        yield f"{_named(links)}: {shape_text(shape)}"
    if not by_shape:
        yield "links: not shaped"
    if cut := [link.text for link, shape in bed.shapes.items() if shape.cut]:
        yield f"cut: {_named(cut)}"
    if unplugged := status.get("unplugged"):
        yield f"no carrier: {', '.join(unplugged)}"
    if status["replaying"]:
        yield "a scenario or a trace is played"
    for host, frames in status["strangers"].items():
        yield f"{frames} frames from unknown addresses to {host} were dropped"


def _named(links: list[str]) -> str:
    return ", ".join(links) if len(links) <= NAMED else f"{len(links)} links"


def _processes(outputs: Outputs) -> Iterator[str]:
    for process, lines in outputs.last_lines():
        status = process.poll()
        state = "runs" if status is None else f"{'has' if status >= 0 else 'was'} ended {ending(status)}"
        yield f"{process.host}: {short_command(process.args, COMMAND)}: {state}"
        for line in lines:
            yield f"    {process.host} | {line}"
    if outputs.dropped:
        yield f"{counted(outputs.dropped, 'command')} that failed before are left out"
