"""Bandwidth estimates on one host: its own measurements, and estimates from other hosts. Pure.

Rules (Ranganathan et al., section 4):

R1. A transfer of at least S_THRES (16 KB) is a passive sample of its link. In a graph, a transfer of at least
    ``LONG_S`` is a sample as well, because a slow link with little traffic delays other links there. A probe is always
    a sample. A link from the local host gets no passive sample within ``sample_interval_s`` after its last sample.
R2. The estimate of a link is a forecast from the samples of the link's sender. It expires after ``max_age_s`` (T_THRES,
    40 s).
R3. The latest estimates that fit in ``news_bytes`` (1 KB) are piggybacked. An estimate that does not fit waits for its
    next change. A peer gets no estimate of a link that the peer measures itself. An estimate received from a peer
    counts as sent to the peer. An estimate is sent to a peer again after ``TELL_INTERVAL_S`` if the rate has changed by
    ``change``, otherwise after half of T_THRES.
R4. Of two estimates of a link, the estimate with more samples is the later. Ages are inexact, because a message may
    wait behind a partition. A host that measures a link itself prefers its own estimate.

The memory is bounded: ``max_links`` links, each with one estimate, and with a forecaster if the host measures the link.
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

Ends = tuple[str, ...]  # key of a link: its hosts, and the name of its network if that is not the shared network
TELL_INTERVAL_S = T_THRES / 8  # between two reports to a host about the same link
KEPT = 10  # times T_THRES: age up to which expired estimates are kept, for callers without a newer estimate
LONG_S = 1.0  # twenty times the start-up cost of a message in section 4, so the link's share dominates
How = Literal["passive", "probe"]

_size = msgspec.msgpack.Encoder()


class _Series:
    """Samples of a link that the host measures, with the forecaster of the link."""

    __slots__ = ("count", "forecaster", "recent", "window")

    def __init__(self, forecaster: Forecaster, best_of: int) -> None:
        self.forecaster = forecaster
        self.recent: deque[tuple[float, float]] = deque(maxlen=best_of)  # (rate, time)
        self.window = Window()  # samples for the spread
        self.count = 0


@dataclass(slots=True)
class _Listener:
    """Peer that gets piggybacked estimates: the rates sent so far, and the last change of the cache considered."""

    told: dict[Ends, tuple[float, float]] = field(default_factory=dict)  # by link (rate, time of the report)
    changes: int = 0
    seen_s: float = 0.0


class Monitor:
    """Bandwidth monitor of ``host``: the latest estimate of every known link. Times (``now``) never decrease."""

    def __init__(self, host: str, config: MonitorConfig | None = None) -> None:
        self.host = host
        self.config = config or MonitorConfig()
        self.news_bytes = 0  # total size of the estimates sent
        self._cache: dict[Ends, LinkEstimate] = {}
        self._series: dict[Ends, _Series] = {}
        self._listeners: dict[str, _Listener] = {}
        self._changes = 0
        self._changed: dict[Ends, int] = {}  # by link, the number of its last change, the latest change at the end
        self._sweep_s = -math.inf
        self.histories: dict[RunId, History] = {}  # of runs; every change of the cache is added to them

    def keep_history(self, key: RunId, history: History) -> None:
        """Add every change of the cache to a history, until ``drop_history`` is called with the same key."""
        self.histories[key] = history

    def drop_history(self, key: RunId) -> None:
        """Stop adding changes of the cache to the history with a key, if there is one."""
        self.histories.pop(key, None)

    # --- input ----------------------------------------------------------------------------------------

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
        """Take a sample of ``link``: ``size_bytes`` in ``duration_s`` busy seconds. Return the link's new estimate.

        ``long_s``: a transfer of this duration is never too small. The result is None if the transfer is no sample.
        Then the transfer is too small, has no duration, is not between two hosts, or follows a recent sample (R1).
        """
        small = size_bytes < S_THRES and duration_s < long_s
        if how == "passive" and (small or (link[0] == self.host and self.knows(link, now))):
            return None  # R1: the transfer is too small, or the last sample is recent
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
        """Take a sample of a stalled link: ``size_bytes`` have not arrived in ``waited_s``. Drop its earlier samples.

        A value that is ``NOTHING`` has no bytes, and counts as one byte.
        """
        before = self._series.get(link)
        if before is not None:
            count = before.count
            before = self._series[link] = _Series(make_forecaster(self.config.forecaster), self.config.best_of)
            before.count = count
        return self.measured(link, max(1, size_bytes), waited_s, now, "probe")

    def knows(self, link: Ends, now: float) -> bool:
        """Return whether the last sample of a link is so recent that no passive sample is needed (R1)."""
        series = self._series.get(link)
        return series is not None and now - series.recent[-1][1] < self.config.sample_interval_s

    def handle_estimates(
        self, estimates: Iterable[m.Estimate], now: float, sender: str = "", size_bytes: int = 0
    ) -> None:
        """Merge estimates received from ``sender``. The later estimate of a link wins (R4).

        ``size_bytes``: size of the message that carried the estimates. Their ages grow by its transfer time, if the
        rate of the link from the sender is known.
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

    # --- output ---------------------------------------------------------------------------------------

    def estimate(self, link: Ends, now: float) -> LinkEstimate | None:
        """Return the estimate of a link. None: the link is unknown, or its estimate has expired (T_THRES)."""
        known = self._cache.get(link)
        return known if known is not None and now - known.measured_at_s <= self.config.max_age_s else None

    def latest(self, link: Ends) -> LinkEstimate | None:
        """Return the last estimate of a link, even if the estimate has expired. None: the link is unknown.

        Estimates are kept for ``KEPT`` times T_THRES.
        """
        return self._cache.get(link)

    def view(self, now: float, max_age_s: float | None = None) -> dict[Link, LinkEstimate]:
        """Return every estimate that is at most ``max_age_s`` old. Default and maximum: T_THRES."""
        oldest_s = now - min(self.config.max_age_s, math.inf if max_age_s is None else max_age_s)
        return {Link(*link): known for link, known in self._cache.items() if known.measured_at_s >= oldest_s}

    def ever(self) -> dict[Link, LinkEstimate]:
        """Return every estimate in the cache, including expired estimates."""
        return {Link(*link): known for link, known in self._cache.items()}

    def news_for(self, peer: str, now: float) -> tuple[m.Estimate, ...]:
        """Return the estimates to piggyback on the next message to ``peer``: the latest that fit (R3).

        If nothing has changed since the last message, the result is empty, and is returned without a search.
        """
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
        """Forget every link and peer, as at the beginning."""
        for table in (self._cache, self._series, self._listeners, self._changed):
            table.clear()

    def _sweep(self, now: float) -> None:
        """Drop estimates that are too old, and peers without a message for a long time."""
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
        """Forget rates sent to a peer for links that are no longer in the cache."""
        listener.told = {link: last for link, last in listener.told.items() if link in self._cache}

    def _drop(self, link: Ends) -> None:
        del self._cache[link], self._changed[link]


