"""Figures 8 and 9 of Asaduzzaman and Maheswaran: tasks on a platform with dedicated links, the public network, or both.

A configuration is a platform with a workload. The paper's numbers are from its text (sections 5.1 and 6.2), none is
read off a curve. Every arm is run with the paper's cost of maps, and with ours on the same information.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from thalweg.experiments.papers.asaduzzaman2010.checks import Arm as Of
from thalweg.experiments.papers.asaduzzaman2010.checks import alike, between, exceeds, narrows, reached
from thalweg.experiments.papers.asaduzzaman2010.simulating import Simulating
from thalweg.experiments.papers.claims import of
from thalweg.experiments.papers.study import Claim, Column, Figure, Listed, Published, Study
from thalweg.experiments.papers.tables import finished, mean
from thalweg.experiments.sweeps.trial import Arm

LINKS, RATES = (50, 75, 99, 120, 150), (30.0, 60.0, 120.0)
PAPERS, OURS = "balanced", "frugal"
DRAWS = 10
SAME = 0.05  # relative difference up to which a figure counts as unchanged
NEAR = 0.15  # relative tolerance for a value that the paper reads off a curve


class Way(Arm, frozen=True, order=True):
    """Networks that tasks may use, the cost that compares maps, and the workload."""

    networks: str
    cost: str = PAPERS
    links: int = 99
    per_hour: float = 60.0
    reallocation: str = "on"


def _nine() -> Listed:
    ways = []
    for cost in (PAPERS, OURS):
        for networks in ("dedicated", "both") if cost == OURS else ("dedicated", "public", "both"):
            ways += [Way(networks, cost, links) for links in LINKS]
            ways += [Way(networks, cost, per_hour=rate) for rate in RATES]
    return Listed(tuple(ways))


def _eight() -> Listed:
    combinations = itertools.product((PAPERS, OURS), RATES, ("on", "off"))
    return Listed(tuple(Way("both", cost, 99, rate, on) for cost, rate, on in combinations))


def _over(
    factor: str, values: tuple[Any, ...], own: str, others: tuple[str, ...], **given: Any
) -> list[tuple[Of, tuple[Of, ...]]]:
    """Return a series paired with others at every value of a factor, as the cases of a check."""
    return [((own, {factor: at, **given}), tuple((other, {factor: at, **given}) for other in others)) for at in values]


COLUMNS = (
    Column("", lambda row, result: row.label),
    Column("runs", finished),
    Column("accepted %", "accepted"),
    Column("finished/h", "finished_per_hour"),
    Column("servers %", "server_use"),
    Column("links %", "link_use"),
    Column("deviation %", "deviation"),
    Column("time +%", "elongation", digits=0),
    Column("maps sent", lambda row, result: mean(row.messages, 0)),
)
_EIGHT = (  # claim, the paper's words, what is compared, column, and whether re-allocation lowers the column
    (
        "throughput",
        "overall system throughput increases with adaptive re-allocation",
        "tasks finished an hour, at every workload",
        "finished_per_hour",
        False,
    ),
    (
        "links",
        "adaptive re-allocation results in much higher utilization of the dedicated links",
        "use of the dedicated links, at every workload",
        "link_use",
        False,
    ),
    (
        "deviation",
        "irrespective of workload, the adaptive re-allocation decreases the deviation",
        "deviation from the wanted rate, at every workload",
        "deviation",
        True,
    ),
)


def _eight_claims(cost: str) -> Iterator[Claim]:
    cases: list[tuple[Of, Of]] = [
        (("both", {**factors, "reallocation": "on"}), ("both", {**factors, "reallocation": "off"}))
        for factors in ({"per_hour": rate, "cost": cost} for rate in RATES)
    ]
    name, suffix = ("", "") if cost == PAPERS else ("ours-", " (with our cost)")
    for claim, quote, how, column, lowers in _EIGHT:
        pairs = [(off, (on,)) if lowers else (on, (off,)) for on, off in cases]
        unit = "/h" if column == "finished_per_hour" else " %"
        yield Claim(f"{name}{claim}", f"{quote}{suffix}", how, exceeds(column, *pairs, digits=1, unit=unit), 4)
    yield Claim(
        f"{name}servers",
        f"CPU utilization remains unchanged, because the re-allocation does not alter the node assignments{suffix}",
        f"server use within {SAME:.0%} of that without, at every workload",
        alike("server_use", *cases, within=SAME),
    )


def _falls(links: tuple[int, ...]) -> list[tuple[Of, tuple[Of, ...]]]:
    """Return each number of links paired with the next, with both networks, as the cases of a check."""
    return [(("both", {"links": few}), (("both", {"links": many}),)) for few, many in itertools.pairwise(links)]


def _figure(**fields: Any) -> Figure:
    return Figure(pairs=lambda own, other, usual: False, configurations=DRAWS, columns=COLUMNS, **fields)


_FIGURES = (
    _figure(
        number="bimodal-8",
        head="Fig. 8",
        title="Links allocated anew every minute, and not",
        question="What does it bring to allocate the links of running tasks anew?",
        sweep=_eight(),
        varied=("cost", "per_hour", "reallocation"),
        claims=(*_eight_claims(PAPERS), *_eight_claims(OURS)),
    ),
    _figure(
        number="bimodal-9",
        head="Fig. 9",
        title="Dedicated links, the public network, and both",
        question="What does the public network add to dedicated links, and what do they add to it?",
        sweep=_nine(),
        varied=("cost", "links", "per_hour"),
        published=(
            Published(
                own="accepted, dedicated, 120 links", value=50, ours=of("dedicated", "accepted", links=120), unit="%"
            ),
            Published(own="accepted, both, 50 links", value=50, ours=of("both", "accepted", links=50), unit="%"),
            Published(own="deviation, both", value=15, ours=of("both", "deviation"), unit="%", points=5),
            Published(own="time, public", value=250, ours=of("public", "elongation"), unit="%", points=50),
            Published(own="time, both", value=15, ours=of("both", "elongation"), unit="%", points=5),
        ),
        claims=(
            Claim(
                "throughput",
                "(a) inclusion of the public network helps to achieve the same throughput at much lower"
                " number of dedicated links",
                "more tasks finish with both than with dedicated links, at each number of links up to 120",
                exceeds("finished_per_hour", *_over("links", LINKS[:4], "both", ("dedicated",)), digits=1, unit="/h"),
                2,
            ),
            Claim(
                "dedicated-half",
                "(b) with dedicated links only, it needs more than 120 links to get 50% acceptance ratio",
                f"accepted comes to 50 % within {NEAR:.0%} of 122 links",
                reached("accepted", "dedicated", 50, ("links", LINKS), (122 * (1 - NEAR), 122 * (1 + NEAR))),
            ),
            Claim(
                "both-half",
                "(b) the same acceptance ratio with 50 dedicated links only, if the public network is utilized",
                f"accepted comes to 50 % within {NEAR:.0%} of 50 links",
                reached("accepted", "both", 50, ("links", LINKS), (50 * (1 - NEAR), 50 * (1 + NEAR))),
            ),
            Claim(
                "fewer-links",
                "(b) both need fewer dedicated links for the same acceptance than dedicated ones alone",
                "more accepted, at each number of links up to 120",
                exceeds("accepted", *_over("links", LINKS[:4], "both", ("dedicated",))),
                2,
            ),
            Claim(
                "servers",
                "(c) server utilization is higher than the sum of utilizations of cases using a single type",
                "at every workload",
                exceeds("server_use", *_over("per_hour", RATES, "both", ("dedicated", "public")), digits=1),
                1,
            ),
            Claim(
                "servers-links",
                "(d) server utilization is higher with both at the same number of dedicated links",
                "at each number up to 120",
                exceeds("server_use", *_over("links", LINKS[:4], "both", ("dedicated",)), digits=1),
                1,
            ),
            Claim(
                "links-workload",
                "(e) utilization of dedicated links becomes consistently higher if the public network is"
                " used in combination",
                "at every workload",
                exceeds("link_use", *_over("per_hour", RATES, "both", ("dedicated",)), digits=1),
                1,
            ),
            Claim(
                "links-fall",
                "(f) utilization of the links keeps decreasing when more and more links are added",
                "with both, from each number of links to the next",
                exceeds("link_use", *_falls(LINKS), digits=1),
            ),
            Claim(
                "links-narrow",
                "(f) the difference in utilization diminishes as the number of installed links increases",
                "both less dedicated alone, lower from each number of links to the next",
                narrows("link_use", "both", "dedicated", "links", LINKS),
            ),
            Claim(
                "deviation-public",
                "(g) above 50% with the public network",
                "deviation at 99 links, 60 tasks an hour",
                between("deviation", ("public", {}), 50, 100),
            ),
            Claim(
                "deviation-dedicated",
                "(g) for a dedicated link only network, the deviation is almost zero",
                "at 99 links, 60 tasks an hour: at most one",
                between("deviation", ("dedicated", {}), -1, 1),
            ),
            Claim(
                "deviation-both",
                "(g) dedicated links bring the deviation down to between 10% and 20%",
                "at 99 links, 60 tasks an hour",
                between("deviation", ("both", {}), 10, 20),
                3,
            ),
            Claim(
                "deviation-falls",
                "(h) the deviation gets closer to zero as more dedicated links are added",
                "with both, lower from each number of links above 99 to the next",
                exceeds("deviation", *_falls(LINKS[2:]), digits=1),
            ),
            Claim(
                "marginal",
                "(h) beyond 125 links the improvement is very marginal",
                "at 120 links at most five points are left to gain",
                between("deviation", ("both", {"links": 120}), 0, 5),
            ),
            Claim(
                "time-public",
                "(i) execution time would be 200-300% more in case of a public network only system",
                "at 99 links",
                between("elongation", ("public", {}), 200, 300),
            ),
            Claim(
                "time-both",
                "(i) a 10-20% increase in the execution time in the bi-modal system",
                "at 99 links",
                between("elongation", ("both", {}), 10, 20),
                3,
            ),
            Claim(
                "ours-accepted",
                "with our cost more tasks are accepted on the same information (ours)",
                "with both, at each number of links up to 120",
                exceeds(
                    "accepted",
                    *((("both", {"links": at, "cost": OURS}), (("both", {"links": at}),)) for at in LINKS[:4]),
                ),
            ),
            Claim(
                "ours-time",
                "with our cost tasks take less long (ours)",
                "with both, at each number of links",
                exceeds(
                    "elongation", *((("both", {"links": at}), (("both", {"links": at, "cost": OURS}),)) for at in LINKS)
                ),
            ),
            Claim(
                "ours-messages",
                "with our cost, ordered, mapping takes at most half of the messages (ours)",
                "maps sent for a task with both, at 99 links and more: the paper's above twice ours",
                exceeds(
                    "messages",
                    *((("both", {"links": at}), (("both", {"links": at, "cost": OURS}),) * 2) for at in LINKS[2:]),
                    unit="",
                ),
            ),
        ),
    ),
)


STUDY = Study(
    name="asaduzzaman2010",
    trial=Simulating,
    arm=Way,
    figures={figure.number: figure for figure in _FIGURES},
    series=("dedicated", "public", "both"),
    usual={"cost": PAPERS, "links": 99, "per_hour": 60.0, "reallocation": "on"},
    measure="(tasks + 1.0) / (accepted + 1.0)",
    level="per_accepted",
    quantity="tasks by tasks accepted",
    columns={
        "accepted": "100.0 * accepted / tasks",
        "finished_per_hour": "finished_per_hour",
        "server_use": "100 * server_use",
        "link_use": "100 * link_use",
        "deviation": "100 * deviation",
        "elongation": "100 * elongation",
        "messages": "messages",
        "mapping_s": "mapping_s",
    },
    world=("links", "per_hour"),
    fixed=("hosts",),
    asked=("tasks", "reallocation_s"),
    says={
        "cost": lambda cost: "the paper's cost" if cost == PAPERS else "our cost",
        "links": lambda links: f"{links} links",
        "per_hour": lambda rate: f"{rate:g}/h",
        "reallocation": lambda on: f"re-allocation {on}",
    },
    colours=("dedicated", "public", "both"),
    conclusions={
        1: "bi-modal networks can improve dedicated resource utilization (server plus dedicated network links)",
        2: "the overall system is able to admit and process tasks at a higher rate",
        3: "the engagement of bi-modal network comes at a slight overhead that adds low delays",
        4: "dynamic rescheduling is essential to cope with varying network conditions",
    },
)
