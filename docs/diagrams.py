"""State diagrams in Mermaid, drawn from the transition tables of the core modules.

``python docs/diagrams.py docs/*.md`` draws those of the pages again, in place: whatever is between
the line ``<!-- diagram: NAME -->`` and the next ``<!-- end of diagram -->``. Names are the keys of ``DIAGRAMS``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from thalweg.middleware.core.flow import node
from thalweg.middleware.core.relocation import handover as relocation
from thalweg.middleware.core.relocation import proposal
from thalweg.middleware.errors import UsageError

State = TypeVar("State", bound=str)
Event = TypeVar("Event", bound=str)

# name -> table and first state
DIAGRAMS: dict[str, tuple[Mapping[tuple[Any, Any], Any], str]] = {
    "node": (node.TRANSITIONS, node.NodeState.IDLE),
    "leaving": (relocation.LEAVING, relocation.DepartureState.OFFERED),
    "coming": (relocation.COMING, relocation.ArrivalState.PREPARING),
    "proposal": (proposal.PROPOSAL, proposal.ProposalState.PROPOSED),
    "member": (proposal.MEMBER, proposal.MemberState.FREE),
}
_DIAGRAM = re.compile(r"^<!-- diagram: (.*?) -->\n.*?^<!-- end of diagram -->$", re.DOTALL | re.MULTILINE)


def state_diagram(transitions: Mapping[tuple[State, Event], State], initial: str) -> str:
    """The table ``(state, trigger) -> state`` as a Mermaid state diagram; states without a way out are final."""
    lines = ["stateDiagram-v2", f"    [*] --> {initial}"]
    lines += [f"    {state} --> {target}: {trigger}" for (state, trigger), target in transitions.items()]
    leaving = {str(state) for state, _ in transitions}
    final = dict.fromkeys(str(target) for target in transitions.values() if str(target) not in leaving)
    lines += [f"    {state} --> [*]" for state in final]
    return "\n".join(lines) + "\n"


def draw(page: str) -> str:
    """A Markdown page with its diagrams as the tables are now. Raises UsageError for a diagram there is not."""

    def drawn(marked: re.Match[str]) -> str:
        name = marked[1]
        if name not in DIAGRAMS:
            raise UsageError(f"there is no diagram {name!r}; there are {', '.join(DIAGRAMS)}")
        return f"<!-- diagram: {name} -->\n```mermaid\n{state_diagram(*DIAGRAMS[name])}```\n<!-- end of diagram -->"

    return _DIAGRAM.sub(drawn, page)


def main(paths: list[str]) -> int:
    for path in map(Path, paths):
        page = path.read_text(encoding="utf-8")
        try:
            path.write_text(draw(page), encoding="utf-8")
        except UsageError as error:
            print(f"{path}: {error}", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
