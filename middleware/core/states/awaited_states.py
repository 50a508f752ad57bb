"""Missing states of operators on this host: of heirs, and of operators that start from replicas.

Rules:

R1. A missing state is requested from its holder, again and again with back-off, until the state arrives.
R2. While a state is missing, the holder is watched like a host that owes a partition.
"""

from __future__ import annotations

from dataclasses import dataclass

from thalweg.middleware.core.context.outbox import RunContext, Timer
from thalweg.middleware.core.flow.flow import Flow
from thalweg.middleware.core.parts.handlers import Handlers
from thalweg.middleware.core.parts.part import Part, RunParts
from thalweg.middleware.protocol import messages as m


@dataclass(slots=True, eq=False)
class AwaitedState:
    """'State of ``node`` that host ``holder`` keeps.

    ``heir``: the operator that takes the state over. Empty: ``node`` itself starts with the state.
    """

    node: str
    holder: str
    heir: str
    since_s: float
    interval_s: float
    due_s: float

    @property
    def operator(self) -> str:
        """Operator on this host without the state."""
        return self.heir or self.node


class AwaitedStates(Part):
    """Missing states of a run's operators on this host."""

    @classmethod
    def of(cls, parts: RunParts) -> AwaitedStates:
        return cls(parts.context, parts.get(Flow))

    def __init__(self, context: RunContext, flow: Flow) -> None:
        self._out, self._limits, self._flow = context.out, context.limits, flow
        self._missing: dict[tuple[str, str], AwaitedState] = {}  # by node and heir

    def expect(self, node: str, holder: str, heir: str = "", *, at_once: bool = False) -> None:
        """Wait for a state. ``at_once``: request it now, because the holder does not send it unasked."""
        now, wait_s = self._out.now, self._limits.retry_s
        self._missing[node, heir] = missing = AwaitedState(node, holder, heir, now, wait_s, now + wait_s)
        if at_once:
            self._request(missing)
        self._arm()

    def came(self, node: str, heir: str = "") -> None:
        """Stop the requests for a state that has arrived."""
        self._missing.pop((node, heir), None)

    def missing(self, node: str, heir: str = "") -> AwaitedState | None:
        """Return the entry of a state, or None if the state is not missing."""
        return self._missing.get((node, heir))

    def _request(self, missing: AwaitedState) -> None:
        self._out.send(missing.holder, m.StateRequest(self._out.run, missing.node, missing.heir))

    def on_timer(self) -> None:
        """Repeat the requests that are due (R1)."""
        now = self._out.now
        for key, missing in list(self._missing.items()):
            if missing.operator not in self._flow.nodes:  # the query has left, or the tree is not committed
                del self._missing[key]
            elif missing.due_s <= now:
                self._flow.demands.stuck(missing.holder, missing.since_s)
                self._request(missing)
                missing.interval_s = min(2 * missing.interval_s, self._limits.retry_max_s)
                missing.due_s = now + missing.interval_s
        self._arm()

    def _arm(self) -> None:
        if self._missing:
            self._out.wake(Timer.STATES, min(missing.due_s for missing in self._missing.values()))

    def waits_for(self, host: str) -> tuple[str, str] | None:
        """Return an operator here with a missing state from ``host``, and the reason (R2)."""
        for missing in self._missing.values():
            if missing.holder == host:
                return missing.operator, f"which holds {missing.node!r}" if missing.heir else "which keeps its replica"
        return None

    HANDLERS = Handlers(timers={Timer.STATES: on_timer})
