"""Links of a scenario file: constants, traces and data sets by sites become a shape, or a trace, for every link.

Every directed pair of hosts has the figures of ``[links]``. A ``[[link]]`` replaces single figures, and the last in the
file counts. A rate comes from ``rate``, ``trace``, ``traces`` or ``throughput``, and a delay from ``delay``,
``latency`` or ``trace``. A source in a ``[[link]]`` replaces every other source of the figure. ``networks`` has the
rules for links of further networks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from thalweg.emulation.links.shape import Distribution, LinkShape, Queue, loss_figures
from thalweg.emulation.links.units import Loss, loss, mtu, queue, seconds
from thalweg.emulation.scenarios.data_sets import (
    GENERATED,
    Grid,
    Kind,
    TraceSet,
    find_set,
    near_miss,
    read_grid,
    read_traces,
)
from thalweg.emulation.scenarios.delays import MAX_DELAY_S
from thalweg.emulation.scenarios.hosts import Ends, HostSpec, draw_sites, links_named
from thalweg.emulation.scenarios.lines import (
    PresetName,
    check_table,
    common_line,
    figures_of_lines,
    figures_of_path,
)
from thalweg.emulation.scenarios.networks import Within, via_of
from thalweg.emulation.scenarios.toml import Keys, Rate, Share, Size, Spot, Text, Written
from thalweg.emulation.traces.columns import DELAY, LOSS, RATE
from thalweg.emulation.traces.files import read_link_trace
from thalweg.emulation.traces.link import Course, LinkTrace
from thalweg.emulation.traces.pool import draw, two_draws
from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.tariffs import Tariff
from thalweg.middleware.network.view import NET, Link, links_between

FILL = "fill"


class Delay(float, metaclass=Written):
    """Seconds, at most a minute: more must be a mistake."""

    @staticmethod
    def read(value: Any) -> float:
        delay_s = seconds(value)
        if delay_s > MAX_DELAY_S:
            raise UsageError(f"{value!r} is more than {MAX_DELAY_S:g} s; is its unit right?")
        return delay_s


class QueueLength(metaclass=Written):
    """Limit of the queue of a link."""

    @staticmethod
    def read(value: Any) -> Queue:
        return Queue(*queue(value))


class Losses(metaclass=Written):
    """Losses, independent or in bursts."""

    read = loss


class LargestPacket(metaclass=Written):
    """MTU of a link."""

    read = mtu


class Figures(Keys):
    """Keys for figures of a link's shape."""

    rate: Rate | None = None
    delay: Delay | None = None
    jitter: Delay | None = None
    distribution: Distribution | None = None
    loss: Losses | None = None
    duplicate: Share | None = None
    reorder: Share | None = None
    corrupt: Share | None = None
    burst: Size | None = None
    queue: QueueLength | None = None
    mtu: LargestPacket | None = None


class Sets(Keys):
    """Keys for figures from elsewhere: a trace, or data sets."""

    trace: Text | None = None
    traces: Text | None = None
    throughput: Text | None = None
    latency: Text | None = None
    preset: PresetName | None = None
    link_mean: Rate | None = None
    missing: Literal["error", "fill"] | None = None


FIELDS = {"rate": "rate_bps", "delay": "delay_s", "jitter": "jitter_s", "burst": "burst_bytes"}  # else the same name


def fields(key: str, value: Any) -> dict[str, Any]:
    """Return the fields of a link's shape, or of an effect, that a key of a file sets."""
    return loss_figures(value) if isinstance(value, Loss) else {FIELDS.get(key, key): value}


_RATE, _DELAY = ("rate", "traces", "throughput"), ("delay", "latency")
_GROUP_OF = {RATE: "rate", DELAY: "delay", LOSS: "loss"}  # of a trace's figures
_PLAIN = set(Figures.__struct_encode_fields__) - {"rate", "delay"}
_GRIDS: tuple[Kind, ...] = ("latency", "throughput")


