"""Figures 2 to 9 and Table 2 of Benoit et al. (2008): costs of seven heuristics for trees of operators.

A configuration is a tree. The paper shows one tree for each N. The paper's numbers are from the text and Table 2, none
is read off a curve. Finding no machines is an answer here, so shares of trees stand beside costs. Heuristics are
compared by costs over the cheapest of the seven, on the trees for which they find machines.
"""

from __future__ import annotations

from thalweg.experiments.papers.benoit2008.checks import (
    alike,
    cheaper,
    flat,
    lost,
    lower,
    more_found,
    needless,
    sometimes,
    within,
)
from thalweg.experiments.papers.benoit2008.figures import figure, tied, turns
from thalweg.experiments.papers.benoit2008.instances import BASE, CARDS
from thalweg.experiments.papers.benoit2008.points import (
    ALMOST_NONE,
    ALPHAS,
    ALPHAS_BIG,
    FACTORS,
    GREEDY,
    N_BIG,
    N_ONE,
    N_SMALL,
    N_TABLE,
    OBJECTS,
    PERIODS_S,
    SAYS,
    SHORT,
    TABLE_2,
    TURNS,
    Platform,
    Point,
    at,
    points,
    threshold,
)
from thalweg.experiments.papers.benoit2008.renting import CHEAPEST, OPTIMUM, POOLS, SUBTREE, Renting
from thalweg.experiments.papers.study import TIE, Claim, Published, Relative, Study

_2A, _2B = points(nodes=N_SMALL, alpha=(0.9,)), points(nodes=N_SMALL, alpha=(1.7,))
_AT_100 = [{"nodes": 100, "alpha": 0.9}]
_TWO = figure(
    "2",
    "What larger trees of small objects cost",
    "What does each heuristic pay as trees grow, and for how large a tree are there machines at all?",
    [*_2A, *_2B],
    (
        Claim(
            "random",
            "Random performs poorly and the platform for around 100 operators or more exceeds a cost of $400,000",
            "above that in the mean at N = 120 to 180, α = 0.9",
            within(["random"], "cost", [p for p in _2A if p["nodes"] > 100], 400_000, float("inf")),
            1,
        ),
        Claim(
            "subtree",
            "Subtree-bottom-up achieves the best costs",
            "α = 0.9: at most 1.01 times the cheapest at each N",
            within([SUBTREE], "times", _2A, 1.0, 1 + TIE),
            3,
        ),
        Claim(
            "greedy",
            "All Greedy heuristics have acceptable costs under $50,000",
            "α = 0.9, N = 100",
            within(GREEDY, "cost", _AT_100, 0, 50_000),
        ),
        Claim(
            "poorer",
            "All Greedy heuristics exhibit similar performance, slightly poorer than Subtree-bottom-up",
            "α = 0.9: each pays more over all N, by more than 1 % and two standard errors",
            cheaper([SUBTREE], GREEDY, _2A),
        ),
        Claim(
            "objects",
            "the heuristics that pay special attention to basic objects, Object-Grouping and Object-Availability,"
            " perform poorly",
            "α = 0.9: each pays more than the three Greedy ones",
            cheaper(GREEDY, OBJECTS, _2A),
            2,
        ),
        Claim(
            "none",
            "α = 1.7: for trees with more than 80 operators, almost no feasible mapping can be found",
            f"for at most {ALMOST_NONE:g} % of the trees from N = 100 on",
            within([CHEAPEST], "found", [p for p in _2B if p["nodes"] > 80], 0, ALMOST_NONE),
        ),
        Claim(
            "grouping",
            "Object-Grouping still finds some mappings for operator trees up to 120 operators, $200,000 to $275,000",
            "α = 1.7: for some trees of N = 100 and of N = 120",
            within(["object-grouping"], "found", [p for p in _2B if p["nodes"] in (100, 120)], 1e-9, 100),
        ),
        *(
            Claim(
                f"{name}-large",
                "Comp-Greedy and Object-Greedy perform as well at times better than Subtree-bottom-up when the number"
                " of operators increases",
                f"α = 1.7: {name} pays less in the mean at some N",
                sometimes(name, SUBTREE, _2B),
            )
            for name in ("comp-greedy", "object-greedy")
        ),
    ),
    published=(
        Published(own="Subtree, N = 100", value=8745, unit="$", ours=at(SUBTREE, "cost", _AT_100[0])),
        Published(own="Random, N = 100", value=400_000, unit="$", ours=at("random", "cost", _AT_100[0])),
    ),
)

