"""The golden runs from a command line: what they cover, whether they do what they did, and where two checkouts differ.

    python tests/golden.py                     compare each run's digest with the recorded one
    python tests/golden.py --list              print what each run covers, and the lines that it has to show
    python tests/golden.py --write FOLDER      write the behaviour of each run into a file, a line for each event
    python tests/golden.py --diff CHECKOUT     compare with another checkout, and show what differs besides times
    python tests/golden.py --record            record the digests

Names of runs at the end choose some of them. The exit status is 1 if a run differs.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from golden_runs import RUNS

HERE = Path(__file__).parent
DIGESTS = HERE / "golden.toml"
SHOWN_LINES = 12  # of the lines that differ
TIMED = re.compile(r" (s|ago|current_s|predicted_s)=\S+")  # costs are measured at other times, too


def recorded() -> dict[str, str]:
    """Return the recorded digests."""
    return dict(tomllib.loads(DIGESTS.read_text(encoding="utf-8")))


def record(names: Iterable[str]) -> list[str]:
    """Record the digests of runs, and return the names of the runs whose digest has changed."""
    before = recorded() if DIGESTS.exists() else {}
    after = before | {name: RUNS[name].play().digest for name in names}
    lines = [f'"{name}" = "{after[name]}"\n' for name in RUNS if name in after]
    head = "# Digests of the behaviour of the golden runs. `python tests/golden.py --record` writes this file.\n"
    DIGESTS.write_text(head + "".join(lines), encoding="utf-8")
    return [name for name in after if before.get(name) != after[name]]


def file_of(name: str) -> str:
    """Return the name of the file with a run's behaviour."""
    return re.sub("[^a-z0-9]+", "-", name) + ".txt"


def write(folder: Path, names: Iterable[str]) -> None:
    """Write the behaviour of runs into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / file_of(name)).write_text(RUNS[name].play().text, encoding="utf-8")


def compared(ours: str, theirs: str) -> tuple[list[str], float]:
    """Return the lines that differ in more than times, and the largest difference of times of the equal lines.

    A line begins with ``+`` if this checkout has more such lines, and with ``-`` if the other checkout has more.
    """
    our_times, their_times = _untimed(ours), _untimed(theirs)
    lines, shift_s = [], 0.0
    for event in our_times.keys() | their_times.keys():
        here_s, other_s = our_times.get(event, []), their_times.get(event, [])
        shift_s = max([shift_s, *(abs(a - b) for a, b in zip(here_s, other_s, strict=False))])
        lines += [(at_s, f"+{at_s:.6f} {event}") for at_s in here_s[len(other_s) :]]
        lines += [(at_s, f"-{at_s:.6f} {event}") for at_s in other_s[len(here_s) :]]
    return [line for _, line in sorted(lines)], shift_s


def _untimed(text: str) -> dict[str, list[float]]:
    """Return the times of the lines, by the line's text without times."""
    times: defaultdict[str, list[float]] = defaultdict(list)
    for line in text.splitlines():
        at_s, event = line.split(" ", 1)
        times[TIMED.sub("", event)].append(float(at_s))
    return times


def diff(checkout: Path, names: Sequence[str]) -> int:
    """Print the differences of runs from the runs of another checkout, and return how many runs differ."""
    script = checkout / "tests" / Path(__file__).name
    if not script.exists():
        sys.exit(f"{checkout} has no tests/{script.name}; give the folder of another checkout of this project")
    differ = 0
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"PYTHONPATH": str(checkout.resolve())}
        own = checkout / ".venv/bin/python"  # with the libraries that the other checkout needs
        python = str(own.absolute()) if own.exists() else sys.executable
        line = [python, str(script.resolve()), "--write", folder, *names]
        if subprocess.run(line, env=environment, cwd=checkout).returncode:
            sys.exit(f"the runs of {checkout} have not ended well; see above")
        for name in names:
            ours, theirs = RUNS[name].play().text, (Path(folder) / file_of(name)).read_text(encoding="utf-8")
            if ours == theirs:
                continue
            differ += 1
            lines, shift_s = compared(ours, theirs)
            verdict = f"{len(lines)} lines differ" if lines else "only times differ"
            print(f"{name}: {verdict}; other times are at most {shift_s:g} s apart")
            print("".join(f"  {line[:200]}\n" for line in lines[:SHOWN_LINES]), end="")
    print(f"{differ} of {len(names)} runs differ from those of {checkout}")
    return differ


def check(names: Sequence[str]) -> int:
    """Print the runs that are not as recorded, and return their number."""
    known, differ = recorded(), 0
    for name in names:
        digest = RUNS[name].play().digest
        if known.get(name) != digest:
            differ += 1
            print(f"{name}: {digest}, not {known.get(name, 'recorded')}")
    print(f"{len(names) - differ} of {len(names)} runs do what they did")
    return differ


def main(words: Sequence[str]) -> int:
    """List, write, compare or record the runs that a command line names, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--list", action="store_true", help="print what each run covers")
    group.add_argument("--write", type=Path, metavar="FOLDER", help="write the behaviour of each run into a file")
    group.add_argument("--diff", type=Path, metavar="CHECKOUT", help="compare with another checkout")
    group.add_argument("--record", action="store_true", help="record the digests")
    parser.add_argument("runs", nargs="*", metavar="RUN", help="all runs without")
    asked = parser.parse_args(words)
    if unknown := [name for name in asked.runs if name not in RUNS]:
        parser.error(f"there is no run {unknown[0]!r}; --list tells the runs")
    names = asked.runs or [*RUNS]
    if asked.list:
        for name in names:
            shows = ", ".join(f"{least} {word}" for word, least in RUNS[name].shows.items())
            print(f"{name}: {' '.join(RUNS[name].covers.split())} It shows at least {shows}.")
    elif asked.write is not None:
        write(asked.write, names)
    elif asked.diff is not None:
        return int(diff(asked.diff, names) > 0)
    elif asked.record:
        changed = record(names)
        print(f"recorded {len(names)} runs; {len(changed)} have changed{': ' * bool(changed)}{', '.join(changed)}")
    else:
        return int(check(names) > 0)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
