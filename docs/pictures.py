"""The first picture of the README, drawn from a simulated run: ``python docs/pictures.py docs/images/moving.png``.

The run is that of ``COMMAND``. Both panels show the placement *global*: the operators' hosts when one host has lost
nine tenths of its network, and after the moves that answer. The lines below compare the time between images with that
under *one-shot*, whose operators stay.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import pyarrow.parquet as parquet

matplotlib.use("agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

COLLAPSE_S = 400.0
COMMAND = (
    "run --testbed sim --placement one-shot --placement global --images 80 --scenario collapse --collapse-at 400s"
    " --link-mean 0.2mbit --seed 10 --period 120 --hysteresis 1"
)
STAYS, MOVES, LOST = "#4051b5", "#e8590c", "#c92a2a"


class Story(NamedTuple):
    """What the picture shows: the lost host, operators' hosts before and after, and seconds between images."""

    lost: str
    before: Mapping[str, str]
    after: Mapping[str, str]
    before_s: float
    staying_s: float
    moving_s: float


def read_story(events: Sequence[Mapping[str, Any]]) -> Story:
    """Return the story of a run's events."""
    lost = next(event["host"] for event in events if event["kind"] == "scenario")
    plans = [
        (event["t_s"], json.loads(event["detail"])["placement"])
        for event in events
        if event["placement"] == "global" and event["kind"] in ("placed", "plan")
    ]
    operators = {node for node in plans[0][1] if node.startswith("op")}
    before: dict[str, str] = {}
    for moved_s, placement in plans:
        hosts = {node: placement[node] for node in operators}
        if moved_s > COLLAPSE_S and before and lost not in hosts.values() and hosts != before:
            break
        before = hosts
    else:
        raise ValueError(f"no plan takes the operators from {lost}; choose another seed")

    def mean_s(placement: str, begin_s: float, end_s: float) -> float:
        times = [e["t_s"] for e in events if e["kind"] == "delivered" and e["placement"] == placement]
        return float((end_s - begin_s) / max(1, sum(begin_s <= time < end_s for time in times)))

    end_s = max(e["t_s"] for e in events if e["kind"] == "delivered" and e["placement"] == "global")
    return Story(
        lost, before, hosts, mean_s("global", 0.0, COLLAPSE_S), mean_s("one-shot", moved_s, end_s),
        mean_s("global", moved_s, end_s),
    )  # fmt: skip


def draw_hosts(axes: Axes, title: str, story: Story, placement: Mapping[str, str], after: bool) -> None:
    """Draw the hosts in a circle, the operators on them, and what became of the lost host."""
    servers = sorted({f"h{number}" for number in range(1, 9)})
    places = {"client": (0.0, 0.0)}
    for number, host in enumerate(servers):
        angle = math.pi / 2 - 2 * math.pi * number / len(servers)
        places[host] = (math.cos(angle), 0.8 * math.sin(angle))
    for host, (x, y) in places.items():
        slow = host == story.lost
        axes.plot(
            [0, x], [0, y], color=LOST if slow else "#adb5bd", linestyle=":" if slow else "-", linewidth=1, zorder=0
        )
        axes.scatter([x], [y], s=900, color="white", edgecolor=LOST if slow else "#495057", linewidth=1.5, zorder=2)
        axes.text(x, y, host, ha="center", va="center", fontsize=9, color=LOST if slow else "#212529", zorder=3)
    for host, (x, y) in places.items():
        there = sorted(node for node, at in placement.items() if at == host)
        for number, operator in enumerate(there):
            moves = story.before[operator] != story.after[operator]
            beside = 0.21 * (number % 2 - (min(2, len(there)) - 1) / 2)
            spot = (1.38 * x + beside, 1.3 * y + 0.15 * (number // 2) - (0.38 if host == "client" else 0.0))
            axes.text(
                *spot, operator, ha="center", va="center", fontsize=8, color="white", zorder=4,
                bbox={"boxstyle": "round,pad=0.25", "facecolor": MOVES if moves else STAYS, "edgecolor": "none"},
            )  # fmt: skip
            if after and moves:
                origin = places[story.before[operator]]
                axes.annotate(
                    "", xy=(x, y), xytext=origin, zorder=1,
                    arrowprops={"arrowstyle": "-|>", "color": MOVES, "linewidth": 2, "shrinkA": 15, "shrinkB": 15},
                )  # fmt: skip
    axes.set_title(title, fontsize=11, color="#212529")
    axes.set(xlim=(-1.55, 1.6), ylim=(-1.15, 1.2), aspect="equal")
    axes.axis("off")


def draw(story: Story, path: Path) -> None:
    """Write the picture."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.6), facecolor="white")
    draw_hosts(left, f"{story.lost} loses nine tenths of its network", story, story.before, after=False)
    draw_hosts(right, f"the operators on {story.lost} move", story, story.after, after=True)
    words = {"ha": "center", "fontsize": 10, "color": "#212529"}
    staying = f"an image every {story.before_s:.0f} s until now, every {story.staying_s:.0f} s if they stay"
    left.text(0.0, -1.3, staying, **words)
    right.text(0.0, -1.3, f"an image every {story.moving_s:.0f} s", **words)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def simulate() -> Story:
    """Run ``COMMAND`` on generated traces, and return its story."""
    environment = {name: value for name, value in os.environ.items() if name != "THALWEG_TRACES"}
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-P", "-m", "thalweg", *COMMAND.split(), "--out", f"{folder}/run"]
        subprocess.run(words, env=environment, check=True, stdout=subprocess.DEVNULL)
        return read_story(parquet.read_table(f"{folder}/run/events.parquet").to_pylist())


def main(words: Sequence[str]) -> int:
    """Draw the picture into the file that is named, and return the exit status."""
    story = simulate()
    draw(story, Path(words[0]))
    print(story)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