_3A, _3B = points(nodes=(20,), alpha=ALPHAS), points(nodes=(60,), alpha=ALPHAS)
_LATE = [p for p in (*_3A, *_3B) if p["alpha"] >= 1.35]
_THREE = figure(
    "3",
    "What more work costs, small objects",
    "From which α on do platforms cost more, and from which on is there none?",
    [*_3A, *_3B],
    (
        *(
            Claim(
                f"flat-{nodes}",
                f"Up to a threshold α has no influence on the heuristics' performance (N = {nodes})",
                "below the α where the first tree's cheapest platform costs more, no heuristic's mean changes by 1 %",
                flat(nodes),
            )
            for nodes in (20, 60)
        ),
        *(
            Claim(
                f"subtree-{nodes}",
                f"Subtree-bottom-up behaves in both cases the best (N = {nodes})",
                "from α = 1.35 on each other pays more, of the cheapest, by more than 1 % and two standard errors",
                cheaper([SUBTREE], (*GREEDY, *OBJECTS, "random"), [p for p in _LATE if p["nodes"] == nodes]),
                3,
            )
            for nodes in (20, 60)
        ),
        Claim(
            "random",
            "Random performs the poorest",
            "each other pays less, of the cheapest, in the mean over both N and all α",
            cheaper([*GREEDY, *OBJECTS, SUBTREE], ["random"], [*_3A, *_3B]),
            1,
        ),
        Claim(
            "between",
            "The Greedy heuristics are between Subtree-bottom-up and the object sensitive heuristics",
            "the three pay less than each object sensitive one from α = 1.35 on",
            cheaper(GREEDY, OBJECTS, _LATE),
            2,
        ),
        Claim(
            "outperform",
            "When α is larger, they at times outperform Subtree-bottom-up",
            "Comp-Greedy pays less in the mean at some α",
            sometimes("comp-greedy", SUBTREE, _LATE),
        ),
        Claim(
            "small-trees",
            "for small trees Object-Grouping behaves better",
            "N = 20: it pays less than Object-Availability",
            cheaper(["object-grouping"], ["object-availability"], _3A),
        ),
        Claim(
            "large-trees",
            "for bigger trees Object-Grouping is outperformed by Object-Availability",
            "N = 60: it pays more",
            cheaper(["object-availability"], ["object-grouping"], _3B),
        ),
    ),
    singles=True,
    tables=(("Where platforms change", turns),),
    published=tuple(
        Published(own=f"α {turn}, N = {nodes}", value=value, unit="", ours=threshold(nodes, turn))
        for nodes, turn, value in (
            (20, TURNS[0], 1.7),
            (20, TURNS[2], 2.2),
            (60, TURNS[0], 1.6),
            (60, TURNS[2], 1.8),
        )
    ),
)

_4A, _4B = (points(nodes=N_BIG, alpha=(alpha,), sizes=("big",)) for alpha in (0.9, 1.1))
_FOUR = figure(
    "4",
    "What larger trees of big objects cost",
    "For how large a tree of big objects are there machines, and who finds them?",
    [*_4A, *_4B],
    (
        Claim(
            "none",
            "for trees bigger than 45 nodes, almost no feasible solution can be found, both for α smaller than 1 and"
            " higher than 1",
            f"for at most {ALMOST_NONE:g} % of the trees at N = 50 and 60",
            within([CHEAPEST], "found", [p for p in (*_4A, *_4B) if p["nodes"] > 45], 0, ALMOST_NONE),
        ),
        Claim(
            "subtree",
            "In general, Subtree-bottom-up still achieves the best costs",
            "at most 1.05 times the cheapest at each N for which it finds machines",
            within([SUBTREE], "times", [p for p in (*_4A, *_4B) if 10 <= p["nodes"] <= 40], 1.0, 1.05),
            3,
        ),
        Claim(
            "comm",
            "at times it is outperformed by Comm-Greedy",
            "Comm-Greedy pays less in the mean at some N",
            sometimes("comm-greedy", SUBTREE, [*_4A, *_4B]),
        ),
        Claim(
            "fails",
            "Subtree-bottom-up even fails in two cases in which other heuristics find a solution, during the server"
            " allocation process",
            "it fails for some trees, and for most of these as servers or their links have no room",
            lost([*_4A, *_4B]),
            5,
        ),
        Claim(
            "greedy",
            "Comm-Greedy achieves in this experiment the best costs among the Greedy heuristics",
            "the other two pay more over all N",
            cheaper(["comm-greedy"], ["comp-greedy", "object-greedy"], [*_4A, *_4B]),
        ),
        Claim(
            "poorest",
            "Random, Object-Availability and Object-Grouping still perform the poorest",
            "each pays more than the three Greedy ones",
            cheaper(GREEDY, (*OBJECTS, "random"), [*_4A, *_4B]),
            2,
        ),
    ),
)

