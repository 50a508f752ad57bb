"""The links of a scenario file: constants, traces and data sets by sites become a shape, or a trace, for every link.

Every directed pair of hosts has the figures of ``[links]``, unless a ``[[link]]`` says otherwise; of several that say
something the last in the file counts, figure by figure. A rate comes from one of ``rate``, ``trace``, ``traces`` and
``throughput``, a delay from ``delay`` or ``latency``: one of these in a ``[[link]]`` takes the place of any other.
Which links there are in further networks: see ``networks``.
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
    """Seconds; more than a minute must be a mistake."""

    @staticmethod
    def read(value: Any) -> float:
        found = seconds(value)
        if found > MAX_DELAY_S:
            raise UsageError(f"{value!r} is more than {MAX_DELAY_S:g} s; is its unit right?")
        return found


class QueueLength(metaclass=Written):
    """What may wait for a link."""

    @staticmethod
    def read(value: Any) -> Queue:
        return Queue(*queue(value))


class Losses(metaclass=Written):
    """Losses, independent of each other or in bursts."""

    read = loss


class LargestPacket(metaclass=Written):
    """The MTU of a link."""

    read = mtu


class Figures(Keys):
    """Figures of a link's shape."""

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
    """Figures that come from elsewhere: a trace, or data sets."""

    trace: Text | None = None
    traces: Text | None = None
    throughput: Text | None = None
    latency: Text | None = None
    preset: PresetName | None = None
    link_mean: Rate | None = None
    missing: Literal["error", "fill"] | None = None


FIELDS = {"rate": "rate_bps", "delay": "delay_s", "jitter": "jitter_s", "burst": "burst_bytes"}  # others: as they are


def fields(key: str, value: Any) -> dict[str, Any]:
    """Return the fields of a link's shape, or of an effect, that a key of a file sets."""
    return loss_figures(value) if isinstance(value, Loss) else {FIELDS.get(key, key): value}


_RATE, _DELAY = ("rate", "traces", "throughput"), ("delay", "latency")
_GROUP_OF = {RATE: "rate", DELAY: "delay", LOSS: "loss"}  # of a trace's figures
_PLAIN = set(Figures.__struct_encode_fields__) - {"rate", "delay"}
_GRIDS: tuple[Kind, ...] = ("latency", "throughput")


class _Said:
    """What one table says of links, and what it names: a trace, a pool of them, grids."""

    def __init__(self, spot: Spot) -> None:
        self.spot, self.sets = spot, spot.read(Sets)
        self.figures = spot.given(spot.read(Figures))
        self.keys = [*self.figures, *spot.given(self.sets)]
        self.trace: LinkTrace | None = None
        self.rate: BandwidthTrace | None = None
        self.pool: TraceSet | None = None
        self.grids: dict[Kind, Grid] = {}

    def groups(self, key: str) -> list[str]:
        """What a key says of links: a rate, a delay, a loss, or what is called like the key."""
        if key == "trace" and self.trace is not None:
            return [_GROUP_OF[field] for field in self.trace.figures]
        return ["rate" if key in _RATE else "delay" if key in _DELAY else key]


