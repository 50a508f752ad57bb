"""State of a testbed in a few lines, as the report of a failed test has it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from thalweg.emulation.links.shape import LinkShape
from thalweg.emulation.units import format_rate
from thalweg.middleware.errors import ThalwegError, one_line

if TYPE_CHECKING:
    from thalweg.emulation.wan import Testbed


def condition(bed: Testbed) -> str:
    """Return the hosts, links, cuts and processes of a testbed that is up."""
    try:
        return "\n".join([*_network(bed), *_processes(bed)])
    except ThalwegError as error:
        return f"it does not answer: {one_line(error)}"


def _network(bed: Testbed) -> Iterator[str]:
    yield "hosts: " + ", ".join(f"{host} {address}" for host, address in bed.hosts.items())
    by_shape: dict[LinkShape, list[str]] = {}
    for link, shape in bed.links.items():
        by_shape.setdefault(shape._replace(cut=False), []).append(link.text)
    most = max(map(len, by_shape.values()), default=0)
    for shape, links in sorted(by_shape.items(), key=lambda entry: -len(entry[1])):
        which = f"{len(links)} links" if len(links) == most and most > 2 else ", ".join(links)
        yield f"{which}: {described(shape)}"
    if not by_shape:
        yield "links: not shaped"
    if cut := [link.text for link, shape in bed.links.items() if shape.cut]:
        yield "cut: " + ", ".join(cut)
    status = bed._bed.status()
    if status["replaying"]:
        yield "a scenario or a trace is played"
    for host, frames in status["strangers"].items():
        yield f"{frames} frames from unknown addresses to {host} were dropped"


def described(shape: LinkShape) -> str:
    """Return a link's shape in words."""
    parts = [format_rate(shape.rate_bps) if shape.rate_bps else "no traffic"]
    if shape.delay_s or shape.jitter_s:
        parts.append(f"delay {shape.delay_s * 1e3:g} ms")
    if shape.jitter_s:
        parts.append(f"jitter {shape.jitter_s * 1e3:g} ms")
    if shape.loss:
        parts.append(f"loss {shape.loss:.3g}")
    return ", ".join(parts)


def _processes(bed: Testbed) -> Iterator[str]:
    for process in bed.started:
        status = process.poll()
        state = "runs" if status is None else f"has ended with {status}"
        yield f"{process.host}: {' '.join(process.args)[:160]}: {state}"
        for line in bed.last_lines(process):
            yield f"    {process.host} | {line}"