_5A, _5B = (points(nodes=(nodes,), alpha=ALPHAS_BIG, sizes=("big",)) for nodes in (20, 40))
_FIVE = figure(
    "5",
    "What more work costs, big objects",
    "Who finds machines for big objects as α grows?",
    [*_5A, *_5B],
    (
        Claim(
            "comp",
            "When N = 20, Comp-Greedy outperforms Object-Greedy",
            "it pays less over all α",
            cheaper(["comp-greedy"], ["object-greedy"], _5A),
        ),
        Claim(
            "comm-once",
            "Comm-Greedy finds a feasible solution only once (N = 20)",
            f"for at most {ALMOST_NONE:g} % of the trees at each α",
            within(["comm-greedy"], "found", _5A, 0, ALMOST_NONE),
        ),
        Claim(
            "availability",
            "Object-Availability achieves better results than Object-Grouping (N = 20)",
            "it pays less over all α",
            cheaper(["object-availability"], ["object-grouping"], _5A),
        ),
        Claim(
            "swapped",
            "In the case of N = 40 Object-Availability and Object-Grouping are swapped",
            "Object-Grouping pays less over all α",
            cheaper(["object-grouping"], ["object-availability"], _5B),
        ),
        Claim(
            "never",
            "Object-Greedy never succeeds to find a feasible solution (N = 40); this depends on the tree",
            "for at most 5 % of the trees at each α",
            within(["object-greedy"], "found", _5B, 0, 5),
        ),
        Claim(
            "second",
            "Comm-Greedy achieves the second best results (N = 40)",
            "the other Greedy ones pay more over all α",
            cheaper(["comm-greedy"], ["comp-greedy", "object-greedy"], _5B),
        ),
    ),
)

_RATES = (2.0, 50.0)
_TABLED = points(nodes=N_TABLE, period_s=_RATES, sizes=("small",))
_TABLE = figure(
    "table2",
    "What the download rate changes, small objects",
    "Do lower download rates make platforms cheaper?",
    [*_TABLED, *points(nodes=N_TABLE, period_s=_RATES, sizes=("big",))],
    (
        Claim(
            "cards",
            "the heuristics lead to the same operator mapping, but in some cases the processors have less powerful"
            " network cards",
            "Subtree pays at most 1 % more at 1/50 s than at 1/2 s, and at most a card of 2 Gb/s ($399) less",
            alike(
                SUBTREE,
                "cost",
                [
                    ({"nodes": n, "period_s": 2.0, "sizes": "small"}, {"nodes": n, "period_s": 50.0, "sizes": "small"})
                    for n in N_TABLE
                ],
                CARDS[2.0] / BASE,
            ),
        ),
        Claim(
            "heads",
            "Table 2's second half is headed “big object sizes”: it is that of the low rate (ours)",
            "with big objects no heuristic finds machines at any of these N",
            within([CHEAPEST], "found", points(nodes=N_TABLE, period_s=_RATES, sizes=("big",)), 0, 0),
        ),
        Claim(
            "needless",
            "Table 2's $8,745 and $13,547 buy a card that cannot be needed (ours)",
            "one machine with all 15 objects at 30 MB and f = 1/2 receives less than a smaller card carries",
            needless(),
        ),
    ),
    published=tuple(
        Published(
            own=f"{SHORT[name]}, N = {nodes}, 1/{period_s:g} s",
            value=prices[number],
            unit="$",
            points=None,
            ours=at(name, "cost", {"nodes": nodes, "period_s": period_s, "sizes": "small"}),
        )
        for name, of in TABLE_2.items()
        for period_s, prices in of.items()
        for number, nodes in enumerate(N_TABLE)
    ),
)

