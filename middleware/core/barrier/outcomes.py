"""Records of the outcomes of proposals, at the client of a run. The rules of proposals are in ``proposal``."""

from __future__ import annotations

from typing import Any

from thalweg.middleware.core.barrier.proposal import Proposal
from thalweg.middleware.core.context.outbox import Outbox
from thalweg.middleware.core.parts.part import RunParts
from thalweg.middleware.core.queries.queries import Queries
from thalweg.middleware.protocol import messages as m


class Outcomes:
    """Writer of the records of one run's proposals. ``Queries`` records the outcomes of queries."""

    def __init__(self, out: Outbox, parts: RunParts) -> None:
        self._out, self._parts = out, parts

    def record(
        self,
        number: int,
        moves: tuple[m.Move, ...],
        outcome: str,
        why: str,
        reason: str,
        proposal: Proposal | None = None,
    ) -> None:
        """Record the outcome of a proposal, or of a request that has led to no proposal."""
        detail = {"number": number, "outcome": outcome, "why": why, "reason": reason}
        if proposal is not None and proposal.reshapes:
            self._record_shape(proposal, detail)
            return
        if proposal is not None and proposal.query is not None:
            begun, query = outcome == "committed", proposal.query
            names = proposal.names if begun else {}
            self._parts.get(Queries).record(query.number, "begun" if begun else "refused", why, names, query.apart)
            return
        if proposal is not None and proposal.ways is not None:
            detail["ways"] = {f"{way.source}>{way.target}": way.over for way in proposal.ways}
        if proposal is not None and proposal.stayed:
            detail["stayed"] = proposal.stayed
        self._out.record(
            "proposal",
            index=proposal.iteration if proposal is not None and outcome == "committed" else None,
            duration_s=None if proposal is None else self._out.now - proposal.begun_s,
            detail=detail | {"moves": [[move.node, move.source, move.target] for move in moves]},
        )

    def _record_shape(self, proposal: Proposal, detail: dict[str, Any]) -> None:
        """Record a change of the tree, with the pause between the last partition of the old tree and the next one."""
        committed, first_s = detail["outcome"] == "committed", proposal.phases_s.get("first")
        detail["outcome"] = "reshaped" if committed else "stayed"
        ago = {phase: self._out.now - at for phase, at in proposal.phases_s.items()}
        self._out.record(
            "reshaped",
            index=proposal.iteration + 1 if committed else None,
            duration_s=None if first_s is None or proposal.drained_s is None else first_s - proposal.drained_s,
            detail=detail | {"ago": ago, **proposal.trees},
        )
