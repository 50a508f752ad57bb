"""Values are the same at every consumer, and do not change when the code that made them reuses its buffers."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from flows import chain
from value_codes import KINDS, REFUSED, WAYS, WRITES, told, wrong_frames

from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.emulation.virtual.config import WorldConfig
from thalweg.emulation.virtual.faults import FaultPlan, Storm
from thalweg.emulation.virtual.faulty import FaultyWorld
from thalweg.experiments.drivers.random_moves import RandomMover
from thalweg.experiments.simulation.run import real_code
from thalweg.middleware.client.client import Client
from thalweg.middleware.client.cluster import LocalCluster
from thalweg.middleware.dataflow import Code, Dataflow
from thalweg.middleware.errors import RunError
from thalweg.middleware.network.view import links_between
from thalweg.middleware.planning.registry import RandomMoves
from thalweg.middleware.protocol.limits import CoreConfig

ALLOW = ("value_codes",)
HOSTS = ("h1", "h2", "client")  # beside the source, elsewhere, and at the application
KB = 1024


def code(name: str, **params: Any) -> Code:
    return Code(f"value_codes:{name}", params)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(2, allow=ALLOW) as started:
        yield started


@pytest.fixture(scope="module")
def client(cluster: LocalCluster) -> Iterator[Client]:
    with Client(cluster, allow=ALLOW) as client:
        yield client


def line(client: Client, flow: Dataflow, host: str) -> str:
    """Return the error of a run with all operators on ``host``, without the names of hosts."""
    with pytest.raises(RunError) as caught:
        list(client.run(flow, dict.fromkeys(flow.operators, host)))
    return re.sub("'(h1|h2|client|narrow)'", "its host", str(caught.value))


# --- the same everywhere ------------------------------------------------------------------------------


def test_every_kind_of_value_is_the_same_at_every_consumer(client: Client) -> None:
    seen: dict[str, list[str]] = {}
    for host in HOSTS:
        run = client.run(chain(code("Kinds"), code("Tells")), {"o": host})
        seen[f"operator at {host}"] = [each.value.decode() for each in run]
        run = client.run(chain(code("Kinds"), code("Passes")), {"o": host})
        seen[f"application behind {host}"] = [told(each.value) for each in run]
    seen["application"] = [told(each.value) for each in client.run(chain(code("Kinds")), {})]
    first = seen["application"]
    assert len(first) == len(KINDS)
    for where, all_told in seen.items():
        assert dict(zip(KINDS, all_told, strict=True)) == dict(zip(KINDS, first, strict=True)), where
    for kind, said in zip(KINDS, first, strict=True):
        assert "ndarray" not in said or " sealed " in said, kind


def test_a_part_of_an_input_is_passed_on_unchanged_by_every_host(client: Client) -> None:
    flow = chain(code("Camera", size=96 * KB, way="shape"), code("Passes", part=True))
    for host in HOSTS:
        values = [each.value for each in client.run(flow, {"o": host}, partitions=8)]
        assert [(value.shape, int(value.min()), int(value.max())) for value in values] == [
            ((3, 24 * KB), 7 * i + 1, 7 * i + 1) for i in range(8)
        ]


@pytest.mark.parametrize("kind", REFUSED)
def test_a_value_that_cannot_travel_is_refused_with_the_same_line_for_every_consumer(client: Client, kind: str) -> None:
    flow = chain(code("Kinds", only=kind), code("Passes"))
    (said,) = {line(client, flow, host) for host in HOSTS}
    assert "'s'" in said
    assert "\n" not in said
    assert ".filled(" in said or "masked" not in kind


@pytest.mark.parametrize("how", WRITES)
def test_writing_into_an_input_fails_with_the_same_line_on_every_host(client: Client, how: str) -> None:
    camera = chain(code("Camera", size=KB, way="buffer"), code("Writes", how=how))
    (said,) = {line(client, camera, host) for host in HOSTS}
    assert "read-only: work on a copy" in said


# --- buffers that are used again ----------------------------------------------------------------------


@pytest.mark.parametrize("size", [KB, 256 * KB, 4096 * KB])
@pytest.mark.parametrize("way", WAYS)
def test_a_buffer_may_be_used_again_at_once(client: Client, way: str, size: int) -> None:
    flow = chain(code("Camera", size=size, way=way), code("Reader", size=size, way=way))
    run = client.run(flow, {"o": "h1"}, partitions=18)
    values = []
    for host in itertools.chain.from_iterable(zip(HOSTS[1:], HOSTS[:2], strict=True)):
        values += [each.value for each in itertools.islice(run, 4)]
        run.move({"o": host})  # while it goes on
    values += [each.value for each in run]
    assert len(values) == 18
    assert wrong_frames(values, size) == []


def test_a_buffer_may_be_used_again_although_partitions_are_lost_and_sent_again() -> None:
    records: list[str] = []
    links = {link: BandwidthTrace.constant(" ".join(link), 1e6) for link in links_between(HOSTS)}
    for way in WAYS:
        storm = FaultPlan(7, (Storm(drop=0.2, duplicate=0.2, unconfirmed=0.1),))
        codes = real_code(ALLOW, 1e6)
        world = FaultyWorld(
            HOSTS, links, codes, storm, WorldConfig(), on_record=lambda _, __, record: records.append(record.kind)
        )
        values: list[Any] = []
        world.driver = RandomMover(RandomMoves(20), world, HOSTS).on_delivered
        world.on_delivered = lambda command, _, values=values: values.append(command.value)
        flow = chain(code("Camera", size=KB, way=way), code("Reader", size=KB, way=way), client="client")
        world.run(flow.validate(HOSTS), {"s": "h1", "o": "h2", "t": "client"}, 40)
        assert world.failed is None
        assert len(values) == 40
        assert wrong_frames(values, KB) == []
    assert "repeated" in records


def test_values_of_the_application_stay_the_same_when_the_source_reuses_a_buffer(client: Client) -> None:
    flow = chain(code("Camera", size=64 * KB, way="buffer"))
    values = [each.value for each in client.run(flow, {}, partitions=12)]
    assert [np.unique(value).tolist() for value in values] == [[(7 * i + 1) % 251] for i in range(12)]
    assert not any(value.flags.writeable for value in values)


# --- how large ----------------------------------------------------------------------------------------


def test_a_partition_over_the_smallest_limit_ends_the_run_in_every_placement(cluster: LocalCluster) -> None:
    narrow = CoreConfig(max_partition_bytes=256 * KB - 1)
    with Client(cluster, name="narrow", allow=ALLOW, limits=narrow) as client:
        fits, over = (code("Camera", size=size, way="buffer") for size in (256 * KB - 1, 256 * KB))
        counts = chain(over, code("Counts"))  # what comes to the application is small
        said = {line(client, flow, host) for flow in (counts, chain(over, code("Passes"))) for host in client.hosts}
        assert said == {
            "node 's' on host its host: partition 0 has 262144 bytes; host its host takes at most 262143 (its limit"
            " max_partition_bytes): make it smaller, or raise the limit"
        }
        run = client.run(chain(fits, code("Passes")), {"o": "h2"}, partitions=3)
        assert [each.size_bytes for each in run] == [256 * KB - 1] * 3
