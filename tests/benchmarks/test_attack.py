"""Hosts under attack survive, and their run delivers right partitions. Figures are left to the benchmark."""

from __future__ import annotations

import contextlib
import itertools
import json
from random import Random

import msgspec
import pytest
from run_ids import R

from benchmarks.attack import NAMES, bench_attack
from benchmarks.attackers import ATTACKS, BETRAYED, ENDLESS, Orders, lies, mutated
from benchmarks.options import AttackOptions
from benchmarks.tree import bench_dataflow
from thalweg.experiments.cli.main import invoke
from thalweg.middleware.core.hosting.admission import why_not
from thalweg.middleware.errors import ProtocolError, UsageError
from thalweg.middleware.protocol import frames
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.limits import CoreConfig


@pytest.mark.long
@pytest.mark.parametrize("attack", ENDLESS)
def test_hosts_survive_an_endless_attack_and_the_run_delivers_right_partitions(attack: str) -> None:
    (row,) = bench_attack(AttackOptions(6_667, 1, (attack,)))["attacks"]
    assert row["frames"] >= 6_667
    assert (row["hosts_ended"], row["wrong"], row["failed"]) == (0, 0, "")
    assert row["partitions"] > 40


@pytest.mark.parametrize(("attack", "more"), [("forged", ("--transport", "curve", "--runs", "2")), (BETRAYED, ())])
def test_hosts_survive_single_attacks(attack: str, more: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    status = invoke(["bench", "attack", "--only", attack, "--json", *more])
    answer = json.loads(capsys.readouterr().out)
    (row,) = answer["attacks"]
    assert row["hosts_ended"] == 0
    assert attack == BETRAYED or (row["wrong"], row["failed"]) == (0, "")
    assert status == (not answer["holds"])


def test_an_unknown_attack_is_refused_with_a_suggestion() -> None:
    with pytest.raises(UsageError, match="did you mean 'probes'"):
        bench_attack(AttackOptions(only=("probe",)))
    assert len(set(NAMES)) == len(NAMES)


def corpus() -> list[bytes]:
    """Return a frame of every kind that an attacker forges, and an ``Install``."""
    dataflow = bench_dataflow(2, 10)
    locations = tuple(m.Location(node.name, "h1", 1) for node in dataflow.nodes)
    install = frames.encode(m.Install(R, dataflow, locations, (), "client"))
    messages = lies(Orders("", (), R, "h3", install, (), 0, 0))
    parts = [m.Chunk(1, 4, 0, message) for message in messages if isinstance(message, m.Partition | m.AnyState)]
    piggybacking = frames.encode_piggybacking(messages[0], [m.Credit(1, 2, True)] * 3)
    return [install, piggybacking, *(frames.encode(message) for message in (*messages, *parts))]


def test_mutated_frames_decode_to_messages_or_to_a_protocol_error() -> None:
    chance, known = Random(1), corpus()
    for _ in range(20_000):
        (frame,) = mutated([chance.choice(known)], chance)
        for decode in (frames.decode_all, frames.decode_chunk):
            with contextlib.suppress(ProtocolError):
                decode(frame)


@pytest.mark.parametrize(
    ("name", "count", "limit"),
    [("runs", 3, ""), ("installs", 1, "max_nodes")],  # further installs are too large for a frame
)
def test_attacks_that_request_runs_are_refused_by_nothing_but_the_limit(name: str, count: int, limit: str) -> None:
    """An attack tests no limit of a host if its messages do not decode, or are refused for a different reason."""
    peers = tuple(m.Peer(host, "tcp://127.0.0.1:1", "tcp://127.0.0.1:2") for host in ("h1", "h2", "client"))
    ordered = frames.decode_control(corpus()[0])
    assert isinstance(ordered, m.Install)
    installed = frames.encode(msgspec.structs.replace(ordered, peers=peers))
    attack = ATTACKS[name](Orders("", peers[:1], R, "h3", installed, (), 0, 0), Random(1))
    for _, _, _, (frame, *_) in itertools.islice(attack, count):
        install = frames.decode_control(frame)
        assert isinstance(install, m.Install)
        why = why_not("stranger", install, "h1", CoreConfig(), runs=0, draining=False)
        assert limit in why and (limit or not why), why
