"""``make test-long``: checks that are too long for every change, with a summary for the closing note of an issue.

``python tests/long_runs.py`` runs all parts, ``… chroots faults`` runs two groups, and ``… --list`` lists the parts. If
a part fails, the next parts still run. The output of each part is in runs/long, and so is the summary. The exit status
is 1 if a part failed or did not end within its limit.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "runs/long"
PYTEST = (sys.executable, "-m", "pytest", "-n", "4", "--max-worker-restart=0")
THALWEG = (sys.executable, "-P", "-m", "thalweg")
RELEASES = ("bookworm", "trixie")
BUSY = 10  # processes that compute beside the tests of the part ``load``


class Part(NamedTuple):
    """Command of a group, with the promise that the command checks and a limit in minutes."""

    group: str
    shows: str
    command: tuple[str, ...]
    minutes: float
    environment: tuple[tuple[str, str], ...] = ()
    busy: int = 0

    @property
    def name(self) -> str:
        """Return the name of the part's log: the group and the promise."""
        return re.sub("[^a-z0-9]+", "-", f"{self.group} {self.shows}".lower()).strip("-")


def chroot(release: str, *user: str) -> Part:
    """Return the part that runs README's two commands on a bare Debian."""
    account = "an ordinary user" if user else "root"
    both = ("sh", "-c", "make demo && make test")
    return Part("chroots", f"{release} as {account}", ("bash", ".ci/chroot", "--bare", release, *user, *both), 60)


def tests(group: str, shows: str, minutes: float, *words: str, busy: int = 0, **environment: str) -> Part:
    """Return a part that runs pytest."""
    return Part(group, shows, (*PYTEST, *words), minutes, tuple(environment.items()), busy)


def faults(first_seed: int, plans: int, *kind: str) -> Part:
    """Return a part that runs seeded fault plans in virtual time."""
    words = ("sweep", "--faults", str(plans), "--first-seed", str(first_seed), *kind)
    return Part("faults", " ".join(kind) or "trees", (*THALWEG, *words), 60)


DELAYS = "docs/examples/delays.toml"
SIGKILL, NAMES = "tests/emulation/testbeds/test_sigkill.py", "tests/middleware"
KILLS = f"{NAMES}/client/failover/test_kills.py"
MAPPING = "tests/experiments/papers/test_mapping.py"
PARTS = (
    tests("tests", "every test, with many and fresh examples", 90, "--size", "long", HYPOTHESIS_PROFILE="long"),
    tests("load", f"the usual tests beside {BUSY} busy processes", 90, "--size", "usual", busy=BUSY),
    *(chroot(release, *user) for release in RELEASES for user in ((), ("--user",))),
    faults(9_000_000, 1000),
    faults(9_100_000, 500, "--graphs"),
    faults(9_200_000, 1000, "--lasting"),
    faults(9_300_000, 500, "--stripes"),
    faults(9_400_000, 500, "--networks"),
    Part("outcomes", "3,000 fault plans end as they did", (sys.executable, "tests/fault_outcomes.py"), 90),
    tests("campaigns", "launchers killed 100 times", 30, SIGKILL, THALWEG_KILLS="100"),
    tests("campaigns", "host processes killed 100 times", 30, KILLS, THALWEG_KILLS="100"),
    tests("campaigns", "a million hostile messages", 60, f"{NAMES}/core/test_fuzz.py", THALWEG_FUZZ="1000000"),
    tests("campaigns", "mapping, 1,000 plans", 30, MAPPING, THALWEG_MAPPING_PLANS="1000"),
    tests(
        "campaigns", "500 reshapings of four trees", 30, "tests/emulation/virtual/test_striped.py", "-k", "reshap",
        THALWEG_STRIPES="500",
    ),
    tests(
        "campaigns", "three hours of noisy links", 60, f"{NAMES}/core/measuring/test_noisy_links.py",
        THALWEG_DETECTION_HOURS="3",
    ),
    Part("delays", "every test of links with delays", ("bash", ".ci/netem", "--size", "long"), 30),
    Part(
        "delays", "a run with delays in a kernel of its own",
        (*THALWEG, "run", "--scenario", DELAYS, "--kernel", "uml", "--placement", "one-shot", "--images", "12"), 10,
    ),
    Part("delays", "every link with delays is proved", (*THALWEG, "testbed", "verify", DELAYS, "--kernel", "uml"), 10),
    Part("attack", "attacks on a host", (*THALWEG, "bench", "attack"), 30),
    Part("attack", "attacks by a member with keys", (*THALWEG, "bench", "attack", "--transport", "curve"), 30),
    Part("mutants", "deliberate faults are found", (sys.executable, "tests/mutants.py"), 240),
)  # fmt: skip


class Outcome(NamedTuple):
    """Exit status, duration and last line of output of a part. The status is None if the limit ended the part."""

    part: Part
    status: int | None
    seconds: float
    last: str

    def row(self) -> str:
        """Return the row of the summary."""
        word = {0: "ok", None: "NOT ENDED"}.get(self.status, f"FAILED ({self.status})")
        return f"{word:12} {self.seconds / 60:5.1f} min  {self.part.group}: {self.part.shows}: {self.last[:160]}"


@contextmanager
def beside(processes: int) -> Iterator[None]:
    """Keep ``processes`` processes computing until the block ends."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
        for process in busy:
            process.wait()


def run(part: Part) -> Outcome:
    """Run a part in a session of its own. If the limit is reached, end all processes of the session."""
    log = FOLDER / f"{part.name}.log"
    begun_s = time.monotonic()
    with log.open("wb") as out, beside(part.busy):
        environment = os.environ | dict(part.environment)
        process = subprocess.Popen(
            part.command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            status: int | None = process.wait(part.minutes * 60)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGINT)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            status = None
    lines = log.read_text(errors="replace").strip().splitlines()
    return Outcome(part, status, time.monotonic() - begun_s, lines[-1].strip("= ") if lines else "no output")


def main(words: list[str]) -> int:
    """Run the requested parts, print a row as each part ends, and return the exit status."""
    groups = list(dict.fromkeys(part.group for part in PARTS))
    options = argparse.ArgumentParser(description="Run what is too long for every change.")
    options.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(groups)}; all without")
    options.add_argument("--list", action="store_true", help="say what there is, and run nothing")
    asked = options.parse_args(words)
    if unknown := set(asked.groups) - set(groups):
        options.error(f"there is no group {sorted(unknown)[0]!r}; there are {', '.join(groups)}")
    chosen = [part for part in PARTS if part.group in (asked.groups or groups)]
    if asked.list:
        for part in chosen:
            print(f"{part.group:10} {part.minutes:4.0f} min at most  {part.shows}: {' '.join(part.command)}")
        return 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    outcomes = []
    for part in chosen:
        print(f"{part.group}: {part.shows} …", flush=True)
        outcomes.append(run(part))
        print(outcomes[-1].row(), flush=True)
    (FOLDER / "summary.txt").write_text("".join(f"{outcome.row()}\n" for outcome in outcomes))
    print(f"\nsummary, also in {FOLDER.relative_to(ROOT)}/summary.txt:")
    print("\n".join(outcome.row() for outcome in outcomes))
    return int(any(outcome.status != 0 for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
