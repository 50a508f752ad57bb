"""Options of every benchmark, with their defaults. Each size in a list makes a row of the table."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from thalweg.emulation.links import units
from thalweg.experiments.command import Option
from thalweg.experiments.names import free_placement_names, tree_names

PROBLEMS = ("experiment", "fat", "sequential", "random", "local search")  # prefixes of the problems of `bench odp`


def attack_names() -> dict[str, str]:
    """Return the attacks of ``bench attack``."""
    from benchmarks.attackers import NAMES

    return dict.fromkeys(NAMES, "")


def problem_names() -> dict[str, str]:
    """Return the problems of ``bench odp``."""
    return dict.fromkeys(PROBLEMS, "")


Sizes = tuple[int, ...]
Rounds = Annotated[int, Option("Rounds of every side. Figures are medians.", least=1)]
Transport = Annotated[
    Literal["ipc", "tcp", "curve"], Option("Transport of all sides: Unix sockets, loopback, loopback with keys.")
]
Servers = Annotated[Sizes, Option("Servers of a network.", least=1)]


class TreeOptions(msgspec.Struct, frozen=True):
    """Options of ``bench tree``.

    ``partitions`` are timed after ``warm_up`` others, for Ray a quarter and for Dask an eighth.
    """

    sources: Annotated[int, Option("Leaves of the complete binary tree.", least=2)] = 8
    size_kib: Annotated[int, Option("Partition size in KiB.", flag="--size", metavar="KIB", least=1)] = 128
    partitions: Annotated[int, Option("Timed partitions of a round.", least=1)] = 200
    rounds: Rounds = 7
    others: Annotated[bool, Option("Measure Ray and Dask too, if the extra bench is installed.")] = True
    transport: Transport = "ipc"
    warm_up: int = 40


class GraphOptions(msgspec.Struct, frozen=True):
    """Options of ``bench graph``. ``partitions`` are timed after ``warm_up`` others."""

    size_kib: Annotated[int, Option("Partition size in KiB.", flag="--size", metavar="KIB", least=1)] = 128
    partitions: Annotated[int, Option("Timed partitions of a round.", least=1)] = 200
    rounds: Rounds = 7
    transport: Transport = "ipc"
    warm_up: int = 40


class FailoverOptions(msgspec.Struct, frozen=True):
    """Options of ``bench failover``. ``partitions`` are timed after ``warm_up`` others."""

    size_kib: Annotated[int, Option("Partition size in KiB.", flag="--size", metavar="KIB", least=1)] = 128
    state_kib: Annotated[int, Option("State of an operator in KiB.", flag="--state", metavar="KIB", least=1)] = 1024
    every: Annotated[int, Option("Partitions between two replicas.", least=1)] = 16
    replicas: Annotated[int, Option("Hosts that get a replica.", least=1)] = 1
    partitions: Annotated[int, Option("Timed partitions of a round.", least=1)] = 200
    rounds: Rounds = 7
    transport: Transport = "ipc"
    warm_up: int = 40


class LinkOptions(msgspec.Struct, frozen=True):
    """Options of ``bench link``. ``round_bytes``: approximate bytes of a side in one round."""

    sizes_kib: Annotated[Sizes, Option("Partition size in KiB.", flag="--size", metavar="KIB", least=1)] = (
        128,
        512,
        1024,
        4096,
    )
    rounds: Rounds = 5
    transport: Transport = "ipc"
    round_bytes: int = 48_000_000


class RecordsOptions(msgspec.Struct, frozen=True):
    """Options of ``bench records``."""

    rows: Annotated[int, Option("Rows of a batch.", least=1)] = 8192
    batches: Annotated[int, Option("Batches of a round; a sixteenth for row by row.", least=1)] = 1024
    rounds: Rounds = 5
    others: Annotated[bool, Option("Measure Bytewax too, if the extra bench is installed.")] = True
    transport: Transport = "ipc"


class TestbedOptions(msgspec.Struct, frozen=True):
    """Options of ``bench testbed``."""

    __test__ = False

    networks: Annotated[Sizes, Option("Hosts of a network.", flag="--network", metavar="HOSTS", least=2)] = (9, 33)
    hosts: Annotated[int, Option("Number of host processes on loopback.", least=1)] = 9
    idle_s: Annotated[float, Option("Time to watch idle processes.", flag="--idle", metavar="SECONDS")] = 5.0


class PlanOptions(msgspec.Struct, frozen=True):
    """Options of ``bench plan``."""

    servers: Servers = (4, 8, 16, 32)
    problems: Annotated[int, Option("Number of random networks.", least=1)] = 20
    tree: Annotated[str, Option("Shape of the tree.", names=tree_names)] = "binary"


class CostSpaceOptions(msgspec.Struct, frozen=True):
    """Options of ``bench cost-space``."""

    preset: Annotated[Literal["paper", "gt-itm"], Option("Method that draws topologies.")] = "paper"
    queries: Annotated[int, Option("Queries for each placement, of one operator and of three.", least=1)] = 30
    rounds: Annotated[int, Option("Number of topologies. Figures are medians.", least=1)] = 3


class OdpOptions(msgspec.Struct, frozen=True):
    """Options of ``bench odp``."""

    only: Annotated[str, Option("Solve only these problems.", names=problem_names, shown="all")] = ""
    program: Annotated[bool, Option("Solve by the program alone (HiGHS), not by the structure of problems.")] = False
    time_limit_s: Annotated[
        float,
        Option("Time limit of the program.", flag="--time-limit", unit=units.seconds),
    ] = 300.0
    rounds: Annotated[int, Option("Problems of each kind. Figures are medians.", least=1)] = 3


class ProvisionOptions(msgspec.Struct, frozen=True):
    """Options of ``bench provision``."""

    largest: Annotated[int, Option("Largest number of nodes of a tree whose optimum is found.", least=0)] = 80
    rounds: Annotated[int, Option("Problems of each kind. Figures are medians.", least=1)] = 10
    time_limit_s: Annotated[
        float, Option("Time limit of the solver for one problem.", flag="--time-limit", unit=units.seconds)
    ] = 60.0


class BimodalOptions(msgspec.Struct, frozen=True):
    """Options of ``bench bimodal``."""

    hosts: Annotated[int, Option("Hosts of a platform.", least=2)] = 100
    links: Annotated[int, Option("Number of dedicated links.", least=1)] = 99
    rounds: Annotated[int, Option("Tasks, each on a platform of its own. Figures are medians.", least=1)] = 20


class MoveOptions(msgspec.Struct, frozen=True):
    """Options of ``bench move``.

    Before the timed moves, the operator goes to every host once, which opens the connections. These moves have figures
    of their own, under the protocol ``first``.
    """

    sizes_kib: Annotated[Sizes, Option("State in KiB.", flag="--size", metavar="KIB", least=0)] = (0, 16, 256, 4096)
    moves: Annotated[int, Option("Moves of each size by each protocol.", least=1)] = 50
    rate: Annotated[str, Option("Rate of the shaped links.", metavar="RATE")] = "50mbit"
    loaded: Annotated[
        bool, Option("Measure shaped links alone: idle, full of TCP, and full without priority for control messages.")
    ] = False


class SimOptions(msgspec.Struct, frozen=True):
    """Options of ``bench sim``. Memory is measured with the first number of servers, under one-shot."""

    servers: Servers = (8, 32)
    images: Annotated[int, Option("Images of a run.", least=2)] = 180
    placements: Annotated[
        tuple[str, ...],
        Option("Placement, as in `thalweg run`.", flag="--placement", names=free_placement_names),
    ] = ("download-all", "one-shot", "local", "global")
    rounds: Annotated[int, Option("Number of networks. Figures are medians over them.", least=1)] = 5
    memory: Annotated[Sizes, Option("Images of a run whose memory is measured.", metavar="IMAGES", least=1)] = (
        180,
        18_000,
    )
    others: Annotated[bool, Option("Measure SimPy too, if the extra bench is installed.")] = True


class AttackOptions(msgspec.Struct, frozen=True):
    """Options of ``bench attack``.

    ``frames`` is the length of attacks by random, mutated or replayed frames. Other attacks have a fixed length.
    """

    frames: Annotated[int, Option("Frames of each attack by random, mutated and replayed frames.", least=1)] = 333_334
    seed: Annotated[int, Option("Seed of the attacker.", least=0)] = 0
    only: Annotated[tuple[str, ...], Option("Attack to carry out.", names=attack_names, shown="all")] = ()
    runs: Annotated[int, Option("Honest runs on the hosts, each with a client of its own.", least=1)] = 1
    transport: Annotated[
        Literal["tcp", "curve"],
        Option("tcp: no keys, so the attacker may be anyone. curve: keys, and the attacker has those of a host."),
    ] = "tcp"
