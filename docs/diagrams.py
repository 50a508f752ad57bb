"""Diagrams in Mermaid, drawn from the tables of the core modules: states with their transitions, and who hears whom.

``python docs/diagrams.py docs/*.md`` draws those of the pages again, in place: whatever is between
the line ``<!-- diagram: NAME -->`` and the next ``<!-- end of diagram -->``. Names are the keys of ``DIAGRAMS``.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from thalweg.middleware.core.barrier import proposal
from thalweg.middleware.core.context.notes import Note
from thalweg.middleware.core.failover import generation_states
from thalweg.middleware.core.flow import node_states
from thalweg.middleware.core.hosting.coordinator import Coordinator
from thalweg.middleware.core.hosting.runs import TABLE
from thalweg.middleware.core.measuring.prober import Prober
from thalweg.middleware.core.moving import handover
from thalweg.middleware.core.runs.run import RunCore
from thalweg.middleware.errors import UsageError

State = TypeVar("State", bound=str)
Event = TypeVar("Event", bound=str)

_DIAGRAM = re.compile(r"^<!-- diagram: (.*?) -->\n.*?^<!-- end of diagram -->$", re.DOTALL | re.MULTILINE)


def state_diagram(transitions: Mapping[tuple[State, Event], State], initial: str) -> str:
    """The table ``(state, trigger) -> state`` as a Mermaid state diagram; states without a way out are final."""
    lines = ["stateDiagram-v2", f"    [*] --> {initial}"]
    lines += [f"    {state} --> {target}: {trigger}" for (state, trigger), target in transitions.items()]
    leaving = {str(state) for state, _ in transitions}
    final = dict.fromkeys(str(target) for target in transitions.values() if str(target) not in leaving)
    lines += [f"    {state} --> [*]" for state in final]
    return "\n".join(lines) + "\n"


def interplay(hears: Mapping[type[Any], tuple[Callable[..., Any], ...]]) -> str:
    """Which part tells which by which note, as a Mermaid flowchart; a part tells what its source yields."""
    hearers = {each.__qualname__.split(".")[0]: each.__globals__ for heard in hears.values() for each in heard}
    parts = [found[name] for name, found in hearers.items()] + [Coordinator, Prober, RunCore]
    sources = {part.__name__: "".join(map(inspect.getsource, part.__mro__[:-1])) for part in parts}
    lines = ["flowchart LR"]
    for note, heard in hears.items():
        said = re.compile(rf"(yield |\bnotes\.|\bn\.){note.__name__}\(")
        tellers = [name for name, source in sources.items() if said.search(source)]
        for each in heard:
            hearer = each.__qualname__.split(".")[0]
            lines += [f"    {teller} -->|{note.__name__}| {hearer}" for teller in tellers]
    return "\n".join(lines) + "\n"


def notes_heard() -> dict[type[Any], tuple[Callable[..., Any], ...]]:
    """Return by note the methods of the parts that hear it."""
    handled = {
        what: heard for what, heard in TABLE.handled.items() if isinstance(what, type) and issubclass(what, Note)
    }
    return {note: tuple([method for _, method in heard]) for note, heard in handled.items()}


# name -> what draws it
DIAGRAMS: dict[str, Callable[[], str]] = {
    "node": lambda: state_diagram(node_states.TRANSITIONS, node_states.NodeState.IDLE),
    "leaving": lambda: state_diagram(handover.LEAVING, handover.DepartureState.OFFERED),
    "coming": lambda: state_diagram(handover.COMING, handover.ArrivalState.PREPARING),
    "proposal": lambda: state_diagram(proposal.PROPOSAL, proposal.ProposalState.PROPOSED),
    "member": lambda: state_diagram(proposal.MEMBER, proposal.MemberState.FREE),
    "recovery": lambda: state_diagram(generation_states.RENEWAL, generation_states.RecoveryPhase.WHOLE),
    "generation": lambda: state_diagram(generation_states.GENERATION, generation_states.GenerationState.NONE),
    "notes": lambda: interplay(notes_heard()),
}


def draw(page: str) -> str:
    """A Markdown page with its diagrams as the tables are now. Raises UsageError for a diagram there is not."""

    def drawn(marked: re.Match[str]) -> str:
        name = marked[1]
        if name not in DIAGRAMS:
            raise UsageError(f"there is no diagram {name!r}; there are {', '.join(DIAGRAMS)}")
        return f"<!-- diagram: {name} -->\n```mermaid\n{DIAGRAMS[name]()}```\n<!-- end of diagram -->"

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