_6A, _6B = (points(nodes=N_BIG, sizes=("big",), period_s=(period_s,)) for period_s in _RATES[::-1])
_SIX = figure(
    "6",
    "What the download rate changes, big objects",
    "For how many more trees are there machines at a low rate?",
    [*_6A, *_6B],
    (
        Claim(
            "more",
            "low download rates improve the success rate of the heuristics",
            "Subtree and the Greedy ones find machines for more trees at 1/50 s, over all N",
            more_found([SUBTREE, *GREEDY], list(zip(_6B, _6A, strict=True))),
        ),
        Claim(
            "slightly",
            "and slightly so",
            f"Subtree's share of trees changes by at most {ALMOST_NONE:g} points at each N",
            alike(SUBTREE, "found", list(zip(_6B, _6A, strict=True)), ALMOST_NONE),
        ),
        Claim(
            "links",
            "the links between servers and processors are less congested, and hence the server association is feasible"
            " in more scenarios",
            "Subtree never fails for servers at 1/50 s",
            within([SUBTREE], "short_servers", _6A, 0, 0),
        ),
    ),
)

_LARGE = (140, 160)
_7 = points(nodes=_LARGE, period_s=PERIODS_S)


def _rates(first_s: float, second_s: float) -> list[tuple[Point, Point]]:
    return [({"nodes": nodes, "period_s": first_s}, {"nodes": nodes, "period_s": second_s}) for nodes in _LARGE]


_SEVEN = figure(
    "7",
    "What the download rate changes, N = 140 and 160",
    "From which rate on does a lower one change nothing?",
    _7,
    (
        *(
            Claim(
                f"below-{name}",
                f"frequencies smaller than 1/10 s have no further influence on the solution ({name})",
                "it pays the same at 1/10 s and at 1/50 s, within 1 %",
                alike(name, "cost", _rates(10.0, 50.0), TIE),
            )
            for name in SHORT
        ),
        Claim(
            "third",
            "below 1/3 s nothing changes already (ours)",
            "the cheapest pays the same at 1/3 s and at 1/50 s, within 1 %",
            alike(CHEAPEST, "cost", _rates(3.0, 50.0), TIE),
        ),
        Claim(
            "between",
            "for frequencies between 1/2 s and 1/10 s the solution cost changes; in general the cost decreases",
            "most heuristics pay less at 1/10 s, by more than 1 %, and none pays 1 % more, with both N",
            lower(list(SHORT), _rates(2.0, 10.0)),
        ),
        Claim(
            "ranking",
            "the heuristic ranking remains: Subtree-bottom-up, the Greedy family, the object sensitive ones, Random",
            "the Greedy ones pay less than each object sensitive one and Random, over all rates",
            cheaper(GREEDY, (*OBJECTS, "random"), _7),
            2,
        ),
        Claim(
            "availability",
            "the costs of Object-Availability decrease with the number of operators",
            "its mean is lower with N = 160 than with 140, at f = 1/2 and 1/50 s",
            lower(
                ["object-availability"],
                [({"nodes": 140, "period_s": period_s}, {"nodes": 160, "period_s": period_s}) for period_s in _RATES],
            ),
        ),
    ),
)

_8 = points(nodes=(160,), period_s=PERIODS_S, copies=(1, 3))


def _copies(few: int, many: int) -> list[tuple[Point, Point]]:
    return [
        ({"nodes": 160, "period_s": period_s, "copies": few}, {"nodes": 160, "period_s": period_s, "copies": many})
        for period_s in PERIODS_S
    ]


_EIGHT = figure(
    "8",
    "On how many servers objects are, N = 160",
    "Does it matter whether an object is on one server or on half of them?",
    _8,
    (
        *(
            Claim(
                f"cost-{name}",
                f"the level of replication has little or no effect on the performance of the heuristics ({name})",
                "it pays the same with one copy as with three, within 2 %, at each rate",
                alike(name, "cost", _copies(1, 3), 2 * TIE),
            )
            for name in (SUBTREE, *GREEDY, *OBJECTS)
        ),
        *(
            Claim(
                f"more-{name}",
                f"with one copy, at 1/2 s to 1/10 s, {name} finds more solutions",
                "for more of the trees, over these rates",
                more_found([name], [(b, a) for a, b in _copies(1, 3) if a["period_s"] <= 10]),
            )
            for name in (SUBTREE, "comm-greedy", "object-greedy", "object-grouping")
        ),
    ),
)