class _Said:
    """Figures of one table for links, with the trace, the pool of traces and the grids of the table."""

    def __init__(self, spot: Spot) -> None:
        self.spot, self.sets = spot, spot.read(Sets)
        self.figures = spot.given(spot.read(Figures))
        self.keys = [*self.figures, *spot.given(self.sets)]
        self.trace: LinkTrace | None = None
        self.rate: BandwidthTrace | None = None
        self.pool: TraceSet | None = None
        self.grids: dict[Kind, Grid] = {}

    def groups(self, key: str) -> list[str]:
        """Return the groups of figures that a key sets: rate, delay, loss, or the key itself."""
        if key == "trace" and self.trace is not None:
            return [_GROUP_OF[field] for field in self.trace.figures]
        return ["rate" if key in _RATE else "delay" if key in _DELAY else key]


class LinkReader:
    """Reader of ``[links]`` and ``[[link]]`` of a file, and of the data sets in them."""

    def __init__(
        self, root: Spot, hosts: Mapping[str, HostSpec], seed: int, networks: Mapping[str, Tariff] = {}
    ) -> None:
        """Read the tables. Raises UsageError with the line for a wrong key, link or data set."""
        self._root, self._seed = root, seed
        self._folder = Path(root.file.name).parent
        self._pools: dict[tuple[Path | None, float | None], TraceSet] = {}
        self._grids: dict[tuple[Path, Kind], Grid] = {}
        public = [NET, *(via for via, tariff in networks.items() if tariff.kind == "public" and via != NET)]
        self._says: dict[Link, dict[str, _Said]] = {link: {} for via in public for link in links_between(hosts, via)}
        common = root.inner("links", "[links]")
        common.only(Figures, Sets)
        self._take_lines(hosts, own=False)
        self._take(common, self._says)
        self._take_lines(hosts, own=True)
        for spot in root.inner_all("link", "[[link]]"):
            spot.only(Ends, Within, Figures, Sets)
            check_table(spot)
            via = via_of(spot, networks)
            named = links_named(spot, hosts, via)
            self._take(spot, named if via in public else self._rented(spot, named))
        rented = {via for via, tariff in networks.items() if tariff.kind == "dedicated"}
        if idle := sorted(rented - {link.via for link in self._says}):
            tables = root.inner("networks", "[networks]")
            raise tables.error(f"network {idle[0]!r} has no links; give it a [[link]], or leave it out", idle[0])
        if single := next((link for link in self._says if link.back not in self._says), None):
            raise self._says[single]["rate"].spot.error(
                f"link {single.text} has no way back, which every connection needs; write both = true, or give"
                f" {single.back.text} a [[link]] of its own"
            )
        self.hosts = self._sited(hosts)

    def _rented(self, spot: Spot, links: Sequence[Link]) -> Sequence[Link]:
        """Add the links that a table gives to a dedicated network, and return them.

        Raises UsageError for a link that is given twice, or has no rate.
        """
        if twice := next((link for link in links if link in self._says), None):
            raise spot.error(f"link {twice.text} stands there twice; a dedicated link is given once")
        if not spot.value.keys() & {*_RATE, "trace", "preset"}:
            raise spot.error(f'link {links[0].text} has no rate; a dedicated link needs one: write rate = "100mbit"')
        self._says |= {link: {} for link in links}
        return links

    def _take(self, spot: Spot, links: Iterable[Link]) -> None:
        table = _Said(spot)
        sets = table.sets
        if sets.trace is not None:
            with spot.reading("trace"):
                table.trace = read_link_trace(self._folder / sets.trace)
                table.rate = table.trace.rate
        groups = {group: table for key in table.keys for group in table.groups(key)}
        for group in groups:
            chosen = [key for key in table.keys if group in table.groups(key)]
            if len(chosen) > 1:
                raise spot.error(f"{chosen[0]} and {chosen[1]} set the same figure; leave one of them out", chosen[1])
        if sets.link_mean is not None and sets.traces is None and sets.throughput is None:
            raise spot.error("link_mean scales the traces or the throughput of its own table, which has neither",
                             "link_mean")  # fmt: skip
        if sets.traces is not None:
            with spot.reading("traces"):
                table.pool = self._pool(sets.traces, sets.link_mean)
        for kind in _GRIDS:
            if (name := getattr(sets, kind)) is not None:
                with spot.reading(kind):
                    table.grids[kind] = self._grid(name, kind)
        for key, figure in figures_of_path(sets.preset).items():
            if key not in groups:
                table.figures[key], groups[key] = figure, table
        for link in links:
            self._says[link].update(groups)

    def _take_lines(self, hosts: Mapping[str, HostSpec], *, own: bool) -> None:
        """Give links the figures of the hosts' lines. ``own``: for links with an own line, or else for the rest."""
        lines = {name: host.preset or None for name, host in hosts.items()}
        for figures, links in figures_of_lines(lines, common_line(self._root), self._says, own=own):
            table = _Said(Spot(self._root.file, "a preset", {}, ("hosts",)))
            table.figures = {**figures}
            for link in links:
                self._says[link].update(dict.fromkeys(figures, table))

    def _pool(self, name: str, mean_bps: float | None) -> TraceSet:
        path = None if name == GENERATED else find_set(name, "bandwidth", self._folder)
        if (path, mean_bps) not in self._pools:
            self._pools[path, mean_bps] = read_traces(path, self._seed, mean_bps)
        return self._pools[path, mean_bps]

    def _grid(self, name: str, kind: Kind) -> Grid:
        path = find_set(name, kind, self._folder)
        if (path, kind) not in self._grids:
            self._grids[path, kind] = read_grid(path, kind)
        return self._grids[path, kind]

    def _sited(self, hosts: Mapping[str, HostSpec]) -> dict[str, HostSpec]:
        """Return the hosts, with drawn sites if grids need sites. Raises UsageError for a site that no set knows."""
        grids, pools = list(self._grids.values()), [pool for pool in self._pools.values() if pool.pairs]
        sets: list[Grid | TraceSet] = [*grids, *pools]
        known = [data_set.sites for data_set in sets]
        for number, host in enumerate(hosts.values()):
            if host.site and known and not any(sites.find(host.site) for sites in known):
                names = " or ".join(repr(data_set.name) for data_set in sets)
                near = near_miss(host.site, [name for sites in known for name in sites.names])
                raise self._root.error(
                    f"host {host.name!r}: there is no site {host.site!r} in {names}; {near}", "hosts", number
                )
        if not grids or all(host.site for host in hosts.values()):
            return dict(hosts)
        try:
            return draw_sites(hosts.values(), grids, self._seed)
        except UsageError as error:
            raise self._root.error(str(error), "hosts") from None

    def courses(self, gap_s: float) -> dict[Link, tuple[Course, ...]]:
        """Return the courses of links whose delay or loss follows a trace. ``gap_s``: as for ``LinkTrace.course``.

        Links with the same trace and figures share a course.
        """
        shared: dict[tuple[int, tuple[str, ...]], Course] = {}
        by_link: dict[Link, tuple[Course, ...]] = {}
        for link, says in self._says.items():
            followed: dict[int, tuple[LinkTrace, list[str]]] = {}
            for field in (DELAY, LOSS):
                table = says.get(_GROUP_OF[field])
                if table is not None and table.trace is not None and field in table.trace.figures:
                    followed.setdefault(id(table.trace), (table.trace, []))[1].append(field)
            for trace, fields in followed.values():
                key = (id(trace), tuple(fields))
                if key not in shared:
                    shared[key] = trace.course(fields, gap_s)
                by_link[link] = (*by_link.get(link, ()), shared[key])
        return by_link

    def links(self) -> tuple[dict[Link, LinkShape], dict[Link, BandwidthTrace]]:
        """Return every link's shape at the start (emulated), and the traces of links whose rate follows one."""
        shapes: dict[Link, LinkShape] = {}
        traces: dict[Link, BandwidthTrace] = {}
        for link, says in self._says.items():
            figures: dict[str, Any] = {}
            for key, table in says.items():
                figures |= fields(key, _figure(key, table)) if key in _PLAIN else {}
            rate = self._rate(link, says.get("rate"))
            if isinstance(rate, BandwidthTrace):
                traces[link] = rate
                rate = rate.rate_at(0.0)
            delay_s = self._delay(link, says["delay"]) if "delay" in says else 0.0
            if figures.get("reorder") and not delay_s:
                raise says["reorder"].spot.error(
                    f"reorder: packets that do not wait cannot overtake; give link {link.text} a delay",
                    "reorder",
                )
            shapes[link] = LinkShape(rate, delay_s, **figures)
        return shapes, traces

    def _rate(self, link: Link, said: _Said | None) -> float | BandwidthTrace:
        if said is None:
            raise self._root.error(f"link {link.text} has no rate; give [links] a rate, traces or throughput", "links")
        if "rate" in said.figures:
            return float(said.figures["rate"])
        if said.rate is not None:
            return said.rate
        if said.pool is not None:
            return self._trace(link, said, said.pool)
        rate_bps, mean_bps = self._measured(link, said, "throughput"), said.sets.link_mean
        return rate_bps if mean_bps is None else rate_bps * mean_bps / said.grids["throughput"].mean

    def _trace(self, link: Link, said: _Said, pool: TraceSet) -> BandwidthTrace:
        """Return the pair's own series if set and file name the sites, or else a trace drawn from the whole set."""
        ends = [self.hosts[host] for host in link[:2]]
        sites = [host.site for host in ends if host.site is not None and not host.drawn]
        if pool.pairs and len(sites) == 2:
            names = [pool.sites.find(site) for site in sites]
            series = pool.pairs.get((names[0] or "", names[1] or ""))
            if series is not None:
                return self._own_series(pool, series)
            if said.sets.missing != FILL:
                raise self._missing(link, said, "traces", names)
        return draw(pool.pool, self._seed, *link).cut()

    def _own_series(self, pool: TraceSet, found: Mapping[str, BandwidthTrace]) -> BandwidthTrace:
        """Return a pair's series from a drawn batch of measurements, from a drawn moment on.

        Batch and moment are the same for all pairs of the batch: their rates varied together.
        """
        order = sorted(pool.batches, key=lambda batch: two_draws(self._seed, "batch", batch))
        trace = next(found[batch] for batch in order if batch in found)
        return trace.offset(two_draws(self._seed, "start")[0] / 2**64 * trace.duration_s)

    def _delay(self, link: Link, said: _Said) -> float:
        if "delay" in said.figures:
            return float(said.figures["delay"])
        if said.trace is not None:
            return float(said.trace.figures[DELAY][0])
        return self._measured(link, said, "latency") / 2

    def _measured(self, link: Link, said: _Said, kind: Kind) -> float:
        grid = said.grids[kind]
        names = source, target = [grid.sites.find(self.hosts[host].site or "") for host in link[:2]]
        value = grid.value(source, target) if source and target else None
        if value is None and said.sets.missing == FILL:
            return grid.median
        if value is None or (kind == "throughput" and not value):
            raise self._missing(link, said, kind, names, value)
        return value

    def _missing(
        self, link: Link, said: _Said, key: str, names: Sequence[str | None], measured: float | None = None
    ) -> UsageError:
        """Return the error for a link without a value, or with ``measured`` 0. ``names``: the ends in the set."""
        sites = [self.hosts[host].site or "" for host in link[:2]]
        unknown = next((site for site, name in zip(sites, names, strict=True) if name is None), None)
        why = f"; it has no site {unknown!r}" if unknown else "; both are at one site" if names[0] == names[1] else ""
        if measured is not None:
            why = "; the measured value is 0"
        a, b = (host if host == site else f"{host} ({site})" for host, site in zip(link[:2], sites, strict=True))
        instead = "a delay" if key == "latency" else "a rate"
        filled = "a drawn trace" if key == "traces" else "the median"
        return said.spot.error(
            f"{key} {said.spot.value[key]!r} has nothing for {a} → {b}{why}; give the link {instead} of its own in a"
            f' [[link]], or set missing = "{FILL}" for {filled}',
            key,
        )


def _figure(key: str, said: _Said) -> Any:
    """Return a figure of a table. For a trace's loss, it is the first one, or 0 if the course cuts the link then."""
    if key in said.figures or said.trace is None:
        return said.figures[key]
    first = float(said.trace.figures[LOSS][0])
    return first if first < 1 else 0.0
