"""``thalweg provision``: the cheapest machines for a throughput, and a run that proves the throughput."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import typer
from rich.table import Table

from thalweg.emulation.links import units
from thalweg.experiments.cli.console import JsonOption, end, output, print_json, progress
from thalweg.experiments.cli.options import takes
from thalweg.experiments.command import RUN_LIBRARIES, Option, Tell
from thalweg.experiments.problems.provisioning import Problem, load_provisioning
from thalweg.experiments.provisioning.answer import Answer, cost, in_turn_s, loads
from thalweg.experiments.provisioning.best import ProvisioningLimits, Rented, best
from thalweg.experiments.provisioning.heuristics import HEURISTICS, rented
from thalweg.experiments.provisioning.hopeless import in_the_way, why_not
from thalweg.experiments.provisioning.instance import ProvisioningInstance, reserved
from thalweg.experiments.provisioning.placed import in_order
from thalweg.experiments.run_config import RunConfig
from thalweg.middleware.errors import PlannerError, UsageError, nearest, require
from thalweg.middleware.planning.solver.program import NoSolutionError
from thalweg.middleware.platform import load_average

LATE = 1.05  # a run reaches the throughput within this factor of the wanted time between results
BEST = "best"


SEARCH, LAUNCH, STUDIES = "Search", "Launch", "Comparisons, in place of FILE"


def heuristic_names() -> dict[str, str]:
    """Return the methods that find machines, with their meanings."""
    return {BEST: "heuristics, annealing and an exact program", **dict.fromkeys(HEURISTICS, "heuristics of the paper")}


class ProvisionOptions(msgspec.Struct, frozen=True):
    """Options of ``provision``: the search, a launch of the machines, and comparisons."""

    heuristic: Annotated[str, Option("Method that finds machines.", names=heuristic_names, panel=SEARCH)] = BEST
    overlap: Annotated[
        bool | None,
        Option(
            "A machine receives, computes and sends at once, as in the paper. Otherwise it does so in turn for each"
            " operator, as on a testbed.",
            shown="--overlap; with --launch: --no-overlap",
            panel=SEARCH,
        ),
    ] = None
    time_limit_s: Annotated[
        float,
        Option(
            "Time limit of the solver. Afterwards the answer has a gap.",
            flag="--time-limit",
            unit=units.seconds,
            panel=SEARCH,
        ),
    ] = 60.0
    gap: Annotated[float, Option("Distance from the optimum that is accepted, as a share.", panel=SEARCH)] = 0.0
    seed: Annotated[int, Option("Seed of the search and of random problems.", least=0, panel=SEARCH)] = 1
    launch: Annotated[
        Literal["docker", "sim", "netns"] | None,
        Option(
            "Bring up these machines, run the operators, and check the throughput. Then do the same on the next cheaper"
            " machines.",
            shown="none",
            panel=LAUNCH,
        ),
    ] = None
    reserve: Annotated[
        float | None,
        Option(
            "Share of every machine and its network card that is left free, for the hosts themselves.",
            unit=units.share,
            shown="0; with --launch: 0.1",
            panel=LAUNCH,
        ),
    ] = None
    results: Annotated[int, Option("Number of results to deliver.", least=2, panel=LAUNCH)] = 30
    cheaper: Annotated[bool, Option("Run the next cheaper machines as well.", panel=LAUNCH)] = True
    image: Annotated[str | None, Option("Docker: image of the hosts.", shown="that of testbed build", panel=LAUNCH)] = (
        None
    )
    compare: Annotated[
        int | None,
        Option(
            "Compare every heuristic with the optimum on so many problems, drawn as by Benoit et al.",
            shown="none",
            least=1,
            panel=STUDIES,
        ),
    ] = None
    egress: Annotated[
        int | None,
        Option(
            "Compare trees by the price of bytes between clouds, on so many draws of eight sources and a client from"
            " Skyplane's grid.",
            shown="none",
            least=1,
            panel=STUDIES,
        ),
    ] = None
    n: Annotated[
        int, Option("With --compare: nodes of a tree, objects included.", least=3, panel=STUDIES, common=False)
    ] = 60
    alpha: Annotated[
        float, Option("With --compare: exponent of the work of an operator.", panel=STUDIES, common=False)
    ] = 1.6
    objects: Annotated[
        Literal["small", "big"], Option("With --compare: sizes of the objects.", panel=STUDIES, common=False)
    ] = "small"
    one_class: Annotated[
        bool, Option("With --compare: offer only the dearest machine of Table 1.", panel=STUDIES, common=False)
    ] = False


@takes(ProvisionOptions)
def provision(
    options: ProvisionOptions,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="Provisioning problem, a TOML file.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Folder of the runs.", show_default="runs/rented-<time>", rich_help_panel=LAUNCH
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Find the cheapest machines for a tree of operators.

    The machines keep the throughput that the file asks for. The answer says what each machine computes, fetches and
    sends. FILE is needed unless --compare or --egress is given.

    Example: thalweg provision docs/examples/provision.toml

    And a run that shows it: thalweg provision docs/examples/provision.toml --launch docker

    One of the heuristics: thalweg provision docs/examples/provision.toml --heuristic subtree-bottom-up

    Every heuristic beside the optimum: thalweg provision --compare 200 --n 60 --alpha 1.6

    Trees by the price of bytes: thalweg provision --egress 60
    """
    if options.compare is not None or options.egress is not None:
        if file is not None or None not in (options.compare, options.egress):
            raise UsageError("--compare and --egress go in place of FILE, and of each other; leave all but one away")
        if options.compare is not None:
            _compare(options, options.compare, as_json=as_json)
        elif options.egress is not None:
            from thalweg.experiments.cli.compared import compare_egress

            compare_egress(options.egress, options.seed, as_json=as_json)
        return
    if file is None:
        raise UsageError("provision needs a FILE, or --compare COUNT; docs/examples/provision.toml is an example")
    if options.heuristic not in (BEST, *HEURISTICS):
        raise UsageError(f"--heuristic is {options.heuristic!r}; {nearest(options.heuristic, [BEST, *HEURISTICS])}")
    if options.launch is not None:
        require(*RUN_LIBRARIES)
    problem = load_provisioning(file)
    overlap = options.launch is None if options.overlap is None else options.overlap
    problem = msgspec.structs.replace(problem, instance=msgspec.structs.replace(problem.instance, overlap=overlap))
    why_not(problem.instance, str(file))
    reserve = 0.1 * (options.launch is not None) if options.reserve is None else options.reserve
    result = _found(file, reserved(problem.instance, reserve), reserve, options)
    result = msgspec.structs.replace(result, answer=in_order(result.answer))
    body = {"reserve": reserve, **_told(file, problem, result)}
    wrong = []
    if options.heuristic == BEST and not result.proven and result.gap > options.gap + 1e-9:
        costs = f"{problem.instance.currency} {result.cost:,.4f}, and none costs less than {result.bound:,.4f}"
        wrong.append(
            f"the search ended before the optimum was proven: the best so far costs {costs}; give more --time-limit"
        )
    if not as_json:
        _print(problem, result, body)
    if options.launch is not None:
        where = out or Path("runs") / f"rented-{datetime.datetime.now():%Y%m%d-%H%M%S}"
        with progress() as tell:
            body["launch"] = _launched(problem, result.answer, options, where, tell)
        wrong += missed(body["launch"])
        if not as_json:
            _print_launch(body["launch"], problem.instance.currency, cheaper=options.cheaper)
    if as_json:
        print_json(body)
    end(wrong)


