"""Part of a host in the reservation of a map: from the sink to the source, for a time, and all or nothing.

- R1: A probe goes from the sink to the source. A host that cannot give the visit's needs sends a rollback back along
  the path, and the sink probes the next map.
- R2: Only the source admits a task, and only once. From then on the source renews leases along the path, at once and
  every third of a lease, until the task ends.
- R3: A host whose lease has ended at a renewal reserves anew, or reports that the task is broken.
- R4: The sink answers renewals of the attempt that the sink knows to run, and reports other attempts as broken. A
  source without an answer for a lease, or with a report of a broken task, ends the task and releases the holdings.
- R5: Holdings without a renewal are released when the lease ends, so a lost message leaves nothing behind.
- R6: A sink without an answer in ``probe_s`` probes the next map. A later message of the source decides.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from thalweg.experiments.papers.asaduzzaman2010.mapping.holdings import Key, Resources
from thalweg.experiments.papers.asaduzzaman2010.mapping.messages import (
    CONTROL,
    DEDICATED,
    Broken,
    FinishedMap,
    Message,
    Network,
    Release,
    Renew,
    RenewalDone,
    ReservationProbe,
    Rollback,
    TaskOutcome,
    Transmit,
)
from thalweg.experiments.papers.asaduzzaman2010.mapping.rules import Rules
from thalweg.experiments.papers.asaduzzaman2010.mapping.task import Host, MappingTask
from thalweg.middleware.arithmetic import plain_sum

RENEWALS = 3  # in a lease: two of them may be lost


class _Seeking(msgspec.Struct):
    """Task at the sink, while the sink looks for a map to reserve."""

    task: MappingTask
    maps: list[FinishedMap]
    attempt: int
    asked_s: float


class _Running(msgspec.Struct):
    """Running task at the source."""

    task: MappingTask
    attempt: int
    found: FinishedMap
    renewed_s: float
    kept_s: float


class Reservations:
    """Reservations of one host as source, sink or host on the path of tasks."""

    def __init__(self, host: Host, resources: Resources, rules: Rules) -> None:
        self.host, self.rules = host, rules
        self.notes: list[TaskOutcome] = []
        self._resources = resources
        self._seeking: dict[int, _Seeking] = {}
        self._running: dict[int, _Running] = {}
        self._admitted: dict[int, int] = {}  # running tasks whose sinks are here, with their attempts
        self._over: dict[int, float] = {}  # ended tasks whose sources are here, with the times of their ends

    @property
    def running(self) -> dict[int, FinishedMap]:
        """Running tasks from this source, with their maps."""
        return {number: running.found for number, running in self._running.items()}

    def seek(self, task: MappingTask, maps: list[FinishedMap], now: float, out: list[Transmit]) -> None:
        """Reserve the first map with room, for a task whose sink is here."""
        self._note(TaskOutcome(task.number, "mapped", mapped=len(maps)))
        self._seeking[task.number] = _Seeking(task, maps[: self.rules.attempts], -1, now)
        self._next(task.number, now, out)

    def end(self, number: int, now: float, out: list[Transmit]) -> None:
        """End a task from this source, and release the holdings."""
        if (running := self._running.pop(number, None)) is None:
            return
        self._over[number] = now
        self._resources.release((number, running.attempt))
        self._note(TaskOutcome(number, "ended", running.attempt, running.found))
        out.append(self._onward(Release(number, running.attempt, running.found, 1), running.found, 0, 1))

    def cut(self, to: Host, out: list[Transmit]) -> None:
        """Handle the loss of the dedicated link to a neighbour: release the holdings, and notify the sources."""
        for key in self._resources.cut(to):
            self._lose(key, out)

    def tick(self, now: float, out: list[Transmit]) -> None:
        """Renew leases, end tasks without answers, and release what was not renewed."""
        for running in [*self._running.values()]:
            if now - running.kept_s >= self.rules.lease_s:
                self.end(running.task.number, now, out)  # R4: the sink has not answered for the time of a lease
            elif now - running.renewed_s >= self.rules.lease_s / RENEWALS:
                self._renew(running, now, out)
        for key in self._resources.expired(now):
            self._free(key)  # R5: the lease has ended without a renewal
        for number in [number for number, ended_s in self._over.items() if now - ended_s >= self.rules.patience_s]:
            del self._over[number]
        for number, seeking in [*self._seeking.items()]:
            if now - seeking.asked_s >= self.rules.probe_s:
                self._next(number, now, out)  # R6: the sink was not answered in time

    def handle(self, message: Message, now: float, out: list[Transmit]) -> None:
        """Handle a message about reservations."""
        match message:
            case ReservationProbe():
                self._on_probe(message, now, out)
            case Rollback():
                self._on_rollback(message, now, out)
            case Renew():
                self._on_renew(message, now, out)
            case RenewalDone(task, attempt):
                if (running := self._running.get(task)) is not None and running.attempt == attempt:
                    running.kept_s = now
            case Broken(task, attempt):
                if (running := self._running.get(task)) is not None and running.attempt == attempt:
                    self.end(task, now, out)
            case Release(task, attempt, found, at):
                self._free((task, attempt))
                if at + 1 < len(found.legs):
                    out.append(self._onward(Release(task, attempt, found, at + 1), found, at, at + 1))

    # --- the sink -------------------------------------------------------------------------------------

    def _next(self, number: int, now: float, out: list[Transmit]) -> None:
        """Probe the next map. If there is none, the task is rejected."""
        seeking = self._seeking[number]
        seeking.attempt += 1
        seeking.asked_s = now
        if seeking.attempt >= len(seeking.maps):
            del self._seeking[number]
            self._note(TaskOutcome(number, "rejected", seeking.attempt))
            return
        mapping = seeking.maps[seeking.attempt]
        self._on_probe(ReservationProbe(seeking.task, seeking.attempt, mapping, len(mapping.legs) - 1), now, out)

    def _on_rollback(self, message: Rollback, now: float, out: list[Transmit]) -> None:
        self._resources.release((message.task, message.attempt))
        if message.at + 1 < len(message.found.legs):
            after = msgspec.structs.replace(message, at=message.at + 1)
            out.append(self._onward(after, message.found, message.at, message.at + 1))
        elif (seeking := self._seeking.get(message.task)) is not None and seeking.attempt == message.attempt:
            self._next(message.task, now, out)

    # --- every host -----------------------------------------------------------------------------------

    def _on_probe(self, message: ReservationProbe, now: float, out: list[Transmit]) -> None:
        task, attempt, mapping, at = message.task, message.attempt, message.found, message.at
        key = task.number, attempt
        admitted = task.number in self._running or task.number in self._over
        if (at == 0 and admitted) or not self._take(task, attempt, mapping, at, now + self.rules.probe_s):
            if at == 0 and (running := self._running.get(task.number)) is not None and running.attempt == attempt:
                return  # a repeated probe
            self._resources.release(key)  # R1: the visit cannot be reserved: a rollback goes towards the sink
            if at + 1 < len(mapping.legs):
                out.append(self._onward(Rollback(task.number, attempt, mapping, at + 1), mapping, at, at + 1))
            else:
                self._on_rollback(Rollback(task.number, attempt, mapping, at), now, out)
        elif at:
            out.append(self._onward(msgspec.structs.replace(message, at=at - 1), mapping, at, at - 1))
        else:  # R2: the probe has come to the source, which admits the task
            running = self._running[task.number] = _Running(task, attempt, mapping, now, now)
            self._note(TaskOutcome(task.number, "running", attempt, mapping))
            self._renew(running, now, out)

    def _renew(self, one: _Running, now: float, out: list[Transmit]) -> None:
        one.renewed_s = now
        self._on_renew(Renew(one.task, one.attempt, one.found, 0), now, out)

    def _on_renew(self, message: Renew, now: float, out: list[Transmit]) -> None:
        task, attempt, mapping, at = message.task, message.attempt, message.found, message.at
        if at == 0 and task.number not in self._running:
            return  # late: the task has ended
        # R3: the lease has ended, and there is no room now
        if not self._take(task, attempt, mapping, at, now + self.rules.lease_s):
            self._notify_source(mapping, Broken(task.number, attempt), out)
        elif at + 1 < len(mapping.legs):
            out.append(self._onward(msgspec.structs.replace(message, at=at + 1), mapping, at, at + 1))
        else:
            if self._seeking.pop(task.number, None) is not None:
                self._admitted[task.number] = attempt
                self._note(TaskOutcome(task.number, "admitted", attempt, mapping))
            admitted = self._admitted.get(task.number) == attempt  # R4: only the attempt that the sink knows to run
            if not admitted:
                self._resources.release((task.number, attempt))
            self._notify_source(mapping, (RenewalDone if admitted else Broken)(task.number, attempt), out)

    def _take(self, task: MappingTask, attempt: int, found: FinishedMap, at: int, until_s: float) -> bool:
        """Hold the needs of a visit. Return whether there was room."""
        leg = found.legs[at]
        ways: Iterable[tuple[Network, Host, float]] = ()
        if at + 1 < len(found.legs):
            ways = ((leg.via, found.legs[at + 1].host, task.rates_bps[leg.placed]),)
        need = plain_sum(task.needs[leg.first : leg.placed])
        return self._resources.take((task.number, attempt), at, need, ways, until_s, found)

    def _free(self, key: Key) -> None:
        """Release the holdings of a key, and forget that the task runs."""
        self._resources.release(key)
        if self._admitted.get(key[0]) == key[1]:
            del self._admitted[key[0]]

    def _lose(self, key: Key, out: list[Transmit]) -> None:
        """Release holdings that are useless now, and notify the source."""
        mapping: FinishedMap = self._resources.held[key].context
        self._free(key)
        self._notify_source(mapping, Broken(*key), out)

    def _notify_source(self, found: FinishedMap, message: RenewalDone | Broken, out: list[Transmit]) -> None:
        source = found.legs[0].host
        out.append(Transmit(source, CONTROL, 0.0, message))

    def _onward(self, message: Message, found: FinishedMap, at: int, to: int) -> Transmit:
        """Return a message to the next or the previous visit, over the network that joins the visits."""
        via = found.legs[min(at, to)].via
        return Transmit(found.legs[to].host, DEDICATED if via == DEDICATED else CONTROL, 0.0, message)

    def _note(self, note: TaskOutcome) -> None:
        self.notes.append(note)
