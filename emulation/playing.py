"""Start of scenario files and traces on a testbed that is up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from thalweg.emulation.links.shape import UNRATED_BPS, LinkShape
from thalweg.emulation.scenarios.file import read_scenario
from thalweg.emulation.scenarios.hosts import HostSpec
from thalweg.emulation.scenarios.timeline import Timeline, apply, compile_timeline, following, longest_s
from thalweg.emulation.testbeds.replay import GAP_S
from thalweg.emulation.testbeds.testbed import Testbed
from thalweg.emulation.traces.columns import DELAY, LOSS, RATE
from thalweg.emulation.traces.files import read_link_trace
from thalweg.middleware.errors import UsageError, nearest
from thalweg.middleware.network.view import Link


def play(bed: Testbed, file: Path, links: Sequence[Link] | None) -> None:
    """Start to play a scenario file, or a trace on these links, now. Stop an earlier replay.

    Args:
        links: links to follow the trace; None: the file is a scenario, which names the links.

    Raises UsageError for a file that cannot be read, or with hosts that the testbed lacks.
    """
    timeline = _described(bed, file) if links is None else _following(bed, file, links)
    bed.stop_replay(missing_ok=True)
    replay = apply(timeline, bed)
    if replay is not None:
        replay.start()


def _described(bed: Testbed, file: Path) -> Timeline:
    """Return the time line of a scenario file. Raises UsageError if the testbed lacks one of its hosts."""
    timeline = compile_timeline(read_scenario(file))
    if timeline.layer != bed.layer:
        raise UsageError(f"{file} counts rates at layer {timeline.layer}, this testbed at layer {bed.layer}")
    for name in timeline.hosts:
        if name not in bed.hosts:
            raise UsageError(f"{file} has a host {name!r}, which this testbed has not; {nearest(name, bed.hosts)}")
    return timeline


def _following(bed: Testbed, file: Path, links: Sequence[Link]) -> Timeline:
    """Return a time line of these links with the rates, delays and losses of a trace. The remaining figures stay."""
    trace, shapes = read_link_trace(file), bed.shapes_of(links)
    if trace.rate is None and (plain := [link for link in links if link not in shapes]):
        raise UsageError(f"link {plain[0].text} has no rate, and {file} has none; give the link a rate first")
    course = trace.course((DELAY, LOSS), GAP_S)
    courses = dict.fromkeys(links, (course,)) if trace.figures.keys() - {RATE} else {}
    own = {link: shapes.get(link, LinkShape(UNRATED_BPS)) for link in links}
    if (rate := trace.rate) is not None:
        own = {link: shape._replace(rate_bps=rate.rate_at(0.0)) for link, shape in own.items()}
    return Timeline(
        hosts={host: HostSpec(host) for link in links for host in link[:2]},
        links=own,
        traces={} if rate is None else dict.fromkeys(links, rate),
        changes=following(courses, longest_s(courses)),
    )
