"""``thalweg bench``: the performance figures, each side by side with what a user would otherwise write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from thalweg.experiments.cli.console import JsonOption, new_table, output, print_json, spinner

app = typer.Typer(name="bench", no_args_is_help=True, help="The performance figures, side by side in one run.")

RoundsOption = Annotated[int, typer.Option("--rounds", min=1, help="Rounds of every side; figures are medians.")]


@app.command("tree", epilog="Example: thalweg bench tree --rounds 9 --json")
def tree(
    sources: Annotated[int, typer.Option("--sources", min=2, help="Leaves of the complete binary tree.")] = 8,
    size_kib: Annotated[int, typer.Option("--size", min=1, metavar="KIB", help="Partition size in KiB.")] = 128,
    partitions: Annotated[int, typer.Option("--partitions", min=1, help="Timed partitions of a round.")] = 200,
    rounds: RoundsOption = 7,
    others: Annotated[bool, typer.Option(help="Also Ray and Dask, if the bench extra is installed.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Partitions/s of a combining tree on loopback: Thalweg, hand-written pyzmq, Ray, Dask."""
    from thalweg.experiments.bench.tree import bench_tree

    answer = _measure(
        as_json,
        bench_tree,
        sources=sources,
        size_bytes=size_kib * 1024,
        rounds=rounds,
        partitions=partitions,
        others=others,
    )
    table = new_table(
        *("side", "partitions/s", "of raw"),
        title=f"{sources} sources, {answer['operators']} operators, {size_kib} KiB",
    )
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
        table.add_row(name, *(("-", "-") if rate is None else (f"{rate:.0f}", f"{share:.2f}")))
    output().print(table)


@app.command("link", epilog="Example: thalweg bench link --size 128 --size 4096")
def link(
    sizes_kib: Annotated[
        list[int], typer.Option("--size", min=1, metavar="KIB", help="Partition size in KiB; repeat it for several.")
    ] = [128, 512, 1024, 4096],  # noqa: B006  the type that typer reads
    rounds: RoundsOption = 5,
    as_json: JsonOption = False,
) -> None:
    """MB/s of one hop on loopback: Thalweg, and a bare DEALER and ROUTER with credits."""
    from thalweg.experiments.bench.link import bench_link

    answer = _measure(as_json, bench_link, sizes_bytes=[kib * 1024 for kib in sizes_kib], rounds=rounds)
    table = new_table("partition", "Thalweg MB/s", "DEALER/ROUTER MB/s", "ratio", title="One hop")
    for row in answer["sizes"]:
        rates = (f"{row['thalweg_mb_per_s']:.0f}", f"{row['raw_mb_per_s']:.0f}", f"{row['ratio']:.2f}")
        table.add_row(f"{row['size_bytes'] // 1024} KiB", *rates)
    output().print(table)


@app.command("testbed", epilog="Example: thalweg bench testbed --json")
def bench_of_testbed(
    networks: Annotated[
        list[int], typer.Option("--network", min=2, metavar="HOSTS", help="Hosts of a network; repeat it for several.")
    ] = [9, 33],  # noqa: B006  the type that typer reads
    hosts: Annotated[int, typer.Option("--hosts", min=1, help="Host processes on loopback.")] = 9,
    idle_s: Annotated[float, typer.Option("--idle", metavar="SECONDS", help="How long they are watched idling.")] = 5.0,
    as_json: JsonOption = False,
) -> None:
    """Seconds to bring networks with every link shaped up and down, and hosts ready; what a host idles at.

    Namespaces, containers (with an engine and our image), and Mininet, which shapes one link a host.
    """
    from thalweg.experiments.bench.testbed import bench_testbed

    answer = _measure(as_json, bench_testbed, networks=networks, hosts=hosts, idle_s=idle_s)
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


@app.command("plan", epilog="Example: thalweg bench plan --servers 8 --servers 32 --json")
def plan(
    servers: Annotated[
        list[int], typer.Option("--servers", min=1, metavar="N", help="Servers of a network; repeat it for several.")
    ] = [4, 8, 16, 32],  # noqa: B006  the type that typer reads
    problems: Annotated[int, typer.Option("--problems", min=1, help="Random networks that are planned for.")] = 20,
    tree: Annotated[str, typer.Option("--tree", help="Order of combination: binary, left-deep, star.")] = "binary",
    as_json: JsonOption = False,
) -> None:
    """Milliseconds that a plan takes with all links known, by cost model.

    Rows "one-shot" start with every operator at the client, rows "global" with operators on random hosts. Rows
    "thalweg" choose the tree as well: once, and in a look while data flows, with forecasts and what is to be probed.
    """
    from thalweg.experiments.bench.plan import bench_plan

    answer = _measure(as_json, bench_plan, servers=servers, problems=problems, tree=tree)
    title = f"{tree} tree, {problems} networks: median / 95th percentile in ms"
    table = new_table("cost model", "planner", *(f"{count} servers" for count in dict.fromkeys(servers)), title=title)
    cells: dict[tuple[str, str], list[str]] = {}
    for row in answer["plans"]:
        cell = f"{row['median_s'] * 1e3:.1f} / {row['p95_s'] * 1e3:.1f}"
        cells.setdefault((row["model"], row["planner"]), []).append(cell)
    for (model, planner), figures in cells.items():
        table.add_row(model, planner, *figures)
    output().print(table)


