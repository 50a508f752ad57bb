"""State diagrams in Mermaid, drawn from the transition tables of the core modules.

``python -m thalweg.middleware.diagrams`` writes the diagram of a node to standard output.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from thalweg.middleware.node import TRANSITIONS, Phase

State = TypeVar("State", bound=str)
Event = TypeVar("Event", bound=str)


def state_diagram(transitions: Mapping[tuple[State, Event], State], initial: str) -> str:
    """The table ``(state, trigger) -> state`` as a Mermaid state diagram; states without a way out are final."""
    lines = ["stateDiagram-v2", f"    [*] --> {initial}"]
    lines += [f"    {state} --> {target}: {trigger}" for (state, trigger), target in transitions.items()]
    leaving = {str(state) for state, _ in transitions}
    final = dict.fromkeys(str(target) for target in transitions.values() if str(target) not in leaving)
    lines += [f"    {state} --> [*]" for state in final]
    return "\n".join(lines) + "\n"


def node_diagram() -> str:
    """The phases of one node of the demand-driven tree."""
    return state_diagram(TRANSITIONS, Phase.IDLE)


if __name__ == "__main__":
    print(node_diagram(), end="")