def _compare(options: ProvisionOptions, count: int, *, as_json: bool) -> None:
    """Print every heuristic beside the optimum, on drawn problems."""
    from thalweg.experiments.cli.compared import compare_provisioning
    from thalweg.experiments.papers.benoit2008.instances import Drawing

    machines: Literal["all", "one"] = "one" if options.one_class else "all"
    drawing = Drawing(nodes=options.n, alpha=options.alpha, sizes=options.objects, machines=machines)
    effort = ProvisioningLimits(options.time_limit_s, options.gap, options.seed)
    compare_provisioning(drawing, count, options.seed, effort, as_json=as_json)


def _found(file: Path, instance: ProvisioningInstance, reserve: float, options: ProvisionOptions) -> Rented:
    """Return the machines to rent.

    Raise UsageError if the problem has no solution, and PlannerError if the search finds none. Both name the obstacle.
    """
    effort = ProvisioningLimits(options.time_limit_s, options.gap, options.seed)
    try:
        if options.heuristic == BEST:
            return best(instance, effort)
        answer = rented(instance, options.heuristic, options.seed)
    except PlannerError as error:
        kind = UsageError if isinstance(error, NoSolutionError) else PlannerError
        free = f", with {reserve:.0%} of each left free (--reserve)" if reserve else ""
        raise kind(f"{file}: {error}{free}; {in_the_way(instance)}") from None
    return Rented(answer, cost(instance, answer), 0.0, 0.0, options.heuristic)