def _newer(told: m.Estimate, known: LinkEstimate, sent_s: float) -> bool:
    """Return whether an estimate sent at ``sent_s`` differs from an estimate of as many samples, and is younger."""
    same = (told.rate_bps, told.spread_bps) == (known.rate_bps, known.spread_bps)
    return not same and sent_s - told.age_ms / 1000 > known.measured_at_s


def as_message(link: Ends, estimate: LinkEstimate, now: float) -> m.Estimate:
    """Return an estimate in message form, with its age at ``now``."""
    age_ms = max(0, round((now - estimate.measured_at_s) * 1000))
    end = link[1] if len(link) == 2 else m.LinkEnd(link[1], link[2])
    return m.Estimate(
        link[0], end, max(1, round(estimate.rate_bps)), round(estimate.spread_bps), estimate.count, age_ms
    )


def as_link_estimate(told: m.Estimate, sent_s: float) -> LinkEstimate:
    """Return an estimate from a report that was sent at ``sent_s``."""
    return LinkEstimate(float(told.rate_bps), told.count, float(told.spread_bps), sent_s - told.age_ms / 1000)


def estimate_fields(link: Ends, estimate: LinkEstimate, size_bytes: int, duration_s: float, how: How) -> dict[str, Any]:
    """Return the fields of an ``estimate`` record: arguments of ``Monitor.measured``, and the resulting estimate."""
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
