"""The links of a scenario file: constants, traces and data sets by sites become a shape, or a trace, for every link.

Every directed pair of hosts has the figures of ``[links]``, unless a ``[[link]]`` says otherwise; of several that say
something the last in the file counts, figure by figure. A rate comes from one of ``rate``, ``trace``, ``traces`` and
``throughput``, a delay from ``delay`` or ``latency``: one of these in a ``[[link]]`` takes the place of any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from thalweg.emulation.links.shape import DISTRIBUTIONS, LinkShape
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
from thalweg.emulation.scenarios.hosts import HostSpec, draw_sites, links_named
from thalweg.emulation.scenarios.toml_table import Reader, Table, flag, one_of, text, texts
from thalweg.emulation.traces.files import read_trace
from thalweg.emulation.traces.pool import draw, scale_pool, two_draws
from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.emulation.units import rate_bps, seconds, share, size_bytes
from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.view import Link, links_between

MAX_DELAY_S = 60.0
FILL = "fill"
_Read = TypeVar("_Read")


def delay(value: Any) -> float:
    found = seconds(value)
    if found > MAX_DELAY_S:
        raise UsageError(f"{value!r} is more than {MAX_DELAY_S:g} s; is its unit right?")
    return found


ENDS: dict[str, Reader] = {"from": texts, "to": texts, "both": flag, "host": texts}
SHAPE: dict[str, Reader] = {
    "rate": rate_bps,
    "delay": delay,
    "jitter": delay,
    "distribution": one_of(*DISTRIBUTIONS),
    "loss": share,
    "duplicate": share,
    "reorder": share,
    "corrupt": share,
    "burst": size_bytes,
}
FIELDS = {"rate": "rate_bps", "delay": "delay_s", "jitter": "jitter_s", "burst": "burst_bytes"}  # others: as they are
_SETS: dict[str, Reader] = {
    "trace": text, "traces": text, "throughput": text, "latency": text, "link_mean": rate_bps,
    "missing": one_of("error", FILL),
}  # fmt: skip
LINKS = SHAPE | _SETS
_RATE, _DELAY = ("rate", "trace", "traces", "throughput"), ("delay", "latency")
_GRIDS: tuple[Kind, ...] = ("latency", "throughput")


class LinkReader:
    """Reads ``[links]`` and ``[[link]]`` of a file, and the data sets that they name."""

    def __init__(self, root: Table, hosts: Mapping[str, HostSpec], seed: int) -> None:
        """Raises UsageError naming the line for keys, links and data sets that are wrong."""
        self._root, self._seed = root, seed
        self._folder = Path(root.file).parent
        self._pools: dict[tuple[Path | None, float | None], TraceSet] = {}
        self._sets: dict[tuple[int, str], Any] = {}  # by table and key
        self._grids: dict[tuple[Path, Kind], Grid] = {}
        self._says: dict[Link, dict[str, Table]] = {link: {} for link in links_between(hosts)}
        common = root.inner("links", "[links]")
        common.read(LINKS)
        self._take(common, self._says)
        for table in root.inner_all("link", "[[link]]"):
            table.read(ENDS | LINKS)
            self._take(table, links_named(table, hosts))
        self.hosts = self._sited(hosts)

    def _take(self, table: Table, links: Iterable[Link]) -> None:
        values = table.values
        for sources in (_RATE, _DELAY):
            chosen = [key for key in sources if key in values]
            if len(chosen) > 1:
                raise table.error(f"{chosen[0]} and {chosen[1]} both say it; leave one of them out", chosen[1])
        if "link_mean" in values and not ("traces" in values or "throughput" in values):
            raise table.error("link_mean scales the traces or the throughput of its own table; it has none",
                              "link_mean")  # fmt: skip
        for key, kind in (("traces", "bandwidth"), ("latency", "latency"), ("throughput", "throughput")):
            if key in values:
                self._load(table, key, kind)  # type: ignore[arg-type]
        if "trace" in values:
            trace = _at(table, "trace", lambda: read_trace(self._folder / values["trace"]))
            self._sets[id(table), "trace"] = trace
        groups = {key: "rate" if key in _RATE else "delay" if key in _DELAY else key for key in values}
        said = {group: table for key, group in groups.items() if key not in ENDS}
        for link in links:
            self._says[link].update(said)

    def _load(self, table: Table, key: str, kind: Kind) -> None:
        name = table.values[key]
        if kind == "bandwidth":
            mean = table.values.get("link_mean")
            path = None if name == GENERATED else _at(table, key, lambda: find_set(name, kind, self._folder))
            if (path, mean) not in self._pools:
                pool = _at(table, key, lambda: read_traces(path, self._seed))
                if mean is not None:
                    pool = TraceSet(pool.name, _at(table, key, lambda: scale_pool(pool.pool, mean)))
                self._pools[path, mean] = pool
            self._sets[id(table), key] = self._pools[path, mean]
            return
        path = _at(table, key, lambda: find_set(name, kind, self._folder))
        if (path, kind) not in self._grids:
            self._grids[path, kind] = _at(table, key, lambda: read_grid(path, kind))
        self._sets[id(table), key] = self._grids[path, kind]

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

    def links(self) -> tuple[dict[Link, LinkShape], dict[Link, BandwidthTrace]]:
        """Every link's shape at the start, emulated, and the traces of those whose rate follows one."""
        shapes: dict[Link, LinkShape] = {}
        traces: dict[Link, BandwidthTrace] = {}
        for link, says in self._says.items():
            others = says.keys() & SHAPE.keys() - {"rate", "delay"}
            figures = {FIELDS.get(key, key): says[key].values[key] for key in others}
            rate = self._rate(link, says.get("rate"))
            if isinstance(rate, BandwidthTrace):
                traces[link] = rate
                rate = rate.rate_at(0.0)
            delay_s = self._delay(link, says["delay"]) if "delay" in says else 0.0
            if figures.get("reorder") and not delay_s:
                raise says["reorder"].error(
                    f"reorder: packets that do not wait cannot overtake; give link {link[0]} → {link[1]} a delay",
                    "reorder",
                )
            shapes[link] = LinkShape(rate, delay_s, **figures)
        return shapes, traces

    def _rate(self, link: Link, table: Table | None) -> float | BandwidthTrace:
        if table is None:
            raise self._root.error(
                f"link {link[0]} → {link[1]} has no rate; give [links] a rate, traces or throughput", "links"
            )
        if "rate" in table.values:
            return float(table.values["rate"])
        if "trace" in table.values:
            trace: BandwidthTrace = self._sets[id(table), "trace"]
            return trace
        if "traces" in table.values:
            return self._trace(link, table)
        grid: Grid = self._sets[id(table), "throughput"]
        mean = table.values.get("link_mean")
        found = self._measured(link, table, "throughput", "a rate of its own")
        return found if mean is None else found * mean / grid.mean

    def _trace(self, link: Link, table: Table) -> BandwidthTrace:
        """The pair's own series where the set and the file name sites, else one drawn from the whole set."""
        pool: TraceSet = self._sets[id(table), "traces"]
        ends = [self.hosts[host] for host in link]
        sites = [host.site for host in ends if host.site is not None and not host.drawn]
        if pool.pairs and len(sites) == 2:
            names = [pool.sites.find(site) for site in sites]
            found = pool.pairs.get((names[0] or "", names[1] or ""))
            if found is not None:
                return self._own_series(pool, found)
            if table.values.get("missing") != FILL:
                unknown = next((site for site, name in zip(sites, names, strict=True) if name is None), None)
                why = f"; it has no site {unknown!r}" if unknown else ""
                raise self._missing(link, sites, table, "traces", why, "a rate of its own")
        return draw(pool.pool, self._seed, *link).cut()

    def _own_series(self, pool: TraceSet, found: Mapping[str, BandwidthTrace]) -> BandwidthTrace:
        """All links follow one batch of measurements where that has them, from one moment on: it varied together."""
        order = sorted(pool.batches, key=lambda batch: two_draws(self._seed, "batch", batch))
        trace = next(found[batch] for batch in order if batch in found)
        return trace.offset(two_draws(self._seed, "start")[0] / 2**64 * trace.duration_s)

    def _delay(self, link: Link, table: Table) -> float:
        if "delay" in table.values:
            return float(table.values["delay"])
        return self._measured(link, table, "latency", "a delay of its own") / 2

    def _measured(self, link: Link, table: Table, key: str, instead: str) -> float:
        grid: Grid = self._sets[id(table), key]
        sites = [self.hosts[host].site or "" for host in link]
        source, target = (grid.sites.find(site) for site in sites)
        value = grid.value(source, target) if source and target else None
        if value is None and table.values.get("missing") == FILL:
            return grid.median
        if value is None:
            unknown = next((site for site in sites if grid.sites.find(site) is None), None)
            why = f"; it has no site {unknown!r}" if unknown else "; both are at one site" if source == target else ""
            raise self._missing(link, sites, table, key, why, instead)
        if key == "throughput" and not value:
            raise self._missing(link, sites, table, key, "; it measured 0", instead)
        return value

    @staticmethod
    def _missing(link: Link, sites: Sequence[str], table: Table, key: str, why: str, instead: str) -> UsageError:
        a, b = (host if host == site else f"{host} ({site})" for host, site in zip(link, sites, strict=True))
        filled = "a drawn trace" if key == "traces" else "the median"
        return table.error(
            f"{key} {table.values[key]!r} has nothing for {a} → {b}{why}; give the link {instead} in a [[link]], or"
            f' set missing = "{FILL}" for {filled}',
            key,
        )


def _at(table: Table, key: str, read: Callable[[], _Read]) -> _Read:
    """What ``read`` returns; its errors get the line of the key."""
    try:
        return read()
    except UsageError as error:
        raise table.error(f"{key}: {error}", key) from None
