"""Commands of ``thalweg bench``: performance figures, side by side with what a user would otherwise write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import typer

from benchmarks.options import (
    AttackOptions,
    BimodalOptions,
    CostSpaceOptions,
    FailoverOptions,
    GraphOptions,
    LinkOptions,
    MoveOptions,
    OdpOptions,
    PlanOptions,
    ProvisionOptions,
    RecordsOptions,
    SimOptions,
    TestbedOptions,
    TreeOptions,
)
from thalweg.experiments.cli.commands import group
from thalweg.experiments.cli.console import JsonOption, new_table, output, print_json, spinner
from thalweg.experiments.cli.options import takes

app = group(
    "bench",
    """Measure performance side by side with alternatives.

    Each benchmark runs all sides in turn, on this machine, and prints a table.

    Operators in a tree, beside Ray and Dask: thalweg bench tree --rounds 3

    The pause of an operator that moves: thalweg bench move --moves 20 --json
    """,
)


@app.command("tree")
@takes(TreeOptions)
def tree(options: TreeOptions, as_json: JsonOption = False) -> None:
    """Measure a combining tree: Thalweg, hand-written pyzmq, Ray and Dask.

    The figures are partitions a second on this machine.

    Example: thalweg bench tree --rounds 9 --json
    """
    from benchmarks.tree import bench_tree

    answer = _measure(as_json, bench_tree, options)
    title = f"{options.sources} sources, {answer['operators']} operators, {options.size_kib} KiB, {options.transport}"
    table = new_table(*("side", "partitions/s", "of raw", "ms of processors"), title=title)
    names = {
        "thalweg_per_s": "Thalweg, operators beside an input",
        "raw_per_s": "pyzmq REQ/REP by hand",
        "thalweg_spread_per_s": "Thalweg, one node a process",
        "ray_per_s": "Ray actors",
        "dask_per_s": "Dask distributed",
    }
    for key, name in names.items():
        rate = answer[key]
        share = answer["ratio"] if key == "thalweg_per_s" else rate and rate / answer["raw_per_s"]
        taken_ms = answer["cpu_ms"].get(key.removesuffix("_per_s"))
        figures = ("-", "-") if rate is None else (f"{rate:.0f}", f"{share:.2f}")
        table.add_row(name, *figures, "-" if taken_ms is None else f"{taken_ms:.2f}")
    output().print(table)


@app.command("graph")
@takes(GraphOptions)
def graph(options: GraphOptions, as_json: JsonOption = False) -> None:
    """Measure a graph with fan-out and two sinks, beside a tree of as many nodes.

    The figures are nodes a second on this machine. Every operator is on the host of its first input. A graph has more
    edges than a tree, and more of them between hosts.

    Example: thalweg bench graph --rounds 9 --json
    """
    from benchmarks.graph import bench_graph

    answer = _measure(as_json, bench_graph, options)
    title = f"{answer['nodes']} nodes, {options.size_kib} KiB, {options.transport}"
    table = new_table("dataflow", "nodes/s", "of the tree", "edges", "between hosts", title=title)
    for name, share in (("tree", 1.0), ("graph", answer["ratio"])):
        row = answer[name]
        figures = (f"{row['nodes_per_s']:.0f}", f"{share:.2f}", str(row["edges"]), str(row["edges_between_hosts"]))
        table.add_row(name, *figures)
    output().print(table)


@app.command("failover")
@takes(FailoverOptions)
def failover(options: FailoverOptions, as_json: JsonOption = False) -> None:
    """Measure a tree that outlives its hosts, beside the same tree that does not.

    The figures are partitions a second on this machine.

    Example: thalweg bench failover --every 16 --state 1024
    """
    from benchmarks.failover import bench_failover

    answer = _measure(as_json, bench_failover, options)
    title = f"{answer['operators']} operators, a replica every {options.every} partitions, {options.transport}"
    columns = "operators", "partitions/s", "with failover", "ratio", "ms of processors", "with failover", "ratio"
    table = new_table(*columns, title=title)
    state = f"with {options.state_kib} KiB each"
    changes = {"state": "a byte changes", "delta": "a byte changes, which is told", "whole": "all changes"}
    for name, kind in (("plain", "without state"), *((name, f"{state}: {text}") for name, text in changes.items())):
        row = answer[name]
        rates = f"{row['per_s']:.0f}", f"{row['lasting_per_s']:.0f}", f"{row['ratio']:.3f}"
        table.add_row(kind, *rates, f"{row['cpu_ms']:.2f}", f"{row['lasting_cpu_ms']:.2f}", f"{row['cpu_ratio']:.3f}")
    output().print(table)


@app.command("link")
@takes(LinkOptions)
def link(options: LinkOptions, as_json: JsonOption = False) -> None:
    """Measure one hop: Thalweg, and a bare DEALER and ROUTER with credits.

    The figures are MB a second on this machine.

    Example: thalweg bench link --size 128 --size 4096
    """
    from benchmarks.link import bench_link

    answer = _measure(as_json, bench_link, options)
    columns = "partition", "Thalweg MB/s", "DEALER/ROUTER MB/s", "ratio", "ms of processors", "ratio"
    table = new_table(*columns, title=f"One hop, {options.transport}")
    for row in answer["sizes"]:
        rates = (f"{row['thalweg_mb_per_s']:.0f}", f"{row['raw_mb_per_s']:.0f}", f"{row['ratio']:.2f}")
        processor = f"{row['cpu_ms']['thalweg']:.2f}", f"{row['cpu_ratio']:.2f}"
        table.add_row(f"{row['size_bytes'] // 1024} KiB", *rates, *processor)
    output().print(table)


@app.command("records")
@takes(RecordsOptions)
def records(options: RecordsOptions, as_json: JsonOption = False) -> None:
    """Measure records through source, filter and windowed count: Thalweg and Bytewax.

    The figures are rows a second on this machine. Each node is on a host of its own.

    Example: thalweg bench records --rounds 3 --json
    """
    from benchmarks.records import bench_records

    answer = _measure(as_json, bench_records, options)
    table = new_table("side", "rows/s", title=f"Batches of {options.rows} rows, {options.transport}")
    names = {
        "thalweg_rows_per_s": "Thalweg, three hosts",
        "bytewax_batches_rows_per_s": "Bytewax, one process, Arrow batches and pyarrow",
        "bytewax_rows_per_s": "Bytewax, one process, row by row",
    }
    for key, name in names.items():
        table.add_row(name, "-" if answer[key] is None else f"{answer[key]:,}")
    output().print(table)
    if options.others and answer["bytewax_rows_per_s"] is None:
        output().print("Bytewax is not installed; the bench extra has it: pip install -e '.[bench]'")


@app.command("testbed")
@takes(TestbedOptions)
def bench_of_testbed(options: TestbedOptions, as_json: JsonOption = False) -> None:
    """Measure how long emulated networks and hosts take to come up.

    Networks are of namespaces, of containers (with a Docker engine and our image), and of Mininet, which shapes one
    link a host. The figures include what an idle host takes.

    Example: thalweg bench testbed --json
    """
    from benchmarks.testbed import bench_testbed

    answer = _measure(as_json, bench_testbed, options)
    if answer["networks"] is None:
        output().print(f"no networks here: {answer['reason']}")
    else:
        keys = ("up_s", "shape_s", "change_s", "down_s", "total_s")
        columns = (
            "hosts are",
            "hosts",
            "links",
            "up s",
            "links s",
            "change s",
            "down s",
            "total s",
            "replay % of a core",
        )
        table = new_table(*columns, title="Emulated networks")
        for row in (*answer["networks"], *answer["others"]):
            figures = [f"{row[key]:.2f}" if key in row else "" for key in keys]
            share = row.get("replay_share")
            table.add_row(
                row["backend"], str(row["hosts"]), str(row["links"]), *figures, "" if share is None else f"{share:.1%}"
            )
        output().print(table)
    processes = answer["processes"]
    table = new_table("hosts", "ready s", "idle MB each", "idle % of a core each", title="Host processes")
    memory, share = processes["idle_memory_bytes"] / 1e6, processes["idle_cpu_share"] * 100
    table.add_row(str(processes["hosts"]), f"{processes['ready_s']:.2f}", f"{memory:.0f}", f"{share:.2f}")
    output().print(table)


@app.command("plan")
@takes(PlanOptions)
def plan(options: PlanOptions, as_json: JsonOption = False) -> None:
    """Measure the time that a plan takes, by cost model.

    All links are known. Rows "one-shot" start with every operator at the client, rows "global" with operators on random
    hosts. Rows "thalweg" choose the tree as well: once, and again while data flows, with forecasts and links to probe.

    Example: thalweg bench plan --servers 8 --servers 32 --json
    """
    from benchmarks.plan import bench_plan

    answer = _measure(as_json, bench_plan, options)
    title = f"{options.tree} tree, {options.problems} networks: median / 95th percentile in ms"
    table = new_table(
        "cost model", "planner", *(f"{count} servers" for count in dict.fromkeys(options.servers)), title=title
    )
    cells: dict[tuple[str, str], list[str]] = {}
    for row in answer["plans"]:
        cell = f"{row['median_s'] * 1e3:.1f} / {row['p95_s'] * 1e3:.1f}"
        cells.setdefault((row["model"], row["planner"]), []).append(cell)
    for (model, planner), figures in cells.items():
        table.add_row(model, planner, *figures)
    output().print(table)


@app.command("cost-space")
@takes(CostSpaceOptions)
def cost_space(options: CostSpaceOptions, as_json: JsonOption = False) -> None:
    """Measure the cost space: a topology, its coordinates, and queries placed on it.

    The figures are processor times. The topology has 1,550 routers.

    Example: thalweg bench cost-space --preset gt-itm --json
    """
    from benchmarks.cost_space import bench_cost_space

    answer = _measure(as_json, bench_cost_space, options)
    before = f"topology {answer['topology_s']:.2f} s, coordinates {answer['coordinates_s']:.2f} s"
    table = new_table("placement", "operators", "median ms", "longest ms", title=f"{answer['hosts']} hosts: {before}")
    for row in answer["queries"]:
        took = [f"{row[key] * 1e3:.2f}" for key in ("median_s", "longest_s")]
        table.add_row(row["placement"], str(row["operators"]), *took)
    output().print(table)


@app.command("odp")
@takes(OdpOptions)
def odp(options: OdpOptions, as_json: JsonOption = False) -> None:
    """Measure the proven optimal placement on the problems of its paper and on random graphs.

    The figures are processor times. Sizes are operators x hosts, capacity of a host. Rows "mixed" weigh three metrics,
    and solve each alone before.

    Example: thalweg bench odp --only fat --rounds 5 --json
    """
    from benchmarks.odp import bench_odp

    answer = _measure(as_json, bench_odp, options)
    columns = "problem", "objective", "way", "median ms", "longest ms", "goal ms", "proven", "gap"
    table = new_table(*columns, title=f"{answer['rounds']} problems each, one core")
    for row in answer["rows"]:
        times = ["-" if row[key] is None else f"{row[key] * 1e3:.1f}" for key in ("median_s", "longest_s", "bound_s")]
        proven = [str(row["proven"]), f"{row['gap']:.2%}"] if row["gap"] is not None else ["-", "-"]
        table.add_row(row["problem"], row["objective"], row["way"], *times, *proven)
    output().print(table)


@app.command("provision")
@takes(ProvisionOptions)
def provision(options: ProvisionOptions, as_json: JsonOption = False) -> None:
    """Measure the search for machines to rent: heuristics, annealing, proven optimum.

    The figures are processor times. Problems are drawn as by Benoit et al. (2008). Rows "best" are of problems that the
    cover bound does not settle.

    Example: thalweg bench provision --rounds 3 --json
    """
    from benchmarks.provision import bench_provision

    answer = _measure(as_json, bench_provision, options)
    columns = "N", "alpha", "median ms", "longest ms", "goal ms", "proven"
    table = new_table("way", *columns, title=f"{answer['rounds']} problems each, one core")
    for row in answer["rows"]:
        times = [f"{row[key] * 1e3:.1f}" for key in ("median_s", "longest_s", "goal_s")]
        proven = "-" if row["proven"] is None else str(row["proven"])
        table.add_row(row["way"], str(row["nodes"]), f"{row['alpha']:g}", *times, proven)
    output().print(table)


@app.command("bimodal")
@takes(BimodalOptions)
def bimodal(options: BimodalOptions, as_json: JsonOption = False) -> None:
    """Measure the mapping of tasks over dedicated links, the public network, and both.

    The figures are processor times: of mapping one task by messages between neighbours, and of choosing the network, or
    the relays, of each edge of a tree while data flows. "Virtual s" is the time that hosts would take over links with
    delays; maps wait for others in the order of their cost.

    Example: thalweg bench bimodal --rounds 50 --json
    """
    from benchmarks.bimodal import bench_bimodal

    answer = _measure(as_json, bench_bimodal, options)
    columns = "way", "networks", "median ms", "p95 ms", "goal ms", "maps sent", "mapped", "hops", "virtual s"
    table = new_table(*columns, title=f"{answer['hosts']} hosts, {answer['links']} dedicated links")
    for row in answer["mappings"]:
        times = ["-" if row[key] is None else f"{row[key] * 1e3:.1f}" for key in ("median_s", "p95_s", "bound_s")]
        hops = "-" if row["hops"] is None else f"{row['hops']:.1f}"
        mapped = f"{row['mapped']}/{options.rounds}"
        table.add_row(
            row["way"], row["networks"], *times, f"{row['messages']:.0f}", mapped, hops, f"{row['virtual_s']:.2f}"
        )
    output().print(table)
    table = new_table(
        "hosts", "rented links", "hops", "edges", "median ms", "p95 ms", "goal ms", title="an edge's network"
    )
    for row in answer["choices"]:
        times = [f"{row[key] * 1e3:.3f}" for key in ("median_s", "p95_s", "bound_s")]
        links = "all" if row["mesh"] else "the tree's"
        table.add_row(str(row["hosts"]), links, str(row["hops"]), str(row["edges"]), *times)
    output().print(table)


@app.command("move")
@takes(MoveOptions)
def move(options: MoveOptions, as_json: JsonOption = False) -> None:
    """Measure the pause of an operator that moves, on loopback and on shaped links.

    The bound is 1.2 × state ÷ rate of the link + 4 round trips. On links that are full of other traffic, pauses may be
    longer. Rows "first" are moves to hosts that open their connections for it.

    Example: thalweg bench move --size 0 --size 256 --moves 20 --json
    """
    from benchmarks.move import bench_move

    answer = _measure(as_json, bench_move, options)
    title = f"{answer['cpus']} cores, load {answer['load']:.1f} before"
    columns = ("moves", "p50 ms", "p95 ms", "p99 ms", "max ms", "bound ms", "within", "round trip ms")
    table = new_table("links", "state", "protocol", *columns, title=title)
    for row in answer["rows"]:
        keys = ("p50_s", "p95_s", "p99_s", "max_s", "bound_s")
        times = ["-" if row[key] is None else f"{row[key] * 1e3:.1f}" for key in keys]
        within = "-" if row["within"] is None else f"{row['within']:.0%}"
        subject = (row["testbed"], f"{row['size_bytes'] // 1024} KiB", row["protocol"], str(row["moved"]))
        table.add_row(*subject, *times, within, f"{row['trip_s'] * 1e3:.2f}")
    output().print(table)
    if answer["reason"] is not None:
        output().print(f"no shaped links here: {answer['reason']}")


@app.command("sim")
@takes(SimOptions)
def sim(options: SimOptions, as_json: JsonOption = False) -> None:
    """Measure how long the simulation of a run takes, beside the same model in SimPy.

    A run has its plan: "plan" is the time that the plan took before, by probes. "Time ratio" is our time by SimPy's.
    "Agreement" is our mean inter-arrival time by SimPy's.

    Example: thalweg bench sim --servers 8 --rounds 3 --json
    """
    from benchmarks.sim import bench_sim

    answer = _measure(as_json, bench_sim, options)
    columns = ("servers", "plan ms", "run ms", "CPU ms", "events/s", "virtual s/s", "inter-arrival s")
    title = f"{options.images} images, median of {options.rounds} networks"
    table = new_table("placement", *columns, "SimPy ms", "time ratio", "agreement", title=title)
    for row in answer["rows"]:
        times = [f"{row[key] * 1e3:.0f}" for key in ("plan_s", "run_s", "run_cpu_s")]
        rates = [f"{row[key]:,.0f}" for key in ("events_per_s", "virtual_s_per_s")]
        peer = ["-"] * 3
        if row["ratio"] is not None:
            peer = [f"{row['simpy_s'] * 1e3:.0f}", f"{row['ratio']:.2f}", f"{row['interarrival_ratio']:.3f}"]
        mean = f"{row['mean_interarrival_s']:.1f}"
        table.add_row(row["placement"], str(row["servers"]), *times, *rates, mean, *peer)
    output().print(table)
    if options.others and answer["simpy"] is None:
        output().print("SimPy is not installed; the bench extra has it: pip install -e '.[bench]'")
    table = new_table("images", "before the run MB", "peak MB", "grown MB", title="Memory of a process")
    for row in answer["memory"]:
        keys = ("before_bytes", "peak_bytes", "grown_bytes")
        table.add_row(str(row["images"]), *(f"{row[key] / 1e6:.1f}" for key in keys))
    output().print(table)


@app.command("attack")
@takes(AttackOptions)
def attack(options: AttackOptions, as_json: JsonOption = False) -> None:
    """Measure hosts that carry honest runs while they are attacked.

    The figures are the longest gap of a run, memory, and partitions delivered. The net gap is without the time for
    which a thread that was ready waited for a processor. Exit status 1 if a host ended, a partition was wrong, a net
    gap was a second, or a host took 150 MB.

    Example: thalweg bench attack --frames 20000 --only mutated --only forged
    """
    from benchmarks.attack import bench_attack

    with spinner("starting") as tell:
        answer = bench_attack(options, tell)
    if as_json:
        print_json(answer)
    else:
        columns = ("frames", "s", "hosts ended", "gap s", "net gap s", "peak MB", "partitions", "wrong", "holds")
        table = new_table("attack", *columns, title=f"{answer['frames']:,} frames against hosts with an honest run")
        for row in answer["attacks"]:
            figures = (f"{row['frames']:,}", f"{row['seconds']:.1f}", str(row["hosts_ended"]))
            verdict = "yes" if row["holds"] else "no"
            rest = (
                f"{row['gap_s']:.2f}",
                f"{row['net_gap_s']:.2f}",
                f"{row['peak_bytes'] / 1e6:.0f}",
                f"{row['partitions']:,}",
                str(row["wrong"]),
                verdict,
            )
            table.add_row(row["attack"], *figures, *rest)
        output().print(table)
        for row in answer["attacks"]:
            if row["failed"]:
                output().print(f"{row['attack']}: {row['failed']}")
    if not answer["holds"]:
        raise typer.Exit(1)


def _measure(
    as_json: bool, bench: Callable[[Any, Callable[[str], None]], dict[str, Any]], options: msgspec.Struct
) -> dict[str, Any]:
    """Run a benchmark, show its present step on a terminal, and return its figures.

    With ``as_json``, print the figures as JSON and exit.
    """
    with spinner("starting") as tell:
        answer = bench(options, tell)
    if as_json:
        print_json(answer)
        raise typer.Exit
    return answer