_9A, _9B, _9C = (
    points(nodes=N_ONE, alpha=(alpha,), sizes=(sizes,), machines=("one",))
    for alpha, sizes in ((0.9, "big"), (1.1, "big"), (0.9, "small"))
)
_9D = points(nodes=(10, 20, 30, 36, 40), alpha=(1.8,), sizes=("small",), machines=("one",))
_NINE = figure(
    "9",
    "One class of machines",
    "How near the optimum are the heuristics where all machines are alike?",
    [*_9A, *_9B, *_9C, *_9D],
    (
        Claim(
            "optimal",
            "When α is less than 1, Subtree-bottom-up almost always finds the optimal solution",
            "at most 1.01 times the optimum at each N for which there are machines, big and small objects",
            within([SUBTREE], "over_optimum", [*_9A, *_9C], 1.0, 1 + TIE),
            4,
        ),
        Claim(
            "fails",
            "in two cases it is not able to find a feasible solution, while the others succeed (N = 34 to 36): it maps"
            " all operators onto a single processor and then the server association process fails",
            "big objects: it fails for some trees, and for most of these as servers or their links have no room",
            lost([*_9A, *_9B]),
            5,
        ),
        Claim(
            "ranking",
            "we observe the same ranking: Subtree-bottom-up, the Greedy family, Object-Grouping, Object-Availability"
            " and finally Random",
            "each of the last three pays more than the Greedy ones, over all points",
            cheaper(GREEDY, (*OBJECTS, "random"), [*_9A, *_9B, *_9C, *_9D]),
            2,
        ),
        Claim(
            "comp",
            "with increasing operator trees, Comp-Greedy outperforms Object-Greedy",
            "it pays less over N = 30 to 80",
            cheaper(["comp-greedy"], ["object-greedy"], [p for p in (*_9A, *_9B, *_9C) if p["nodes"] >= 30]),
        ),
        Claim(
            "comm",
            "in most cases Comm-Greedy achieves the best costs of the three",
            "the other two pay more over all points with α = 0.9 and 1.1",
            cheaper(["comm-greedy"], ["comp-greedy", "object-greedy"], [*_9A, *_9B, *_9C]),
        ),
        Claim(
            "loaded",
            "Subtree-bottom-up almost always produces optimal results; here where several machines are needed (ours)",
            "α = 1.8, small objects: at most 1.05 times the optimum at each N",
            within([SUBTREE], "over_optimum", _9D, 1.0, 1.05),
            4,
        ),
    ),
    against=OPTIMUM,
)

_FIGURES = (_TWO, _THREE, _FOUR, _FIVE, _TABLE, _SIX, _SEVEN, _EIGHT, _NINE)


STUDY = Study(
    name="benoit2008",
    trial=Renting,
    arm=Platform,
    figures={figure.number: figure for figure in _FIGURES},
    series=tuple(SHORT),
    ours=(CHEAPEST, OPTIMUM),
    measure="dollars",
    level="cost",
    quantity="mean cost in $",
    nothing="no machines are found",
    columns={
        "times": Relative(CHEAPEST),
        "over_optimum": Relative(OPTIMUM),
        "proven": "CASE WHEN proven THEN 100.0 ELSE 0.0 END",
        "found": "CASE WHEN dollars IS NULL THEN 0.0 ELSE 100.0 END",
        "short_servers": "CASE WHEN short = 'servers' THEN 100.0 ELSE 0.0 END",
        **{tied(name): f"CASE WHEN contains(tied, '{name}') THEN 100.0 ELSE 0.0 END" for name in SHORT},
        "lost": "CASE WHEN subtree <> '' THEN 100.0 ELSE 0.0 END",
        "lost_servers": "CASE WHEN subtree = 'servers' THEN 100.0 ELSE 0.0 END",
    },
    always=("found", "short_servers"),
    world=FACTORS,
    pools=tuple(POOLS),
    says=SAYS,
    tints={
        "random": "#777777",
        "comp-greedy": "#009E73",
        "comm-greedy": "#56B4E9",
        "object-greedy": "#117733",
        SUBTREE: "#D55E00",
        "object-grouping": "#CC79A7",
        "object-availability": "#882255",
        CHEAPEST: "#333333",
        OPTIMUM: "#000000",
    },
    conclusions={
        1: "all our more sophisticated heuristics perform better than the simple random approach",
        2: "the object sensitive heuristics do not show the desired performance",
        3: "Subtree-bottom-up outperforms other heuristics in most situations",
        4: "Subtree-bottom-up produces results very close to the optimal",
        5: "there are some configurations for which Subtree-bottom-up fails",
    },
)
