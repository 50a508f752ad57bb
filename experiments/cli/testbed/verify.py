"""``thalweg testbed verify``: delivered rates, queues, delays and losses of links, beside their settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import typer
from rich.table import Table

from thalweg.emulation.links.units import format_rate
from thalweg.emulation.proofs.proof import RATE_FROM_BPS, STALLED, LinkProof, failures
from thalweg.emulation.scenarios.timeline import compile_timeline
from thalweg.emulation.testbeds import detached, known
from thalweg.emulation.testbeds.netns import SUBNET
from thalweg.emulation.testbeds.testbed import Testbed
from thalweg.experiments.cli.console import JsonOption, end, output, print_json, spinner
from thalweg.experiments.cli.options import takes
from thalweg.experiments.cli.testbed import iperf
from thalweg.experiments.cli.testbed.exec import IdOption
from thalweg.experiments.cli.testbed.status import lateness
from thalweg.experiments.command import Option
from thalweg.experiments.networks.described import read
from thalweg.experiments.networks.setup import ContainerLimits, backend_names, make_testbed, prepare
from thalweg.experiments.run_config import runs_elsewhere
from thalweg.middleware.errors import UsageError, counted

WITH_FILE = "With FILE"


def tool_names() -> dict[str, str]:
    """Return the installed tools that can measure links."""
    return {iperf.TOOL: ""}


class VerifyOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of ``testbed verify``: the tool that measures, and the testbed of a scenario file."""

    tool: Annotated[
        str | None,
        Option(
            "Measure with a tool that is installed: TCP in one flow and in four, and UDP.",
            flag="--with",
            names=tool_names,
            shown="none",
        ),
    ] = None
    backend: Annotated[str, Option("Where the hosts run.", names=backend_names, panel=WITH_FILE)] = "netns"
    kernel: Annotated[
        Literal["host", "uml"],
        Option(
            "Netns: this machine's kernel, or a User-Mode Linux kernel, which emulates delays and needs no root.",
            panel=WITH_FILE,
        ),
    ] = "host"
    no_delay: Annotated[
        bool, Option("Leave out delays, jitter, loss and the like, and keep the rates.", panel=WITH_FILE)
    ] = False
    image: Annotated[
        str | None, Option("Docker: image of the hosts.", shown="that of testbed build", panel=WITH_FILE)
    ] = None


