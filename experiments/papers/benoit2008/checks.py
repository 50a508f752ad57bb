"""Checks of the claims of Benoit et al. on a figure's results. ``papers.claims`` has the rule of differences."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from thalweg.experiments.papers.benoit2008.instances import BASE, CARD_BYTES_S, CARDS, MB, SIZES_MB, TYPES
from thalweg.experiments.papers.benoit2008.points import (
    ALPHAS,
    SHARES,
    TABLE_2,
    TURNS,
    Point,
    at,
    over_points,
    thresholds,
    told,
)
from thalweg.experiments.papers.benoit2008.renting import CHEAPEST, SERIES
from thalweg.experiments.papers.claims import NotTested, Result, Shown, check, clearly, known, more, together
from thalweg.experiments.papers.study import TIE, Finding, spread


@check
def cheaper(result: Result, own: Sequence[str], others: Sequence[str], where: Sequence[Point]) -> Finding:
    """Check that ``own`` pay less in the mean than each of ``others``, in multiples of the cheapest of the seven."""
    own_times = over_points(result, own, "times", where)
    other_times = {name: over_points(result, [name], "times", where) for name in others}
    ratios = [ratio for value in other_times.values() if (ratio := value.over(own_times))]
    if not ratios:
        raise NotTested("no pool has both")
    parts: list[Shown] = [clearly(ratio) for ratio in ratios]
    detail = ", ".join(f"{name} {spread(value)}" for name, value in other_times.items())
    seeds = set.intersection(*(set(ratio.by_pool) for ratio in ratios))
    holding = [all(more(ratio.by_pool[seed]) for ratio in ratios) for seed in sorted(seeds)]
    numbers = {"own": own_times.mean} | {name: value.mean for name, value in other_times.items()}
    return Finding(
        together(parts), f"{' and '.join(own)} {spread(own_times)}; {detail} times the cheapest", numbers, holding
    )


@check
def within(
    result: Result, heuristics: Sequence[str], column: str, where: Sequence[Point], low: float, high: float
) -> Finding:
    """Check that the column is between two numbers for every heuristic at every point, where there is a value."""
    values = {
        (name, told(point)): value
        for name, point in itertools.product(heuristics, where)
        if (value := known(at(name, column, point), result))
    }
    if not values:
        raise NotTested(f"no machines are found by {', '.join(heuristics)}")
    least, most = (choose(values, key=lambda one: values[one].mean) for choose in (min, max))
    unit = "$" if column == "cost" else "%" if column in SHARES else "times"
    detail = " to ".join(
        f"{values[key].mean:,.{2 if unit == 'times' else 0}f} {unit} ({key[0]}, {key[1]})"
        for key in dict.fromkeys((least, most))
    )
    good = all(low <= value.mean <= high for value in values.values())
    return Finding(good, detail, {"least": values[least].mean, "most": values[most].mean})


@check
def sometimes(result: Result, own: str, other: str, where: Sequence[Point]) -> Finding:
    """Check that ``own`` pays less in the mean than ``other`` at one or more of the points."""
    ratios = {}
    for point in where:
        own_times, other_times = (known(at(name, "times", point), result) for name in (own, other))
        if own_times and other_times:
            ratios[told(point)] = own_times.mean / other_times.mean
    if not ratios:
        raise NotTested(f"no machines are found by {own} and {other}")
    best = min(ratios, key=lambda one: ratios[one])
    less = sum(ratio < 1 - TIE for ratio in ratios.values())
    detail = f"it pays less at {less} of {len(ratios)} points, {ratios[best]:.2f} times as much at {best}"
    return Finding(less > 0, detail, {"points": less, "least": ratios[best]})


@check
def alike(result: Result, name: str, column: str, pairs: Sequence[tuple[Point, Point]], most: float) -> Finding:
    """Check that a column is alike at both points of each pair, within a share of a cost or points of a percentage."""
    changes = {}
    for first, second in pairs:
        own, other = (at(name, column, point)(result).mean for point in (first, second))
        changes[told(second)] = other - own if column in SHARES else other / own - 1
    largest = max(changes, key=lambda one: abs(changes[one]))
    shown = f"{changes[largest]:+.1f} points" if column in SHARES else f"{changes[largest]:+.1%}"
    detail = f"largest change {shown} ({largest})"
    return Finding(all(abs(change) <= most for change in changes.values()), detail, {"largest": changes[largest]})


@check
def lower(result: Result, heuristics: Sequence[str], pairs: Sequence[tuple[Point, Point]]) -> Finding:
    """Check that most heuristics pay less in the mean at a pair's second point, by more than 1 %, and none 1 % more."""
    changes = {}
    for (first, second), name in itertools.product(pairs, heuristics):
        own, other = (at(name, "cost", point)(result).mean for point in (first, second))
        changes[f"{name}, {told(second)}"] = other / own - 1
    most, least = (choose(changes, key=lambda one: changes[one]) for choose in (max, min))
    less = sum(change < -TIE for change in changes.values())
    detail = f"{less} of {len(changes)} are lower: {changes[least]:+.1%} ({least}) to {changes[most]:+.1%} ({most})"
    numbers = {"least": changes[least], "most": changes[most], "lower": less / len(changes)}
    return Finding(less > len(changes) / 2 and changes[most] <= TIE, detail, numbers)