@app.command("move", epilog="Example: thalweg bench move --size 0 --size 256 --moves 20 --json")
def move(
    sizes_kib: Annotated[
        list[int], typer.Option("--size", min=0, metavar="KIB", help="State in KiB; repeat it for several.")
    ] = [0, 16, 256, 4096],  # noqa: B006  the type that typer reads
    moves: Annotated[int, typer.Option("--moves", min=1, help="Moves by each protocol, of each size.")] = 50,
    rate: Annotated[str, typer.Option("--rate", help="Of the links that are shaped, as 50mbit.")] = "50mbit",
    as_json: JsonOption = False,
) -> None:
    """For how long an operator pauses when it moves, on loopback and on shaped links, and the bound on it.

    Bound: 1.2 × state ÷ rate of the link + 4 round trips. Rows "first" are moves to hosts it has not been on before,
    which open the connections.
    """
    from thalweg.emulation.units import parse_rate
    from thalweg.experiments.bench.move import bench_move

    rate_bps = parse_rate(rate)
    answer = _measure(
        as_json, bench_move, sizes_bytes=[kib * 1024 for kib in sizes_kib], moves=moves, rate_bps=rate_bps
    )
    title = f"{answer['cpus']} cores, load {answer['load']:.1f} before"
    columns = ("moves", "p50 ms", "p99 ms", "max ms", "bound ms", "within", "round trip ms")
    table = new_table("links", "state", "protocol", *columns, title=title)
    for row in answer["rows"]:
        keys = ("p50_s", "p99_s", "max_s", "bound_s")
        times = ["-" if row[key] is None else f"{row[key] * 1e3:.1f}" for key in keys]
        within = "-" if row["within"] is None else f"{row['within']:.0%}"
        what = (row["testbed"], f"{row['size_bytes'] // 1024} KiB", row["protocol"], str(row["moved"]))
        table.add_row(*what, *times, within, f"{row['trip_s'] * 1e3:.2f}")
    output().print(table)
    if answer["reason"] is not None:
        output().print(f"no shaped links here: {answer['reason']}")


@app.command("sim", epilog="Example: thalweg bench sim --servers 8 --rounds 3 --json")
def sim(
    servers: Annotated[
        list[int], typer.Option("--servers", min=1, metavar="N", help="Servers of a network; repeat it for several.")
    ] = [8, 32],  # noqa: B006  the type that typer reads
    images: Annotated[int, typer.Option("--images", min=2, help="Images of a run.")] = 180,
    placements: Annotated[
        list[str], typer.Option("--placement", metavar="NAME", help="As those of a run; repeat it for several.")
    ] = ["download-all", "one-shot", "local", "global"],  # noqa: B006  the type that typer reads
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Networks; figures are medians over them.")] = 5,
    memory: Annotated[
        list[int],
        typer.Option("--memory", min=1, metavar="IMAGES", help="Images of a run whose memory is measured; repeatable."),
    ] = [180, 18_000],  # noqa: B006  the type that typer reads
    others: Annotated[bool, typer.Option(help="Also SimPy, if the bench extra is installed.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Milliseconds that simulating a run takes: the virtual shell, and the same model written with SimPy.

    A run has its plan: "plan" is what that took before, by probes. "Time ratio": our time by SimPy's; "agreement": our
    mean inter-arrival by SimPy's.
    """
    from thalweg.experiments.bench.sim import bench_sim

    answer = _measure(
        as_json,
        bench_sim,
        servers=servers,
        images=images,
        placements=placements,
        rounds=rounds,
        memory=memory,
        others=others,
    )
    columns = ("servers", "plan ms", "run ms", "CPU ms", "events/s", "virtual s/s", "inter-arrival s")
    title = f"{images} images, median of {rounds} networks"
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
    if others and answer["simpy"] is None:
        output().print("SimPy is not installed; the bench extra has it: pip install 'thalweg[bench]'")
    table = new_table("images", "before the run MB", "peak MB", "grown MB", title="Memory of a process")
    for row in answer["memory"]:
        keys = ("before_bytes", "peak_bytes", "grown_bytes")
        table.add_row(str(row["images"]), *(f"{row[key] / 1e6:.1f}" for key in keys))
    output().print(table)


def _measure(as_json: bool, bench: Callable[..., dict[str, Any]], **options: Any) -> dict[str, Any]:
    """What it measures, with the present step on a terminal; as JSON that is all there is to say."""
    with spinner("starting") as tell:
        answer = bench(**options, progress=tell)
    if as_json:
        print_json(answer)
        raise typer.Exit
    return answer
