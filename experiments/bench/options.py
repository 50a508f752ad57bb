"""What every benchmark can be asked for, and by default is; sizes of a list make a row each."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from thalweg.emulation import units
from thalweg.experiments.command import Option

Sizes = tuple[int, ...]
Rounds = Annotated[int, Option("Rounds of every side; figures are medians.", least=1)]
Transport = Annotated[
    Literal["ipc", "tcp", "curve"], Option("What all sides talk over: Unix sockets, loopback, loopback with keys.")
]
Servers = Annotated[Sizes, Option("Servers of a network; repeat it for several.", metavar="N", least=1)]


class TreeOptions(msgspec.Struct, frozen=True):
    """Of ``bench tree``. ``partitions`` are timed after ``warm_up`` others (of Ray a quarter, of Dask an eighth)."""

    sources: Annotated[int, Option("Leaves of the complete binary tree.", least=2)] = 8
    size_kib: Annotated[int, Option("Partition size in KiB.", flag="--size", metavar="KIB", least=1)] = 128
    partitions: Annotated[int, Option("Timed partitions of a round.", least=1)] = 200
    rounds: Rounds = 7
    others: Annotated[bool, Option("Also Ray and Dask, if the bench extra is installed.")] = True
    transport: Transport = "ipc"
    warm_up: int = 40


class GraphOptions(msgspec.Struct, frozen=True):
    """Of ``bench graph``. ``partitions`` are timed after ``warm_up`` others."""

    size_kib: Annotated[int, Option("Partition size in KiB.", flag="--size", metavar="KIB", least=1)] = 128
    partitions: Annotated[int, Option("Timed partitions of a round.", least=1)] = 200
    rounds: Rounds = 7
    transport: Transport = "ipc"
    warm_up: int = 40


class FailoverOptions(msgspec.Struct, frozen=True):
    """Of ``bench failover``. ``partitions`` are timed after ``warm_up`` others."""

    size_kib: Annotated[int, Option("Partition size in KiB.", flag="--size", metavar="KIB", least=1)] = 128
    state_kib: Annotated[int, Option("State of an operator in KiB.", flag="--state", metavar="KIB", least=1)] = 1024
    every: Annotated[int, Option("Partitions from one replica to the next.", least=1)] = 16
    replicas: Annotated[int, Option("Hosts that get one.", least=1)] = 1
    partitions: Annotated[int, Option("Timed partitions of a round.", least=1)] = 200
    rounds: Rounds = 7
    transport: Transport = "ipc"
    warm_up: int = 40


class LinkOptions(msgspec.Struct, frozen=True):
    """Of ``bench link``. ``round_bytes``: about how much is moved in a round of a side."""

    sizes_kib: Annotated[
        Sizes, Option("Partition size in KiB; repeat it for several.", flag="--size", metavar="KIB", least=1)
    ] = (128, 512, 1024, 4096)
    rounds: Rounds = 5
    transport: Transport = "ipc"
    round_bytes: int = 48_000_000


class RecordsOptions(msgspec.Struct, frozen=True):
    """Of ``bench records``."""

    rows: Annotated[int, Option("Rows of a batch.", least=1)] = 8192
    batches: Annotated[int, Option("Batches of a round; of what works row by row a sixteenth.", least=1)] = 1024
    rounds: Rounds = 5
    others: Annotated[bool, Option("Also Bytewax, if the bench extra is installed.")] = True
    transport: Transport = "ipc"


class TestbedOptions(msgspec.Struct, frozen=True):
    """Of ``bench testbed``."""

    __test__ = False

    networks: Annotated[
        Sizes, Option("Hosts of a network; repeat it for several.", flag="--network", metavar="HOSTS", least=2)
    ] = (9, 33)
    hosts: Annotated[int, Option("Host processes on loopback.", least=1)] = 9
    idle_s: Annotated[float, Option("How long they are watched idling.", flag="--idle", metavar="SECONDS")] = 5.0


class PlanOptions(msgspec.Struct, frozen=True):
    """Of ``bench plan``."""

    servers: Servers = (4, 8, 16, 32)
    problems: Annotated[int, Option("Random networks that are planned for.", least=1)] = 20
    tree: Annotated[str, Option("Order of combination: binary, left-deep, star.")] = "binary"


class CostSpaceOptions(msgspec.Struct, frozen=True):
    """Of ``bench cost-space``."""

    preset: Annotated[Literal["paper", "gt-itm"], Option("How topologies are drawn.")] = "paper"
    queries: Annotated[int, Option("Queries that each placement places, of one operator and of three.", least=1)] = 30
    rounds: Annotated[int, Option("Topologies; figures are medians.", least=1)] = 3


class OdpOptions(msgspec.Struct, frozen=True):
    """Of ``bench odp``."""

    only: Annotated[str, Option("Problems whose name begins so, as fat, or experiment.", metavar="NAME")] = ""
    program: Annotated[bool, Option("By the program alone (HiGHS), without the ways by structure.")] = False
    time_limit_s: Annotated[
        float, Option("Of the program; what is not proven by then has a gap.", flag="--time-limit", unit=units.seconds)
    ] = 300.0
    rounds: Annotated[int, Option("Problems of each kind; figures are medians.", least=1)] = 3


class ProvisionOptions(msgspec.Struct, frozen=True):
    """Of ``bench provision``."""

    largest: Annotated[int, Option("Nodes of the largest trees whose optimum is found.", least=0)] = 80
    rounds: Annotated[int, Option("Problems of each kind; figures are medians.", least=1)] = 10
    time_limit_s: Annotated[
        float, Option("Of the solver, for one problem.", flag="--time-limit", unit=units.seconds)
    ] = 60.0


class BimodalOptions(msgspec.Struct, frozen=True):
    """Of ``bench bimodal``."""

    hosts: Annotated[int, Option("Hosts of a platform.", least=2)] = 100
    links: Annotated[int, Option("Dedicated links.", least=1)] = 99
    rounds: Annotated[int, Option("Tasks, each on a platform of its own; figures are medians.", least=1)] = 20


class MoveOptions(msgspec.Struct, frozen=True):
    """Of ``bench move``. Before its moves the operator goes to every host once, which opens the connections; these
    have figures of their own, whose protocol is ``first``.
    """

    sizes_kib: Annotated[
        Sizes, Option("State in KiB; repeat it for several.", flag="--size", metavar="KIB", least=0)
    ] = (0, 16, 256, 4096)
    moves: Annotated[int, Option("Moves by each protocol, of each size.", least=1)] = 50
    rate: Annotated[str, Option("Of the links that are shaped, as 50mbit.")] = "50mbit"
    loaded: Annotated[
        bool, Option("Shaped links alone: idle, full of TCP, and full where nothing urgent goes before that.")
    ] = False


class SimOptions(msgspec.Struct, frozen=True):
    """Of ``bench sim``. Memory is that of runs with the first number of servers, under one-shot."""

    servers: Servers = (8, 32)
    images: Annotated[int, Option("Images of a run.", least=2)] = 180
    placements: Annotated[
        tuple[str, ...], Option("As those of a run; repeat it for several.", flag="--placement", metavar="NAME")
    ] = ("download-all", "one-shot", "local", "global")
    rounds: Annotated[int, Option("Networks; figures are medians over them.", least=1)] = 5
    memory: Annotated[
        Sizes, Option("Images of a run whose memory is measured; repeatable.", metavar="IMAGES", least=1)
    ] = (180, 18_000)
    others: Annotated[bool, Option("Also SimPy, if the bench extra is installed.")] = True


class AttackOptions(msgspec.Struct, frozen=True):
    """Of ``bench attack``. Attacks that are not of random, mutated or replayed frames have a length of their own."""

    frames: Annotated[int, Option("Random, mutated and replayed frames, of each.", least=1)] = 333_334
    seed: Annotated[int, Option("What the attacker's chance begins with.", least=0)] = 0
    only: Annotated[tuple[str, ...], Option("An attack; repeat it for several.", metavar="NAME")] = ()
    runs: Annotated[int, Option("Honest runs on the hosts, each of a client of its own.", least=1)] = 1
    transport: Annotated[
        Literal["tcp", "curve"],
        Option("tcp: no keys, and who attacks is anybody; curve: keys, and it has those of a host of the run."),
    ] = "tcp"