@takes(VerifyOptions)
def verify(
    options: VerifyOptions,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="Scenario file to bring up, verify as it is at its start, and take down."),
    ] = None,
    identity: IdOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure every link and compare it with its settings.

    A link is off if its rate, by datagrams or by one TCP flow, differs by over 5 % (10 % below 0.5 Mbit/s). It is off
    if its queue differs by over 5 % and 1.5 packets, or its delay by over 2 ms and 10 %. It is off if its losses, or
    the number of their bursts, are outside the limits of 99 % of such links. It is off if frames of some kind (IPv4,
    IPv6, multicast, broadcast, a second address, VLAN) do not come, pass unshaped, or come through a cut. The exit
    status is 1 if a link is off.

    Every link is cut for a moment, to test cuts. A replay is stopped meanwhile, and starts over afterwards.

    Example: thalweg testbed verify

    A scenario file, on a kernel with delays: thalweg testbed verify docs/examples/delays.toml --kernel uml
    """
    if options.tool not in (None, iperf.TOOL):
        raise UsageError(f"--with is {options.tool!r}; there is {iperf.TOOL}")
    by_tool = options.tool is not None
    if runs_elsewhere(options.kernel, options.backend):
        if file is None:
            raise UsageError("--kernel uml goes with a scenario file; a testbed that is up has its kernel already")
        from thalweg.emulation.uml.kernel import run_thalweg_inside  # imports modules that only Linux has

        raise typer.Exit(run_thalweg_inside())
    late: Mapping[str, Any] | None = None
    results: Sequence[LinkProof | iperf.Measured]
    if file is not None:
        if identity is not None:
            raise UsageError("a scenario file is brought up for this; leave out --id")
        timeline = compile_timeline(read(file, no_delay=options.no_delay))
        name = str(file)
        with make_testbed(timeline, options.backend, SUBNET, ContainerLimits(options.image)) as testbed:
            prepare(timeline, testbed, begin=False)
            results = iperf.measure(testbed) if by_tool else _proven(testbed)
    else:
        state = known.choose(identity)
        name = state.id
        with detached.attach(state) as testbed:
            late = testbed.status().get("replay")
            with testbed.resting():
                results = iperf.measure(testbed) if by_tool else _proven(testbed)
    if not results:
        raise UsageError(f"testbed {name} has no shaped links; bring it up with --rate, --traces or a scenario file")
    if by_tool:
        measured = [result for result in results if isinstance(result, iperf.Measured)]
        if as_json:
            print_json({"id": name, "tool": iperf.TOOL, "links": measured})
        else:
            iperf.print_table(measured)
        end([*iperf.failures(measured)])
    else:
        proofs = [result for result in results if isinstance(result, LinkProof)]
        _report(name, proofs, late, as_json=as_json, delay_emulated=testbed.delay_emulated)


def _proven(testbed: Testbed) -> list[LinkProof]:
    links = counted(sum(shape.rated for shape in testbed.shapes.values()), "link")
    with spinner(f"measuring {links}") as say_now:
        return testbed.prove(flows=True, every_kind=True, tell=lambda done: say_now(f"measured {done:,} of {links}"))


def _report(
    name: str, proofs: list[LinkProof], late: Mapping[str, Any] | None, *, as_json: bool, delay_emulated: bool
) -> None:
    """Print the proofs. Exit with status 1 if a link is off."""
    checked = [proof for proof in proofs if proof.asked_bps]
    off = failures(proofs)
    if as_json:
        links = {
            "checked": len(checked),
            "worst_rate_error": max((abs(proof.error) for proof in checked), default=0.0),
            "worst_tcp_error": max((abs(proof.tcp_error or 0.0) for proof in checked), default=0.0),
            "worst_delay_error_s": max(map(delay_error_s, proofs), default=0.0),
            "worst_queue_error": max(map(queue_error, proofs), default=0.0),
            "kinds_off": sum(not proof.kinds_ok for proof in proofs),
            "loss_off": sum(not proof.loss_ok for proof in proofs),
            "bursts_off": sum(not proof.bursts_ok for proof in proofs),
            "stalled": max((proof.stalled for proof in proofs), default=0.0),
            "delay_emulated": delay_emulated,
        }
        more = {"replay": late} if late is not None else {}
        print_json({"id": name, "links": links, **more, "proofs": proofs})
    else:
        _proofs_table(proofs)
        for line in _worst(checked):
            print(line)
        for line in _of_kinds(proofs):
            print(line)
        slowest = max(proofs, key=lambda one: one.stalled)
        if slowest.stalled >= STALLED:
            where = slowest.link.text
            print(f"the machine let nothing pass for up to {slowest.stalled:.0%} of the time ({where}): it is busy")
        if late is not None and late["steps"]:
            print(f"replay: {lateness(late)}")
    end(off)


def _worst(proofs: list[LinkProof]) -> Iterator[str]:
    """Yield the worst error of fast and of slow links. Links below 0.5 Mbit/s may be off by more."""
    fast = [proof for proof in proofs if proof.asked_bps >= RATE_FROM_BPS]
    slow = [proof for proof in proofs if proof.asked_bps < RATE_FROM_BPS]
    for links, rates in ((fast, "0.5 Mbit/s or more"), (slow, "less than 0.5 Mbit/s")):
        if links:
            by_flow = [abs(proof.tcp_error) for proof in links if proof.tcp_error is not None]
            worst = max(abs(proof.error) for proof in links)
            yield (
                f"{counted(len(links), 'link')} asked for {rates}: worst error {worst:.2%}"
                + (f", of one TCP flow {max(by_flow):.2%}" if by_flow else "")
                + f"; {links[0].rate_error:.0%} is let pass"
            )


def _of_kinds(proofs: list[LinkProof]) -> Iterator[str]:
    """Yield lines about the queues, and about the frames of every kind."""
    queues = [proof for proof in proofs if proof.delivered_queue_s is not None and proof.asked_queue_s]
    if queues:
        worst = max(queues, key=queue_error)
        yield f"queues of {counted(len(queues), 'link')}: worst error {queue_error(worst):.1%} ({worst.link.text})"
    sent = [kind for proof in proofs for kind in proof.kinds]
    if sent:
        kinds = ", ".join(dict.fromkeys(kind.kind for kind in sent))
        came, wanted = sum(kind.came for kind in sent), sum(kind.sent for kind in sent)
        leaked, cut = sum(kind.through_cut for kind in sent), sum(kind.cut_sent for kind in sent)
        unshaped = sum(proof.unshaped for proof in proofs)
        yield f"{kinds}: {came:,} of {wanted:,} frames came, {unshaped:,} unshaped; through cuts {leaked:,} of {cut:,}"


def queue_error(one: LinkProof) -> float:
    """Return the error of a link's queue as a share of the asked queue. 0: no queue was measured."""
    return (
        0.0
        if one.delivered_queue_s is None or not one.asked_queue_s
        else abs(one.delivered_queue_s / one.asked_queue_s - 1)
    )