@check
def more_found(result: Result, heuristics: Sequence[str], pairs: Sequence[tuple[Point, Point]]) -> Finding:
    """Check that heuristics find machines for more trees at pairs' second points than at the first, in the mean."""
    firsts, seconds = zip(*pairs, strict=True)
    shares = {
        name: [over_points(result, [name], "found", where).mean for where in (firsts, seconds)] for name in heuristics
    }
    detail = ", ".join(f"{name} {first:.0f} → {second:.0f} %" for name, (first, second) in shares.items())
    numbers = {name: second - first for name, (first, second) in shares.items()}
    return Finding(all(gain > 0 for gain in numbers.values()), detail, numbers)


@check
def flat(result: Result, nodes: int) -> Finding:
    """Check that no heuristic's cost changes by more than 1 % below the first α where a tree's cheapest costs more."""
    rise = thresholds(result, nodes)[TURNS[0]]
    below = [alpha for alpha in ALPHAS if alpha < min(rise.by_pool.values())]
    changes = {}
    for name in SERIES:
        costs = [at(name, "cost", {"nodes": nodes, "alpha": alpha})(result).mean for alpha in below]
        changes[name] = max(costs) / min(costs) - 1
    worst = max(changes, key=lambda name: changes[name])
    detail = f"up to α = {max(below):g}: largest change {changes[worst]:.1%} ({worst}), {CHEAPEST}"
    return Finding(changes[worst] <= TIE, f"{detail} {changes[CHEAPEST]:.1%}", changes)


@check
def lost(result: Result, where: Sequence[Point]) -> Finding:
    """Check that Subtree-Bottom-Up fails on trees with machines by a second heuristic, mostly for lack of servers."""
    lost, servers = (over_points(result, [CHEAPEST], column, where) for column in ("lost", "lost_servers"))
    detail = f"it finds none for {lost.mean:.1f} % of the trees that another does; for {servers.mean:.1f} % for servers"
    numbers = {"lost": lost.mean, "servers": servers.mean}
    return Finding(lost.mean > 0 and servers.mean > lost.mean / 2, detail, numbers)


@check
def needless(result: Result) -> Finding:
    """Check that some of the paper's platforms are not the cheapest: a lone machine needs no card above 2 Gb/s."""
    largest = TYPES * SIZES_MB["small"][1] * MB / 2.0  # all objects at f = 1/2
    card = min(gbps for gbps in CARDS if gbps * CARD_BYTES_S >= largest)
    prices = {BASE + more for gbps, more in CARDS.items() if gbps > card}
    bought = {price for prices_by_rate in TABLE_2.values() for prices in prices_by_rate.values() for price in prices}
    dear = sorted(bought & prices)
    detail = f"all objects take {largest / MB:g} MB/s, which a card of {card:g} Gb/s carries; "
    detail += f"{', '.join(f'${price:,.0f}' for price in dear)} pay for a larger one on a machine that is alone"
    return Finding(bool(dear), detail, {"needed MB/s": largest / MB, "platforms": float(len(dear))})
