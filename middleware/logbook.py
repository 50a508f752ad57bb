"""Log records of hosts and clients, which go to the logger ``thalweg``.

Rules:

- R1: This module configures nothing. Handlers and levels are set by the application, or by ``thalweg host``.
- R2: ``EVENTS`` has a row with the level of every event. Every log record has ``FIELDS`` as attributes.
- R3: ``WORDS`` is the only place that turns a record of the event log into a log record. Cores log nothing.
- R4: An event that peers or data can cause often is logged once in ``QUIET_S`` for each peer or node. Suppressed log
  records are counted. The next log record of the same event and peer has their number.
- R5: Text of hosts is logged as one printable line. The memory for R4 is bounded.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from thalweg.middleware.errors import in_seconds, one_line, printable

LOG = logging.getLogger("thalweg")
SLOW_S = 10.0  # of waiting for a consumer before a log record
QUIET_S = 1.0  # between two log records of the same event and peer
REMEMBERED = 256  # pairs of event and peer, for R4
FIELDS = ("event", "host", "run", "peer", "node", "index", "size_bytes", "duration_s", "reason", "suppressed")
DEBUG, INFO, WARNING, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR


class LogEvent(NamedTuple):
    """Kind of log record, with a level, and whether R4 limits the rate."""

    level: int
    often: bool = False


EVENTS: dict[str, LogEvent] = {
    "run-failed": LogEvent(ERROR),
    "node-failed": LogEvent(ERROR),
    "runtime-broke": LogEvent(ERROR),
    "host-stopped": LogEvent(ERROR),
    "records-missing": LogEvent(ERROR),
    "journal-failed": LogEvent(ERROR),
    "host-lost": LogEvent(WARNING),
    "host-refused": LogEvent(WARNING, often=True),
    "host-stays": LogEvent(WARNING),
    "host-slept": LogEvent(WARNING),
    "certificate-expires": LogEvent(WARNING),
    "certificate-expired": LogEvent(ERROR),
    "certificate-refused": LogEvent(WARNING, often=True),
    "client-lost": LogEvent(WARNING),
    "subscriber-lost": LogEvent(WARNING),
    "tree-lost": LogEvent(WARNING),
    "route-failed": LogEvent(WARNING, often=True),
    "peer-unreachable": LogEvent(WARNING, often=True),
    "message-refused": LogEvent(WARNING, often=True),
    "move-refused": LogEvent(WARNING),
    "planner-failed": LogEvent(WARNING),
    "query-refused": LogEvent(WARNING),
    "rows-late": LogEvent(WARNING, often=True),
    "rows-skipped": LogEvent(WARNING, often=True),
    "partition-skipped": LogEvent(WARNING, often=True),
    "consumer-slow": LogEvent(WARNING, often=True),
    "stream-waits": LogEvent(WARNING, often=True),
    "replica-missing": LogEvent(WARNING, often=True),
    "journal-trouble": LogEvent(WARNING),
    "journal-mended": LogEvent(WARNING),
    "run-begun": LogEvent(INFO),
    "run-over": LogEvent(INFO),
    "run-recovered": LogEvent(INFO),
    "host-joined": LogEvent(INFO),
    "host-drained": LogEvent(INFO),
    "operator-moved": LogEvent(INFO),
    "placement-changed": LogEvent(INFO),
    "tree-changed": LogEvent(INFO),
    "move-dropped": LogEvent(INFO),
    "plan-taken": LogEvent(INFO),
    "plan-dropped": LogEvent(INFO),
    "query-begun": LogEvent(INFO),
    "query-left": LogEvent(INFO),
    "sources-uneven": LogEvent(INFO),
    "plan-kept": LogEvent(DEBUG),
    "message-dropped": LogEvent(DEBUG, often=True),
}


class LogLine(NamedTuple):
    """Event and message of a log record, and the reason if there is one."""

    event: str
    text: str
    reason: str = ""


@dataclass(slots=True)
class _Quiet:
    """Time of the last log record of an event and peer, and the number of suppressed log records since."""

    at_s: float
    suppressed: int = 0
    text: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)  # of the last suppressed log record


class Logbook:
    """Writer of the log records of a host or client with the name ``host``. Every thread may write.

    ``clock`` returns seconds that never decrease.
    """

    def __init__(self, host: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.host, self._clock = host, clock
        self._lock = threading.Lock()
        self._quiet: dict[tuple[str, str], _Quiet] = {}
        self._lagging: dict[tuple[str, str, str], tuple[int, float]] = {}  # the awaited partition, and since when

    def write(self, event: str, text: str, *, about: str = "", more: str = "", **fields: Any) -> None:
        """Write a log record of ``event`` with these ``FIELDS``, unless R4 suppresses the record.

        ``about``: the key of R4, if neither the field ``peer`` nor ``node`` is the key. ``more``: further lines.
        """
        level, often = EVENTS[event]
        if not LOG.isEnabledFor(level):
            return
        suppressed = 0
        text = one_line(text)
        if often:
            key = event, str(about or fields.get("peer") or fields.get("node") or "")
            if (before := self._count(key, text, fields)) is None:
                return
            suppressed = before
        self._emit(event, text, more, fields, suppressed)

    def record(self, run: str, kind: str, fields: Mapping[str, Any]) -> None:
        """Write a log record for a record of the event log, if ``WORDS`` has its kind (R3)."""
        words = WORDS.get(kind)
        line = None if words is None else words(fields)
        if line is not None:
            known = {name: value for name in FIELDS if (value := fields.get(name)) is not None}
            self.write(line.event, line.text, **known, run=run, reason=line.reason)

    def flush(self) -> None:
        """Log the number of suppressed log records of peers that have been quiet since (R4)."""
        now, due = self._clock(), []
        with self._lock:
            for key, quiet in list(self._quiet.items()):
                if now - quiet.at_s >= QUIET_S:
                    del self._quiet[key]
                    if quiet.suppressed:
                        due.append((key[0], quiet))
        for event, quiet in due:
            self._emit(event, quiet.text, "", quiet.fields, quiet.suppressed - 1)

    def watch(self, lagging: Iterable[tuple[str, str, str, str, int]]) -> None:
        """Log consumers that have held up other nodes for at least ``SLOW_S``. Called every few seconds.

        ``lagging``: run, node, consumer, host of the consumer, and the partition that the consumer has not demanded.
        The consumer of a sink is the application, with an empty name, which has not taken the partition yet.
        """
        now, before, self._lagging = self._clock(), self._lagging, {}
        for run, node, consumer, host, index in lagging:
            at, since_s = before.get((run, node, consumer), (-1, now))
            self._lagging[run, node, consumer] = index, since_s if at == index else now
            if at != index or now - since_s < SLOW_S:
                continue
            laggard = f"consumer {consumer!r} on host {host!r}" if consumer else "the application"
            lag = f"has not {'demanded' if consumer else 'taken'} partition {index} of {node!r}"
            lag = f"{lag} for {in_seconds(now - since_s)}"
            wait = "other consumers wait for the next partition" if consumer else "nodes that feed this sink wait"
            self.write(
                "consumer-slow", f"{laggard} {lag}; {wait}", about=f"{node} {consumer}", run=run, peer=host, node=node,
                index=index, duration_s=now - since_s,
            )  # fmt: skip

    def _count(self, key: tuple[str, str], text: str, fields: Mapping[str, Any]) -> int | None:
        """Return the number of log records suppressed before this one, or None to suppress this one as well (R4)."""
        now = self._clock()
        with self._lock:
            quiet = self._quiet.get(key)
            if quiet is None and len(self._quiet) >= REMEMBERED:  # R5: too many peers count as one
                key = key[0], ""
                quiet = self._quiet.get(key)
            if quiet is not None and now - quiet.at_s < QUIET_S:
                quiet.suppressed, quiet.text, quiet.fields = quiet.suppressed + 1, text, fields
                return None
            self._quiet[key] = _Quiet(now)
            return 0 if quiet is None else quiet.suppressed

    def _emit(self, event: str, text: str, more: str, fields: Mapping[str, Any], suppressed: int) -> None:
        extra: dict[str, Any] = dict.fromkeys(FIELDS, "") | {"index": None, "size_bytes": None, "duration_s": None}
        extra |= {name: one_line(value) if isinstance(value, str) else value for name, value in fields.items()}
        extra |= {"event": event, "host": self.host, "suppressed": suppressed}
        if suppressed:
            text = f"{text} ({suppressed} more like this)"
        text += more and f"\n{printable(more)}"
        with contextlib.suppress(Exception):  # an error of the application's filter must not end a run
            LOG.log(EVENTS[event].level, "%s", text, extra=extra, stacklevel=3)


# --- messages for records of cores ---------------------------------------------------------------------

Fields = Mapping[str, Any]
NEVER_BEGUN = frozenset(  # reasons of moves that were not refused, but never begun
    {
        "its query has left",
        "the run ended before",
        "the run has begun anew meanwhile, as it lost a host",
        "the stream ended first",
    }
)
LOST = frozenset({"host", "subscriber"})


def _detail(fields: Fields) -> Mapping[str, Any]:
    detail = fields.get("detail")
    return detail if isinstance(detail, Mapping) else {}


def _fault(fields: Fields) -> LogLine | None:
    detail, peer, node = _detail(fields), fields.get("peer", ""), fields.get("node", "")
    about, reason = detail.get("about", "route"), detail.get("what", "")
    if about == "itself":  # the shell has logged this once for all runs
        return None
    if about == "client":
        return LogLine("client-lost", f"client {peer!r} has been silent for longer than its lease; its run ends here")
    if about in LOST:
        return LogLine(f"{about}-lost", f"{about} {peer!r} {reason}", reason)
    if about == "version":
        return LogLine("host-refused", f"host {peer!r} {reason}", reason)
    if about == "replica":
        return LogLine("replica-missing", f"there is no replica of {node!r}: {reason}", reason)
    if about == "tree":
        return LogLine("tree-lost", f"one of the trees of the stream has ended: {reason}", reason)
    via = f" over {detail['via']}" if detail.get("via") else ""
    via += f" by way of {', '.join(detail['relays'])}" if detail.get("relays") else ""
    of = f" of {node!r}" if node else ""
    reason = reason or "a transfer got stuck, or lost its connection"
    waited = "" if fields.get("duration_s") is None else f", for {in_seconds(fields['duration_s'])}"
    return LogLine("route-failed", f"route to host {peer!r}{via}{of}: {reason}{waited}", reason)


def _unexpected(fields: Fields) -> LogLine | None:
    detail, node = _detail(fields), fields.get("node")
    if detail.get("late"):  # a host reports an awaited lost host about once a second
        return None
    kind = detail.get("message", "a message")
    about = f" about {node!r}" if node else ""
    reason = detail.get("what") or "the run does not allow it, or does not expect it now"
    return LogLine("message-refused", f"{kind} of {fields.get('peer', '')!r}{about} changes nothing: {reason}", reason)


def _undeliverable(fields: Fields) -> LogLine:
    index = fields.get("index")
    what = "a message" if index is None else f"partition {index}"
    text = (
        f"{what} of {fields.get('peer', '')!r} cannot be forwarded: no host is known to have {fields.get('node', '')!r}"
    )
    return LogLine("message-dropped", text)


def _late(fields: Fields) -> LogLine:
    rows, node, index = fields.get("value"), fields.get("node", ""), fields.get("index")
    reason = "they came after the watermark"
    return LogLine("rows-late", f"{rows} rows of {node!r} are left out of partition {index}: {reason}", reason)


def _left_out(fields: Fields) -> LogLine:
    rows, node, index, why = fields.get("value"), fields.get("node", ""), fields.get("index"), _detail(fields)["why"]
    if rows is None:
        return LogLine(
            "partition-skipped", f"{node!r} leaves out partition {index}, and gives nothing there: {why}", why
        )
    return LogLine(
        "rows-skipped", f"{node!r} leaves {rows} row{'s' * (rows != 1)} out of partition {index}: {why}", why
    )


def _relocated(fields: Fields) -> LogLine:
    detail, node, peer, index = _detail(fields), fields.get("node"), fields.get("peer"), fields.get("index")
    why, reason = detail.get("why", ""), detail.get("reason", "")
    if detail.get("outcome") == "moved":
        return LogLine(
            "operator-moved", f"{node!r} has moved to host {peer!r} with partition {index} ({reason})", reason
        )
    event = "move-dropped" if why in NEVER_BEGUN else "move-refused"
    return LogLine(event, f"{node!r} stays, and does not move to host {peer!r} ({reason}): {why}", why)


def _proposal(fields: Fields) -> LogLine | None:
    detail, index = _detail(fields), fields.get("index")
    why, reason = detail.get("why", ""), detail.get("reason", "")
    moves = ", ".join(f"{node!r} to host {target!r}" for node, _, target in detail.get("moves", ()))
    if not (moves or why or "ways" in detail):  # a change of one of several trees that moves nothing
        return None
    change = moves or ("other networks between hosts" if "ways" in detail else "no operator of this tree")
    if detail.get("outcome") == "committed":
        after = 0 if index is None else index + 1
        if stayed := detail.get("stayed"):
            why = "; ".join(f"{node!r}: {text}" for node, text in stayed.items())
            return LogLine(
                "move-refused", f"from partition {after} on, the run changes: {change} ({reason}), but {why}", why
            )
        return LogLine("placement-changed", f"from partition {after} on, the run changes: {change} ({reason})", reason)
    dropped = detail.get("outcome") == "superseded" or why in NEVER_BEGUN
    event = "move-dropped" if dropped else "move-refused"
    return LogLine(event, f"this change is not made: {change} ({reason}): {why}", why)


def _reshaped(fields: Fields) -> LogLine:
    detail = _detail(fields)
    why, reason = detail.get("why", ""), detail.get("reason", "")
    if detail.get("outcome") == "reshaped":
        return LogLine(
            "tree-changed", f"from partition {fields.get('index')} on, another tree carries the run ({reason})", reason
        )
    event = "move-dropped" if why in NEVER_BEGUN else "move-refused"
    return LogLine(event, f"the tree stays as it is ({reason}): {why}", why)


def _query(fields: Fields) -> LogLine:
    detail = _detail(fields)
    guest, why = detail.get("guest"), detail.get("why", "")
    subject = f"query {detail.get('query')}" if guest is None else f"subscriber {guest!r} of {detail.get('node')!r}"
    outcome = detail.get("outcome")
    if outcome == "begun":
        return LogLine("query-begun", f"{subject} begins with partition {fields.get('index')}")
    if outcome == "left":
        return LogLine("query-left", f"{subject} has left" + (f": {why}" if why else ""), why)
    return LogLine("query-refused", f"{subject} cannot begin: {why}", why)


def _plan(fields: Fields) -> LogLine:
    detail = _detail(fields)
    planner, why = f"planner {detail.get('planner', '')!r}", detail.get("why", "")
    if detail.get("failed"):
        return LogLine("planner-failed", f"{planner} has given no plan, and operators stay: {why}", why)
    if detail.get("decision") == "propose":
        return LogLine("plan-taken", f"the plan of {planner} is carried out: {why}", why)
    if detail.get("differs"):
        why = detail.get("dropped") or why
        if "current_s" in detail and "predicted_s" in detail:
            now_s, then_s = detail["current_s"], detail["predicted_s"]
            why += f" (a partition costs {in_seconds(now_s)} now, and {in_seconds(then_s)} by the plan)"
        return LogLine("plan-dropped", f"the plan of {planner} is not carried out: {why}", why)
    return LogLine("plan-kept", f"{planner} keeps operators where they are")


def _replaced(fields: Fields) -> LogLine | None:
    detail = _detail(fields)
    why = detail.get("why", "")
    if not why:
        return None
    return LogLine("planner-failed", f"planner {detail.get('planner', '')!r} has not placed operators anew: {why}", why)


def _recovered(fields: Fields) -> LogLine:
    detail, pause_s = _detail(fields), fields.get("duration_s")
    pause = "" if pause_s is None else f" after {in_seconds(pause_s)}"
    lost = "; ".join(f"host {host!r} {how}" for host, how in detail.get("hosts", {}).items())
    return LogLine("run-recovered", f"the run goes on{pause} as generation {detail.get('generation')}: {lost}", lost)


def _uneven(fields: Fields) -> LogLine:
    detail, index = _detail(fields), fields.get("index")
    ended, on = (", ".join(map(repr, detail.get(key, ()))) for key in ("ended", "went_on"))
    return LogLine("sources-uneven", f"sources {ended} ended before partition {index}, which {on} had")


WORDS: dict[str, Callable[[Fields], LogLine | None]] = {
    "fault": _fault,
    "unexpected": _unexpected,
    "undeliverable": _undeliverable,
    "late": _late,
    "left-out": _left_out,
    "relocated": _relocated,
    "proposal": _proposal,
    "reshaped": _reshaped,
    "query": _query,
    "plan": _plan,
    "replaced": _replaced,
    "recovered": _recovered,
    "uneven": _uneven,
    "joined": lambda fields: LogLine("host-joined", f"host {fields.get('peer', '')!r} has joined the run"),
    "drained": lambda fields: LogLine("host-drained", f"host {fields.get('peer', '')!r} was drained, and has left"),
}