def _told(file: Path, problem: Problem, found: Rented) -> dict[str, Any]:
    """Return the answer as fields of the JSON."""
    instance, answer = problem.instance, found.answer
    asked, took_s = loads(instance, answer), in_turn_s(instance, answer)
    machines = []
    for at, kind in enumerate(answer.class_of.tolist()):
        offer = problem.offers[kind]
        served = {
            instance.objects[item]: instance.servers[server]
            for item, server in enumerate(answer.server_of[at].tolist())
            if server >= 0
        }
        machines.append(
            {
                "name": f"m{at + 1}",
                "machine": offer.name,
                "region": offer.region,
                "price": offer.price,
                "operators": [instance.operators[node] for node in answer.groups[at]],
                "objects": served,
                "computes": float(asked.mop_s[at] / instance.speed_mop_s[kind]),
                "card": float(asked.card_bytes_s[at] / instance.card_bytes_s[kind]),
                "in_turn_s": float(max(took_s[list(answer.groups[at])], default=0.0)),
            }
        )
    rent = float(instance.price[answer.class_of].sum())
    return {
        "file": str(file),
        "throughput_hz": instance.throughput_hz,
        "overlap": instance.overlap,
        "currency": instance.currency,
        "prices_of": problem.prices_of,
        "cost": found.cost,
        "rent": rent,
        "egress": found.cost - rent,
        "bound": found.bound,
        "gap": found.gap,
        "proven": found.proven,
        "way": found.way,
        "machines": machines,
    }


def _print(problem: Problem, found: Rented, told: dict[str, Any]) -> None:
    instance, out = problem.instance, output()
    table = Table("", "machine", "region", "an hour", "operators", "fetches", "computes", "card", "in turn")
    for machine, kind in zip(told["machines"], found.answer.class_of.tolist(), strict=True):
        fetches = " ".join(f"{item}@{server}" for item, server in machine["objects"].items())
        card = f"{machine['card']:.0%} of {units.format_rate(8 * float(instance.card_bytes_s[kind]))}"
        offered = f"{machine['name']}", machine["machine"], machine["region"], f"{machine['price']:g}"
        table.add_row(
            *offered,
            " ".join(machine["operators"]),
            fetches,
            f"{machine['computes']:.0%}",
            card,
            f"{machine['in_turn_s']:.3f} s",
        )
    out.print(table)
    money = f"{told['currency']} {told['cost']:,.4f} an hour"
    if instance.egress is not None:
        money += f" ({told['rent']:,.4f} for machines, {told['egress']:,.4f} for what they send)"
    how = "each operator in turn" if not instance.overlap else "all at once"
    proof = "the cheapest there is"
    if not told["proven"]:
        proof = f"none costs less than {told['bound']:,.4f}" if told["bound"] else "no bound is known"
    out.print(
        f"{instance.throughput_hz:g} results a second for {money}; {proof}; found by {told['way']}", soft_wrap=True
    )
    text = f"machines receive, compute and send {how}, with {told['reserve']:.0%} of each left free"
    out.print(f"{text}; prices of {'; '.join(told['prices_of'])}", soft_wrap=True)


# --- launching ------------------------------------------------------------------------------------------


