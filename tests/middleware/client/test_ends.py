"""Sources that end after different numbers of partitions: the run ends with the shortest and records it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from runtime_codes import ALLOW, MIX, assert_reference, blocks

from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.emulation.virtual.config import WorldConfig
from thalweg.emulation.virtual.faults import FaultPlan, Storm
from thalweg.emulation.virtual.faulty import FaultyWorld
from thalweg.experiments.drivers.random_moves import RandomMover
from thalweg.experiments.simulation.run import real_code
from thalweg.middleware.client.client import Client
from thalweg.middleware.client.cluster import LocalCluster
from thalweg.middleware.dataflow import Code, Dataflow, Reorderable, complete_binary_tree, left_deep_tree, star_tree
from thalweg.middleware.errors import RunError
from thalweg.middleware.network.view import links_between
from thalweg.middleware.planning.registry import RandomReshapes
from thalweg.middleware.protocol import events as e

LARGEST = Code("runtime_codes:Largest")
SAID = "sources do not end together: partition 5 is missing from 'source@h1', 'source@h3', not 'source@h2'"


def ending(build: Any, code: Code, *lengths: int | None) -> Dataflow:
    """Return a tree over one source for each length, on h1, h2 and so on."""
    hosts = [f"h{i + 1}" for i in range(len(lengths))]
    each = {host: blocks((host,), length=length)[host] for host, length in zip(hosts, lengths, strict=True)}
    flow: Dataflow = build(each, code)
    return flow


@pytest.mark.parametrize("build", [complete_binary_tree, left_deep_tree, star_tree])
@pytest.mark.parametrize("where", ["h2", "h3", "client"])
def test_a_run_ends_with_the_shortest_source_and_records_the_uneven_end(
    cluster: LocalCluster, tmp_path: Path, build: Any, where: str
) -> None:
    flow = ending(build, MIX, 5, None, 5)
    placement = dict.fromkeys(flow.operators, where)
    with Client(cluster, allow=ALLOW, records=tmp_path / "client.jsonl") as client:
        values = [each.value for each in client.run(flow, placement)]
        assert_reference(values, flow, None)
        assert len(values) == 5
        run = client.run(flow, placement, strict=True)
        assert [next(run).index for _ in range(5)] == [0, 1, 2, 3, 4]
        with pytest.raises(RunError, match=f"^{SAID}$"):
            next(run)
    rows = [json.loads(row) for row in (tmp_path / "client.jsonl").read_text().splitlines()]
    said = [(row["index"], row["detail"]) for row in rows if row["kind"] == "uneven"]
    assert said == [(5, {"ended": ["source@h1", "source@h3"], "went_on": ["source@h2"]})] * 2


def test_a_strict_run_fails_at_an_uneven_end_in_asyncio_too(client: Client) -> None:
    async def take() -> list[int]:
        return [each.index async for each in client.run(flow, {"op0": "h3", "op1": "h1"}, strict=True)]

    flow = ending(complete_binary_tree, MIX, 5, None, 5)
    with pytest.raises(RunError, match=SAID):
        asyncio.run(take())


@pytest.mark.parametrize(("lengths", "partitions"), [((5, 5, 5), None), ((5, None, 9), 5), ((5, 5, 5), 9)])
def test_a_strict_run_succeeds_if_sources_end_together_or_the_client_bounds_the_run(
    client: Client, lengths: tuple[int | None, ...], partitions: int | None
) -> None:
    flow = ending(complete_binary_tree, MIX, *lengths)
    run = client.run(flow, dict.fromkeys(flow.operators, "h2"), partitions=partitions, strict=True)
    assert [each.index for each in run] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("lengths", [(9, 12, 9, None), (12, 12, 9, 9), (9, 10, 10, 10), (9, 9, 9, 9)])
def test_the_record_of_an_uneven_end_is_right_despite_losses_and_reshapings(lengths: tuple[int | None, ...]) -> None:
    flow = ending(complete_binary_tree, LARGEST, *lengths)
    hosts = ("h1", "h2", "h3", "h4", "client")
    links = {link: BandwidthTrace.constant(" ".join(link), 1e6) for link in links_between(hosts)}
    ended = [f"source@h{i + 1}" for i, length in enumerate(lengths) if length == 9]
    went_on = sorted(set(flow.sources) - set(ended))
    expected = [{"index": 9, "detail": {"ended": ended, "went_on": went_on}}] if went_on else []
    reshaped = 0
    for seed in range(12):
        said: list[e.Record] = []
        delivered: list[int] = []
        storm = FaultPlan(seed, (Storm(drop=0.1, duplicate=0.1, delay=0.1),))
        codes = real_code(ALLOW, 1e6)
        world = FaultyWorld(
            hosts, links, codes, storm, WorldConfig(), on_record=lambda _, __, record, said=said: said.append(record)
        )
        world.driver = RandomMover(RandomReshapes(20, 20, seed), world, hosts, (LARGEST,)).on_delivered
        world.on_delivered = lambda command, _, delivered=delivered: delivered.append(command.index)
        placement = {name: flow.by_name[name].pinned or hosts[seed % 5] for name in flow.by_name}
        world.run(flow, placement, 1000, reorderable=Reorderable((LARGEST,)))
        assert world.failed is None
        assert delivered == list(range(9))
        assert [record.fields for record in said if record.kind == "uneven"] == expected, seed
        reshaped += world.reshapings
    assert reshaped > 10
