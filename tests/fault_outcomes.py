"""Outcomes of 2,000 fault plans of graphs and of 1,000 with failover, in a table in which no name of the code is.

    python tests/fault_outcomes.py                  compare all plans with the table; 18 minutes of a processor
    python tests/fault_outcomes.py graphs 0         run the plans of one block: those from a first seed on
    python tests/fault_outcomes.py --write FOLDER   write the outcome of each plan into a file, a line for each
    python tests/fault_outcomes.py --record         record the table

A row of the table has a block of plans, a letter for the outcome of each plan, and a digest of the outcomes in full:
partitions delivered, lost, doubled and out of order, moves, recoveries, changes of the tree and queries by what became
of them, and the hosts that an error names. Control messages have one size, and chance tells them from bulk alone
(``WorldConfig.control_bytes``). Seeds draw links and times with powers and logarithms of the C library; the table is
that of glibc. The exit status is 1 if a row differs.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import msgspec
from behaviour import named, plain

from thalweg.emulation.virtual.faults import Drop, Duplicate, FaultPlan
from thalweg.experiments.faults.generated_plans import drawn_plan, trial_of
from thalweg.experiments.faults.queries import GUESTS
from thalweg.experiments.faults.trials import TrialResult, run_trial

TABLE = Path(__file__).parent / "fault_outcomes.txt"
CONTROL_BYTES = 200
SAMPLE, BLOCK = 20, 100  # plans of the first block, which ``make test`` runs, and of other blocks
PLANS = {"graphs": 2000, "failover": 1000}
LETTERS = {"delivered": ".", "ended": "e", "abandoned": "a", "failed": "F"}


class Block(NamedTuple):
    """Plans of a row: the kind, the first seed and the seed after the last plan."""

    kind: str
    first: int
    stop: int


class Row(NamedTuple):
    """Outcomes of a block: a letter for each plan, and a digest of the outcomes in full."""

    letters: str
    digest: str


def blocks(*kinds: str) -> list[Block]:
    """Return the blocks of the table in their order."""
    bounds = {kind: [0, SAMPLE, *range(BLOCK, PLANS[kind] + 1, BLOCK)] for kind in kinds or PLANS}
    return [Block(kind, *pair) for kind, at in bounds.items() for pair in itertools.pairwise(at)]


def plan_of(kind: str, seed: int) -> FaultPlan:
    """Return the plan of a seed. Faults of a named message hit the first control message instead."""
    plan = drawn_plan(seed, graph=kind == "graphs", lasting=kind == "failover")
    faults = [
        msgspec.structs.replace(fault, message="control") if isinstance(fault, Drop | Duplicate) else fault
        for fault in plan.faults
    ]
    return msgspec.structs.replace(plan, faults=tuple(faults))


def line_of(result: TrialResult, hosts: Iterable[str]) -> str:
    """Return the line of an outcome. The line has no name of the code."""
    counts = {
        "expected": result.expected,
        "delivered": result.delivered,
        "nothing": result.nothing,
        "missing": result.missing,
        "lost": result.lost,
        "doubled": result.duplicate,
        "disordered": result.out_of_order,
        "moves": result.moves,
        "recoveries": result.recoveries,
        "trees": result.shapes,
        "queries": result.queries,
        "hosts": named(result.what, [*hosts]),
    }
    shown = " ".join(f"{label}={plain(value)}" for label, value in counts.items() if value)
    return f"{result.seed} {result.outcome} {result.kind or '-'} {shown}"


def lines_of(block: Block) -> list[str]:
    """Run the plans of a block, and return a line for each."""
    lines = []
    for seed in range(block.first, block.stop):
        plan = plan_of(block.kind, seed)
        result, _ = run_trial(plan, control_bytes=CONTROL_BYTES)
        lines.append(line_of(result, (*trial_of(plan).hosts, *GUESTS)))
    return lines


def row_of(lines: Sequence[str]) -> Row:
    """Return the row of a block's lines."""
    letters = "".join(LETTERS[line.split()[1]] for line in lines)
    return Row(letters, hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16])


def recorded() -> dict[Block, Row]:
    """Return the recorded table."""
    rows = [line.split() for line in TABLE.read_text(encoding="utf-8").splitlines() if line[:1] not in ("#", "")]
    return {Block(kind, int(first), int(stop)): Row(*row) for kind, first, stop, *row in rows}


def compared(block: Block, lines: Sequence[str], before: Row | None) -> str:
    """Return the difference of a block from its recorded row. Empty if there is none."""
    row = row_of(lines)
    if row == before:
        return ""
    if before is None:
        return f"{block.kind} from {block.first} on: not recorded"
    other = [line for letter, now, line in zip(before.letters, row.letters, lines, strict=True) if letter != now]
    if not other:
        return f"{block.kind} from {block.first} on: the outcomes are the same, and something in them differs (--write)"
    return "\n".join(f"{block.kind}: another outcome: {line}" for line in other)


def main(words: Sequence[str]) -> int:
    """Run, compare or record the plans that a command line names, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--record", action="store_true", help="record the table")
    group.add_argument("--write", type=Path, metavar="FOLDER", help="write a line for each plan into a file")
    parser.add_argument("kind", nargs="?", choices=[*PLANS], help="both without")
    parser.add_argument("first", nargs="?", type=int, help="first seed of a block; all blocks without")
    asked = parser.parse_args(words)
    chosen = [block for block in blocks(*[asked.kind] if asked.kind else ()) if asked.first in (None, block.first)]
    if not chosen:
        parser.error(f"no block begins with seed {asked.first}; {SAMPLE}, {BLOCK}, {2 * BLOCK} … do")
    rows, counts, differ = (recorded() if TABLE.exists() else {}), Counter[str](), 0
    if asked.write is not None:
        asked.write.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor() as pool:
        for block, lines in zip(chosen, pool.map(lines_of, chosen), strict=True):
            counts.update(f"{block.kind} {line.split()[1]}" for line in lines)
            difference, rows[block] = compared(block, lines, rows.get(block)), row_of(lines)
            if asked.write is not None:
                (asked.write / f"{block.kind}-{block.first:04}.txt").write_text("\n".join(lines) + "\n", "utf-8")
            differ += bool(difference)
            print(difference or f"{block.kind} from {block.first} on: as recorded", flush=True)
    if asked.record:
        shown = "".join(" ".join(map(str, (*block, *rows[block]))) + "\n" for block in blocks() if block in rows)
        letters = ", ".join(f"{letter} {outcome}" for outcome, letter in LETTERS.items())
        head = f"# Outcomes of fault plans ({letters}). `python tests/fault_outcomes.py --record` writes this file.\n"
        TABLE.write_text(head + shown, encoding="utf-8")
    print(f"{counts.total()} plans: {', '.join(f'{count} {outcome}' for outcome, count in sorted(counts.items()))}")
    print(f"{len(chosen) - differ} of {len(chosen)} blocks {'were' if asked.record else 'are'} as recorded")
    return int(differ > 0 and not (asked.record or asked.write))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