def _launched(problem: Problem, answer: Answer, options: ProvisionOptions, where: Path, tell: Tell) -> dict[str, Any]:
    """Run the answer and the next cheaper machines on a testbed, and return a report of the runs."""
    from thalweg.experiments.records.analysis import summarize_run
    from thalweg.experiments.runs.folder import empty_folder, needing_room, prepare_folder
    from thalweg.experiments.runs.launcher import execute
    from thalweg.experiments.runs.rented import next_cheaper
    from thalweg.experiments.simulation.recorded import execute_virtually

    platforms = {"answer": answer}
    if options.cheaper and (other := next_cheaper(problem.instance, answer)) is not None:
        platforms["next cheaper"] = other
    created = prepare_folder(where)
    folders = {name: where / name.replace(" ", "-") for name in platforms}
    try:
        configs = {name: _config(problem, platforms[name], options, folders[name]) for name in platforms}
    except UsageError:  # a refused launch leaves no files behind
        empty_folder(where, remove=created)
        raise
    wanted_s, runs = 1 / problem.instance.throughput_hz, []
    for name, config in configs.items():
        with needing_room(folders[name]):
            run = execute_virtually if options.launch == "sim" else execute
            outcome = run(config, folders[name] / "run", tell)
        (summary,) = summarize_run(outcome.folder).placements.values()
        took_s = summary.mean_interarrival_s
        runs.append(
            {
                "platform": name,
                "machines": [problem.instance.classes[kind] for kind in platforms[name].class_of.tolist()],
                "cost": cost(problem.instance, platforms[name]),
                "mean_interarrival_s": took_s,
                "reached": took_s is not None and took_s <= LATE * wanted_s,
                "digest_ok": summary.digest_ok,
                "delivered": summary.delivered,
                "load": load_average(),
                "plan": config.plan,
                "records": str(outcome.folder),
            }
        )
    return {"testbed": options.launch, "wanted_s": wanted_s, "results": options.results, "runs": runs}


def _config(problem: Problem, platform: Answer, options: ProvisionOptions, folder: Path) -> RunConfig:
    """Write the files of a platform's run, and return the configuration of the run.

    Raise UsageError if the testbed cannot keep the configuration.
    """
    from thalweg.experiments.cli.run import make_config
    from thalweg.experiments.runs.plan_file import adopt_plan
    from thalweg.experiments.runs.rented import write_platform

    values: dict[str, Any] = {"testbed": options.launch, "images": options.results, "seed": options.seed}
    if options.image is not None:
        values["image"] = options.image
    values["plan"] = str(write_platform(problem, platform, folder))
    adopt_plan(values, values["plan"])
    return make_config(values, "provision")


def missed(launch: dict[str, Any]) -> list[str]:
    """Return a line for every promise that the answer's runs did not keep: throughput, and right results."""
    from thalweg.experiments.runs.plan_file import processors

    first, wrong = launch["runs"][0], []
    if not first["reached"]:
        text = f"{first['mean_interarrival_s'] or float('nan'):.3f} s between two results, and {launch['wanted_s']:.3f}"
        text = f"the throughput is missed on {launch['testbed']}: {text} s are wanted"
        if launch["testbed"] != "sim" and first["load"] > processors():
            text += f"; but {first['load']:.0f} processes share this machine's {processors():g} processors: try again"
        wrong.append(text)
    wrong += [f"the {run['platform']}'s results are not those of a single machine; see {run['records']}"
              for run in launch["runs"] if run["digest_ok"] is False]  # fmt: skip
    return wrong


def _print_launch(launch: dict[str, Any], currency: str, *, cheaper: bool) -> None:
    table = Table(launch["testbed"], "machines", f"{currency} an hour", "between results", "wanted", "", "digest")
    for run in launch["runs"]:
        digest = {True: "ok", False: "WRONG"}.get(run["digest_ok"], "–")
        verdict = "reached" if run["reached"] else "missed"
        times = f"{run['mean_interarrival_s'] or float('nan'):.3f} s", f"{launch['wanted_s']:.3f} s"
        table.add_row(run["platform"], ", ".join(run["machines"]), f"{run['cost']:.4f}", *times, verdict, digest)
    out = output()
    out.print(table)
    if cheaper and len(launch["runs"]) == 1:
        out.print("no cheaper platform, with another class for one machine, breaks a constraint", soft_wrap=True)
    out.print(f"plans and records: {Path(launch['runs'][0]['plan']).parent.parent}", soft_wrap=True)