def delay_error_s(one: LinkProof) -> float:
    """Return the error of a link's delay. 0: no delay was measured."""
    return 0.0 if one.delivered_delay_s is None else abs(one.delivered_delay_s - one.asked_delay_s)


def _proofs_table(proofs: list[LinkProof]) -> None:
    netem = any(proof.delivered_delay_s is not None for proof in proofs)
    flows = any(proof.tcp_error is not None for proof in proofs)
    queues = any(proof.delivered_queue_s is not None for proof in proofs)
    columns = ["from", "to", "asked", "delivered", "error", *(["one TCP flow", "error"] if flows else [])]
    if queues:
        columns.append("queue, ms")
    if netem:
        columns += ["delay, ms", "jitter, ms", "lost (99 % of links)"]
    bursts = any(proof.asked_burst for proof in proofs)
    if bursts:
        columns.append("packets a burst (bursts)")
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for proof in sorted(proofs, key=lambda one: -abs(one.error)):
        table.add_row(*_proof_cells(proof, flows=flows, queues=queues, bursts=bursts))
    output().print(table)


def _proof_cells(one: LinkProof, *, flows: bool, queues: bool, bursts: bool) -> list[str]:
    """Return the cells of a link's row. ``flows``, ``queues`` and ``bursts``: whether the table has these columns."""
    error = f"{one.error:+.2%}" if one.asked_bps else ""
    row = [one.src, one.link.goal, format_rate(one.asked_bps), format_rate(one.delivered_bps), error]
    if flows:
        row += [format_rate(one.tcp_bps or 0.0), f"{one.tcp_error:+.2%}"] if one.tcp_error is not None else ["", ""]
    if queues:
        found_s = one.delivered_queue_s
        row.append("" if found_s is None else f"{one.asked_queue_s * 1e3:.4g} → {found_s * 1e3:.1f}")
    if one.delivered_delay_s is not None:
        row.append(f"{one.asked_delay_s * 1e3:g} → {one.delivered_delay_s * 1e3:.1f}")
        jitter = one.delivered_jitter_s if one.asked_jitter_s else None
        row.append("" if jitter is None else f"{one.asked_jitter_s * 1e3:g} → {jitter * 1e3:.1f}")
        row.append(f"{one.asked_loss:.3g} → {one.lost}/{one.sent} ({one.lost_low}–{one.lost_high})")
    if bursts and one.asked_burst:
        length = f"{one.lost / one.bursts:.2f}" if one.bursts else "none"
        row.append(f"{one.asked_burst:.3g} → {length} ({one.bursts})")
    return row
