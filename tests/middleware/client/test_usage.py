"""Invalid arguments of an application: an error of one line at the call, before anything starts."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flows import chain
from runtime_codes import ALLOW, MIX, Largest, assert_reference, blocks

from thalweg import Failover, Networks
from thalweg.middleware.client.client import Client
from thalweg.middleware.client.cluster import LocalCluster
from thalweg.middleware.dataflow import Code, Dataflow, Node, complete_binary_tree, star_tree
from thalweg.middleware.errors import UsageError
from thalweg.middleware.loading import check_packages
from thalweg.middleware.shell import daemon

SOURCE = blocks()["h1"]
FLOW = chain(SOURCE, MIX)
ODD: Any = object()
AROUND: list[Any] = []
AROUND.append(AROUND)


def refused(call: Callable[[], Any], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        call()
    text = str(caught.value)
    assert says in text
    assert len(text.splitlines()) == 1
    assert len(text) < 400


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: LocalCluster("abc"), "a number, or a collection of names, not 'abc'"),
        (lambda: LocalCluster(True), "a number, or a collection of names, not True"),
        (lambda: LocalCluster(2.5), "a number, or a collection of names, not 2.5"),
        (lambda: LocalCluster(-1), "a cluster needs at least one host"),
        (lambda: LocalCluster([1, 2]), "a collection of names, not 1"),
        (lambda: LocalCluster(["a/b"]), "'a/b' is no name of a host"),
        (lambda: LocalCluster(1, time_scale=-1), "the time scale is -1; give a positive number"),
        (lambda: LocalCluster(1, time_scale="fast"), "the time scale is a number, not 'fast'"),
        (lambda: LocalCluster(1, allow="runtime_codes"), "a collection of names, not 'runtime_codes'"),
        (lambda: LocalCluster(1, allow=["nosuch"]), "no package or module 'nosuch' is found here"),
        (lambda: LocalCluster(1, limits=["lease_s=3"]), "limits are a mapping of names to values, not ['lease_s=3']"),
        (lambda: Client("abc"), "a LocalCluster, or a mapping of names to endpoints, not 'abc'"),
        (lambda: Client(["tcp://127.0.0.1:1"]), "a mapping of names to endpoints, not ["),
        (lambda: Client({"h1": 7800}), "names and endpoints of hosts are texts, not 7800"),
        (lambda: Client({}, limits={"lease_s": 3}), "limits of a client are a CoreConfig, not {'lease_s': 3}"),
        (lambda: Client({}, allow="abc"), "packages to allow are a collection of names, not 'abc'"),
        (lambda: complete_binary_tree([SOURCE], MIX), "sources are a mapping of host to Code, not [Code("),
        (
            lambda: complete_binary_tree({"h1": "blocks"}, MIX),
            "the code of node 'source@h1' is a Code(use, params), not",
        ),
        (lambda: star_tree({"h1": SOURCE, "h2": SOURCE}, "composite"), "the code of node 'op0' is a Code(use, params)"),
        (lambda: Dataflow((ODD,)).validate(), "a dataflow is made of nodes, not of <object object"),
        (lambda: Dataflow((Node(3, "sink", ("s",)),)).validate(), "node name 3 is not 1 to 128"),
        (
            lambda: Dataflow((Node("t", "sink", "s"),)).validate(),
            "the inputs of node 't' are a tuple of names, not 's'",
        ),
    ],
)
def test_clusters_clients_and_trees_refuse_invalid_arguments(call: Callable[[], Any], says: str) -> None:
    refused(call, says)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan])
def test_a_client_refuses_an_invalid_time_scale(cluster: LocalCluster, scale: float) -> None:
    refused(lambda: Client(cluster, time_scale=scale), "give a positive number")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"partitions": "3"}, "partitions are a whole number, not '3'"),
        ({"partitions": True}, "partitions are a whole number, not True"),
        ({"partitions": 2.0}, "partitions are a whole number, not 2.0"),
        ({"ahead": 0}, "ahead is 0; give how many partitions may be under way over an edge, 1 to 1024"),
        ({"ahead": "4"}, "ahead is a number of partitions, or 'auto', not '4'"),
        ({"label": 3}, "the label of a run is a text, not 3"),
        (
            {"placement": ["h1"]},
            "a placement is a mapping of nodes to hosts, or the name of a planner or strategy, not [",
        ),
        ({"placement": {"o": 1}}, "a placement maps names of nodes to names of hosts, not 1"),
        ({"placement": None}, "or the name of a planner or strategy, not None"),
        ({"adaptation": "global"}, "an adaptation is GlobalMoves, LocalMoves or SpaceMoves, not 'global'"),
        ({"planning": "one-shot"}, "the options of plans are a Planning, not 'one-shot'"),
        ({"networks": 3}, "networks are a mapping of names to Network objects, or Networks, not 3"),
        ({"networks": {"fast": 3}}, "each value of networks is a Network, not 3"),
        ({"networks": Networks(wanted_hz=-1.0)}, "wanted_hz is -1.0; give partitions a second"),
        ({"networks": Networks(hops=9)}, "hops is 9; give 1, for links from host to host, to 8"),
        ({"dataflow": "abc"}, "the argument dataflow is a Dataflow, not 'abc'"),
        ({"dataflow": chain(SOURCE, Code(Largest))}, "name code by a module that hosts can import"),  # type: ignore[arg-type]
        ({"dataflow": chain(SOURCE, Code("__main__:Mean"))}, "node 'o' runs '__main__:Mean'; name code by a module"),
        ({"dataflow": chain(SOURCE, Code("mean", [1]))}, "the parameters of node 'o' are a dict, not [1]"),  # type: ignore[arg-type]
        (
            {"dataflow": chain(SOURCE, Code("mean", {"of": {1, 2}}))},
            "{1, 2} of the parameters of node 'o' is set; give",
        ),
        (
            {"dataflow": chain(SOURCE, Code("mean", {"of": [{"a": ODD}]}))},
            "of the parameters of node 'o' is object; give",
        ),
        ({"dataflow": chain(SOURCE, Code("mean", {"of": {1: 2}}))}, "a name of the parameters of node 'o' is a text"),
        ({"dataflow": chain(SOURCE, Code("mean", {"of": AROUND}))}, "the parameters of node 'o' contain themselves"),
        ({"failover": 3}, "the argument failover is a Failover, not 3"),
        ({"failover": Failover(replicas=9)}, "9 replicas of each state need as many other hosts"),
        ({"failover": Failover(every=0)}, "every of failover is 0: Expected `int` >= 1"),
        ({"failover": Failover(every_s="soon")}, "every_s of failover is 'soon': Expected `float`, got `str`"),  # type: ignore[arg-type]
        ({"failover": Failover(domains={"h9": "a"})}, "domains: there is no host 'h9'"),
    ],
)
def test_a_run_refuses_invalid_options(client: Client, options: dict[str, Any], says: str) -> None:
    given = {"dataflow": FLOW, "placement": {"o": "h1"}} | options
    refused(lambda: client.run(**given), says)


def test_plans_probes_and_moves_refuse_invalid_arguments(client: Client) -> None:
    refused(lambda: client.plan("abc"), "the argument dataflow is a Dataflow, not 'abc'")  # type: ignore[arg-type]
    refused(lambda: client.probe([("h1", "h9")]), "there is no host 'h9'; did you mean")
    refused(lambda: client.probe(["h1"]), "a link is a pair of hosts, not 'h1'")  # type: ignore[list-item]
    refused(lambda: client.probe([("h1", "h2", "h3")]), "host 'h1' is not joined to a network 'h3'; known are net")  # type: ignore[list-item]
    refused(lambda: client.probe([("h1", "h2", "net", "net")]), "a link is a pair of hosts, not (")  # type: ignore[list-item]
    with client.run(FLOW, {"o": "h1"}) as run:
        refused(lambda: run.move("h2"), "a placement is a mapping of nodes to hosts, not 'h2'")  # type: ignore[arg-type]
        refused(lambda: run.move({"o": "h9"}), "unknown host 'h9'")
        refused(lambda: run.reshape("abc", {}), "the argument dataflow is a Dataflow, not 'abc'")  # type: ignore[arg-type]
        assert next(run).index == 0


@pytest.mark.parametrize("name", ["nosuch", "thalweg.nosuch", "thalweg.operators.nosuch.deeper", "a/b", "", ".", "os."])
def test_a_host_refuses_to_allow_a_package_that_is_not_found(name: str) -> None:
    refused(lambda: daemon.main(["--name", "h1", "--allow", name]), f"no package or module {name!r} is found here")


def test_packages_and_modules_to_allow_are_found_without_an_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "never_imported"
    package.mkdir()
    for file in ("__init__.py", "inner.py"):
        (package / file).write_text("raise AssertionError('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = ("runtime_codes", "thalweg.experiments.papers.plots", "json", "never_imported", "never_imported.inner")
    assert check_packages(found) == found
    assert not {"never_imported", "never_imported.inner"} & sys.modules.keys()


# --- an unpinned sink -------------------------------------------------------------------------------

UNPINNED = Dataflow(tuple(each if each.kind != "sink" else Node("sink", "sink", each.inputs) for each in star_tree(
    blocks(["h1", "h2"]), Code("runtime_codes:Largest")).nodes))  # fmt: skip


@pytest.mark.parametrize("placement", ["thalweg", "global", "local", "one-shot", "download-all", {"op0": "h2"}])
def test_an_unpinned_sink_is_at_the_client(client: Client, placement: Any) -> None:
    run = client.run(UNPINNED, placement, partitions=4)
    assert run.placement["sink"] == "client"
    assert_reference([each.value for each in run], UNPINNED, 4)


def test_an_unpinned_sink_stays_at_the_client_after_a_reshaping(client: Client) -> None:
    assert client.plan(UNPINNED).result.placement.keys() >= {"op0"}
    with client.run(UNPINNED, {"op0": "h1"}) as run:
        assert next(run).index == 0
        other = renamed(UNPINNED, "op0", "top")
        run.reshape(other, {"top": "h2"})
        for each in run:
            assert each.index < 2_000
            if "op0" not in run.dataflow.by_name:
                break
        assert run.placement["sink"] == "client"


def renamed(flow: Dataflow, old: str, new: str) -> Dataflow:
    """Return the same tree with a different name for an operator."""
    return Dataflow(
        tuple(
            Node(new if each.name == old else each.name, each.kind,
                 tuple(new if name == old else name for name in each.inputs), each.code, each.pinned)
            for each in flow.nodes
        )
    )  # fmt: skip


def test_a_client_may_allow_a_package_that_is_not_installed_locally(cluster: LocalCluster) -> None:
    with Client(cluster, allow=["only_there", *ALLOW]) as client:
        assert len(list(client.run(FLOW, {"o": "h1"}, partitions=2))) == 2