class LinkReader:
    """Reads ``[links]`` and ``[[link]]`` of a file, and the data sets that they name."""

    def __init__(
        self, root: Spot, hosts: Mapping[str, HostSpec], seed: int, networks: Mapping[str, Tariff] = {}
    ) -> None:
        """Raises UsageError naming the line for keys, links and data sets that are wrong."""
        self._root, self._seed = root, seed
        self._folder = Path(root.file.name).parent
        self._pools: dict[tuple[Path | None, float | None], TraceSet] = {}
        self._grids: dict[tuple[Path, Kind], Grid] = {}
        public = [NET, *(via for via, one in networks.items() if one.kind == "public" and via != NET)]
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
        rented = {via for via, one in networks.items() if one.kind == "dedicated"}
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
        """The links of a dedicated network that a table gives it; UsageError for one that it has, or without a rate."""
        if twice := next((link for link in links if link in self._says), None):
            raise spot.error(f"link {twice.text} stands there twice; a dedicated link is given once")
        if not spot.value.keys() & {*_RATE, "trace", "preset"}:
            raise spot.error(f'link {links[0].text} has no rate; a dedicated link needs one: write rate = "100mbit"')
        self._says |= {link: {} for link in links}
        return links

    def _take(self, spot: Spot, links: Iterable[Link]) -> None:
        said = _Said(spot)
        sets = said.sets
        if sets.trace is not None:
            with spot.reading("trace"):
                said.trace = read_link_trace(self._folder / sets.trace)
                said.rate = said.trace.rate
        groups = {group: said for key in said.keys for group in said.groups(key)}
        for group in groups:
            chosen = [key for key in said.keys if group in said.groups(key)]
            if len(chosen) > 1:
                raise spot.error(f"{chosen[0]} and {chosen[1]} both say it; leave one of them out", chosen[1])
        if sets.link_mean is not None and sets.traces is None and sets.throughput is None:
            raise spot.error("link_mean scales the traces or the throughput of its own table; it has none",
                             "link_mean")  # fmt: skip
        if sets.traces is not None:
            with spot.reading("traces"):
                said.pool = self._pool(sets.traces, sets.link_mean)
        for kind in _GRIDS:
            if (name := getattr(sets, kind)) is not None:
                with spot.reading(kind):
                    said.grids[kind] = self._grid(name, kind)
        for key, figure in figures_of_path(sets.preset).items():
            if key not in groups:
                said.figures[key], groups[key] = figure, said
        for link in links:
            self._says[link].update(groups)

    def _take_lines(self, hosts: Mapping[str, HostSpec], *, own: bool) -> None:
        """Give links the figures of their hosts' lines: of lines that hosts have of their own, or of common ones."""
        lines = {name: host.preset or None for name, host in hosts.items()}
        for figures, links in figures_of_lines(lines, common_line(self._root), self._says, own=own):
            said = _Said(Spot(self._root.file, "a preset", {}, ("hosts",)))
            said.figures = {**figures}
            for link in links:
                self._says[link].update(dict.fromkeys(figures, said))

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
        """The hosts, with sites drawn where grids need them; those given must be known to one of the sets."""
        grids, pools = list(self._grids.values()), [pool for pool in self._pools.values() if pool.pairs]
        sets: list[Grid | TraceSet] = [*grids, *pools]
        known = [one.sites for one in sets]
        for number, host in enumerate(hosts.values()):
            if host.site and known and not any(sites.find(host.site) for sites in known):
                names = " or ".join(repr(one.name) for one in sets)
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
        """What traces of delays and losses make of the links that follow some; ``gap_s``: as for ``LinkTrace.course``.

        Links that follow the same share them.
        """
        made: dict[tuple[int, tuple[str, ...]], Course] = {}
        found: dict[Link, tuple[Course, ...]] = {}
        for link, says in self._says.items():
            followed: dict[int, tuple[LinkTrace, list[str]]] = {}
            for field in (DELAY, LOSS):
                said = says.get(_GROUP_OF[field])
                if said is not None and said.trace is not None and field in said.trace.figures:
                    followed.setdefault(id(said.trace), (said.trace, []))[1].append(field)
            for trace, fields in followed.values():
                key = (id(trace), tuple(fields))
                if key not in made:
                    made[key] = trace.course(fields, gap_s)
                found[link] = (*found.get(link, ()), made[key])
        return found

    def links(self) -> tuple[dict[Link, LinkShape], dict[Link, BandwidthTrace]]:
        """Every link's shape at the start, emulated, and the traces of those whose rate follows one."""
        shapes: dict[Link, LinkShape] = {}
        traces: dict[Link, BandwidthTrace] = {}
        for link, says in self._says.items():
            figures: dict[str, Any] = {}
            for key, said in says.items():
                figures |= fields(key, _figure(key, said)) if key in _PLAIN else {}
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
        found, mean_bps = self._measured(link, said, "throughput"), said.sets.link_mean
        return found if mean_bps is None else found * mean_bps / said.grids["throughput"].mean

    def _trace(self, link: Link, said: _Said, pool: TraceSet) -> BandwidthTrace:
        """The pair's own series where the set and the file name sites, else one drawn from the whole set."""
        ends = [self.hosts[host] for host in link[:2]]
        sites = [host.site for host in ends if host.site is not None and not host.drawn]
        if pool.pairs and len(sites) == 2:
            names = [pool.sites.find(site) for site in sites]
            found = pool.pairs.get((names[0] or "", names[1] or ""))
            if found is not None:
                return self._own_series(pool, found)
            if said.sets.missing != FILL:
                raise self._missing(link, said, "traces", names)
        return draw(pool.pool, self._seed, *link).cut()

    def _own_series(self, pool: TraceSet, found: Mapping[str, BandwidthTrace]) -> BandwidthTrace:
        """All links follow one batch of measurements where that has them, from one moment on: it varied together."""
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
        """A set has nothing for a link, or ``measured`` nothing; ``names``: what it calls the sites of the ends."""
        sites = [self.hosts[host].site or "" for host in link[:2]]
        unknown = next((site for site, name in zip(sites, names, strict=True) if name is None), None)
        why = f"; it has no site {unknown!r}" if unknown else "; both are at one site" if names[0] == names[1] else ""
        if measured is not None:
            why = "; it measured 0"
        a, b = (host if host == site else f"{host} ({site})" for host, site in zip(link[:2], sites, strict=True))
        instead = "a delay" if key == "latency" else "a rate"
        filled = "a drawn trace" if key == "traces" else "the median"
        return said.spot.error(
            f"{key} {said.spot.value[key]!r} has nothing for {a} → {b}{why}; give the link {instead} of its own in a"
            f' [[link]], or set missing = "{FILL}" for {filled}',
            key,
        )


def _figure(key: str, said: _Said) -> Any:
    """What a table says; of a trace's loss the first, which is not a shape's where it is all (its course cuts)."""
    if key in said.figures or said.trace is None:
        return said.figures[key]
    first = float(said.trace.figures[LOSS][0])
    return first if first < 1 else 0.0
