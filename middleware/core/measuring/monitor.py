"""What a host knows of the network's bandwidth: its own measurements and what others told it. Pure.

Rules (Ranganathan et al., section 4):

R1. Passive: a transfer of at least S_THRES (16 KB) is a sample of its link, in a graph also one
    that took ``LONG_S``: a slow link that carries little holds up there what others carry. A probe always is. A link
    from here that has a sample of the last ``sample_interval_s`` gets no passive one.
R2. A link's estimate is what a forecaster makes of the samples its sender took; it lives ``max_age_s`` (T_THRES, 40 s).
R3. The latest estimates that fit in ``news_bytes`` (1 KB) ride on messages that are sent anyway; what did not fit by
    then waits until it changes. A peer is not told what it told us, nor what it measures itself. What it was told, it
    is told again after ``TELL_INTERVAL_S`` if it has changed by ``change``, else after half of T_THRES.
R4. Of two estimates of a link the one with more samples is the later: ages suffer on the way, where a message
    waits behind a partition. A link's own sender knows best.

The memory is bounded: ``max_links`` links, each with one estimate, and a forecaster if it is measured here.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from thalweg.middleware.network.forecasting import Forecaster, Window, make_forecaster
from thalweg.middleware.network.history import History
from thalweg.middleware.network.view import Link, LinkEstimate
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.limits import S_THRES, T_THRES, MonitorConfig
from thalweg.middleware.protocol.run_id import RunId

Ends = tuple[
    str, ...
]  # of a link, as it hashes: its hosts, and over another network than the shared one that one's name
TELL_INTERVAL_S = T_THRES / 8  # between two notifications of one host about one link
KEPT = 10  # times T_THRES that what has timed out is still kept, for those who find nothing newer in time
LONG_S = 1.0  # twenty times the start-up cost of a message in section 4: the rest is the link's
How = Literal["passive", "probe"]

_size = msgspec.msgpack.Encoder()


class _Series:
    """The samples of a link that is measured here."""

    __slots__ = ("count", "forecaster", "recent", "window")

    def __init__(self, forecaster: Forecaster, best_of: int) -> None:
        self.forecaster = forecaster
        self.recent: deque[tuple[float, float]] = deque(maxlen=best_of)  # (rate, when)
        self.window = Window()  # for the spread
        self.count = 0


@dataclass(slots=True)
class _Listener:
    """A peer that gets news: what it was told and when, and up to which change of the cache."""

    told: dict[Ends, tuple[float, float]] = field(default_factory=dict)  # (rate, when)
    changes: int = 0
    seen_s: float = 0.0


class Monitor:
    """The bandwidth monitor of ``host``. Times (``now``) never decrease."""

    def __init__(self, host: str, config: MonitorConfig | None = None) -> None:
        self.host = host
        self.config = config or MonitorConfig()
        self.news_bytes = 0  # of all news given so far
        self._cache: dict[Ends, LinkEstimate] = {}
        self._series: dict[Ends, _Series] = {}
        self._listeners: dict[str, _Listener] = {}
        self._changes = 0
        self._changed: dict[Ends, int] = {}  # which change of the cache a link's was, the latest change last
        self._sweep_s = -math.inf
        self.histories: dict[RunId, History] = {}  # that runs have kept: every change of the cache goes into them

    def keep_history(self, key: RunId, history: History) -> None:
        """Keep a history of all changes of the cache, until ``drop_history``."""
        self.histories[key] = history

    def drop_history(self, key: RunId) -> None:
        """Keep that history no more, if it was kept."""
        self.histories.pop(key, None)

    # --- what comes in --------------------------------------------------------------------------------

    def measured(
        self,
        link: Ends,
        size_bytes: int,
        duration_s: float,
        now: float,
        how: How,
        *,
        long_s: float = math.inf,
    ) -> LinkEstimate | None:
        """Take a sample: ``size_bytes`` went over ``link`` in ``duration_s`` busy seconds.
        One that took ``long_s`` is never too small.

        The link's estimate with it; None when it is no sample (too small, no time, not between two hosts).
        """
        small = size_bytes < S_THRES and duration_s < long_s
        if how == "passive" and (small or (link[0] == self.host and self.knows(link, now))):
            return None  # R1: the transfer is too small, or the last sample is too young
        if link[0] == link[1] or size_bytes <= 0 or not 0 < duration_s < math.inf:
            return None
        series = self._series.get(link)
        if series is None:
            if len(self._series) >= self.config.max_links:
                del self._series[next(iter(self._series))]
            series = self._series[link] = _Series(make_forecaster(self.config.forecaster), self.config.best_of)
        rate_bps = size_bytes * 8 / duration_s
        series.recent.append((rate_bps, now))
        fastest_bps = max(rate for rate, at_s in series.recent if now - at_s <= self.config.max_age_s)
        series.forecaster.add(fastest_bps, now)  # R2: the fastest of the latest samples counts
        series.window.add(rate_bps, now)
        series.count += 1
        estimate = LinkEstimate(series.forecaster.forecast(), series.count, series.window.spread(), now)
        self._learn(link, estimate, now, "")
        return estimate

    def stalled(self, link: Ends, size_bytes: int, waited_s: float, now: float) -> LinkEstimate | None:
        """Take for a sample that so much has not come through ``link`` in that time, whatever it carried before.

        A value that is ``NOTHING`` has no bytes, and counts as one.
        """
        before = self._series.get(link)
        if before is not None:
            count = before.count
            before = self._series[link] = _Series(make_forecaster(self.config.forecaster), self.config.best_of)
            before.count = count
        return self.measured(link, max(1, size_bytes), waited_s, now, "probe")

    def knows(self, link: Ends, now: float) -> bool:
        """Whether the last sample of a link from here is so young that no passive one is wanted."""
        series = self._series.get(link)
        return series is not None and now - series.recent[-1][1] < self.config.sample_interval_s

    def handle_estimates(
        self, estimates: Iterable[m.Estimate], now: float, sender: str = "", size_bytes: int = 0
    ) -> None:
        """Merge what ``sender`` told; the later estimate of a link wins.

        ``size_bytes``: what travelled with the news; they are older by the time it took, as far as that is known.
        """
        carrier = self.estimate((sender, self.host), now) if size_bytes else None
        travelled_s = size_bytes * 8 / carrier.rate_bps if carrier is not None and carrier.rate_bps > 0 else 0.0
        sent_s = now - travelled_s
        oldest_s = now - self.config.max_age_s
        for report in estimates:
            end = report.target
            link: Ends = (report.source, end) if type(end) is str else report.link
            if link[0] == link[1] or sent_s - report.age_ms / 1000 < oldest_s:
                continue
            known = self._cache.get(link)
            if known is not None and known.measured_at_s >= oldest_s:
                if link in self._series or known.count > report.count:
                    continue  # R4: this host measures the link itself, or knows of more samples
                if known.count == report.count and not _newer(report, known, sent_s):
                    continue
            self._learn(link, as_link_estimate(report, sent_s), now, sender)

    def _learn(self, link: Ends, estimate: LinkEstimate, now: float, sender: str) -> None:
        if now >= self._sweep_s:
            self._sweep(now)
        if link not in self._cache and len(self._cache) >= self.config.max_links:
            self._drop(min(self._cache, key=lambda old: self._cache[old].measured_at_s))
        self._cache[link] = estimate
        for history in self.histories.values():
            history.add(link, estimate)
        self._changes += 1
        self._changed.pop(link, None)
        self._changed[link] = self._changes
        listener = self._listeners.get(sender)
        if listener is not None:
            listener.told[link] = estimate.rate_bps, now
            if len(listener.told) > 2 * self.config.max_links:
                self._trim(listener)

    def _worth_telling(self, listener: _Listener, link: Ends, estimate: LinkEstimate, now: float) -> bool:
        last = listener.told.get(link)
        if last is None:
            return True
        rate_bps, told_s = last
        if now - told_s < TELL_INTERVAL_S:
            return False
        changed = abs(estimate.rate_bps - rate_bps) >= self.config.change * rate_bps
        return changed or now - told_s > self.config.max_age_s / 2

    # --- what goes out --------------------------------------------------------------------------------

    def estimate(self, link: Ends, now: float) -> LinkEstimate | None:
        """What is known of a link; None when nothing is, or not since T_THRES."""
        known = self._cache.get(link)
        return known if known is not None and now - known.measured_at_s <= self.config.max_age_s else None

    def latest(self, link: Ends) -> LinkEstimate | None:
        """What was last known of a link, though it may be older than T_THRES (not than ``KEPT`` times that)."""
        return self._cache.get(link)

    def view(self, now: float, max_age_s: float | None = None) -> dict[Link, LinkEstimate]:
        """All estimates that are at most ``max_age_s`` old (default and most: T_THRES)."""
        oldest_s = now - min(self.config.max_age_s, math.inf if max_age_s is None else max_age_s)
        return {Link(*link): known for link, known in self._cache.items() if known.measured_at_s >= oldest_s}

    def ever(self) -> dict[Link, LinkEstimate]:
        """All that is kept of links, however old."""
        return {Link(*link): known for link, known in self._cache.items()}

    def news_for(self, peer: str, now: float) -> tuple[m.Estimate, ...]:
        """What to tell ``peer`` with the next message to it: the latest that fit. At once when there is none."""
        listener = self._listeners.get(peer)
        if listener is None:
            listener = self._listeners[peer] = _Listener()
        listener.seen_s = now
        if listener.changes == self._changes:
            return ()
        news: list[m.Estimate] = []
        left = self.config.news_bytes - 3  # the array's own header
        oldest_s = now - self.config.max_age_s
        for link, change in reversed(self._changed.items()):
            if change <= listener.changes:
                break
            estimate = self._cache[link]
            if link[0] == peer or estimate.measured_at_s < oldest_s:
                continue  # R3: the peer measures the link itself, or the estimate is too old
            if not self._worth_telling(listener, link, estimate, now):
                continue
            report = as_message(link, estimate, now)
            size = len(_size.encode(report))
            if size > left:  # R3: an estimate that does not fit waits until it changes
                break
            left -= size
            self.news_bytes += size
            news.append(report)
            listener.told[link] = estimate.rate_bps, now
        listener.changes = self._changes
        return tuple(news)

    # --- bounds ---------------------------------------------------------------------------------------

    def forget(self) -> None:
        """Know nothing of any link, as at the beginning."""
        for table in (self._cache, self._series, self._listeners, self._changed):
            table.clear()

    def _sweep(self, now: float) -> None:
        """Forget what is too old, and peers that nothing was sent to for long."""
        self._sweep_s = now + self.config.max_age_s
        oldest_s = now - KEPT * self.config.max_age_s
        for link in [link for link, known in self._cache.items() if known.measured_at_s < oldest_s]:
            self._drop(link)
        for peer, listener in list(self._listeners.items()):
            if now - listener.seen_s > KEPT * self.config.max_age_s:
                del self._listeners[peer]
            elif len(listener.told) > len(self._cache):
                self._trim(listener)

    def _trim(self, listener: _Listener) -> None:
        """Forget what a peer was told of links that are not known any more."""
        listener.told = {link: last for link, last in listener.told.items() if link in self._cache}

    def _drop(self, link: Ends) -> None:
        del self._cache[link], self._changed[link]


def _newer(told: m.Estimate, known: LinkEstimate, sent_s: float) -> bool:
    """Whether what was told at ``sent_s`` is another estimate of as many samples, and a younger one."""
    same = (told.rate_bps, told.spread_bps) == (known.rate_bps, known.spread_bps)
    return not same and sent_s - told.age_ms / 1000 > known.measured_at_s


def as_message(link: Ends, estimate: LinkEstimate, now: float) -> m.Estimate:
    """An estimate as it travels, its age counted from ``now``."""
    age_ms = max(0, round((now - estimate.measured_at_s) * 1000))
    end = link[1] if len(link) == 2 else m.LinkEnd(link[1], link[2])
    return m.Estimate(
        link[0], end, max(1, round(estimate.rate_bps)), round(estimate.spread_bps), estimate.count, age_ms
    )


def as_link_estimate(told: m.Estimate, sent_s: float) -> LinkEstimate:
    """An estimate that was sent at ``sent_s``."""
    return LinkEstimate(float(told.rate_bps), told.count, float(told.spread_bps), sent_s - told.age_ms / 1000)


def estimate_fields(link: Ends, estimate: LinkEstimate, size_bytes: int, duration_s: float, how: How) -> dict[str, Any]:
    """The fields of an ``estimate`` record: what ``Monitor.measured`` was told, and the estimate it gave."""
    detail = {
        "src": link[0],
        "dst": link[1],
        "rate_bps": estimate.rate_bps,
        "sample_bps": size_bytes * 8 / duration_s,
        "count": estimate.count,
        "spread_bps": estimate.spread_bps,
        "how": how,
    } | ({"via": link[2]} if len(link) > 2 else {})
    fields = {"peer": link[1], "value": estimate.rate_bps, "size_bytes": size_bytes, "duration_s": duration_s}
    return {**fields, "detail": detail}
