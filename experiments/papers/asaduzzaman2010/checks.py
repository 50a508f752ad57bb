"""Checks that the studies of this paper share: differences of columns of arms."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from thalweg.experiments.papers.claims import ERRORS, NotTested, Result, Shown, check, missing, together
from thalweg.experiments.papers.study import TIE, Finding, Pooled, pooled, spread

Arm = tuple[str, Mapping[str, Any]]  # a series, and factors


def value(result: Result, column: str, arm: Arm) -> Pooled:
    """Return a column of an arm. Raise NotTested if there is none."""
    series, factors = arm
    figure = result.value(series, column, **factors)
    if figure is None:
        raise missing(" ".join([series, *(str(setting) for setting in factors.values())]))
    return figure


def more_by(own: Pooled, *others: Pooled) -> Pooled:
    """Return a figure less the sum of further figures, pool by pool."""
    seeds = set(own.by_pool).intersection(*(other.by_pool for other in others))
    difference = pooled({seed: own.by_pool[seed] - sum(other.by_pool[seed] for other in others) for seed in seeds})
    if difference is None:
        raise NotTested("no pool has all of them")
    return difference


def above(own: Pooled, *others: Pooled) -> Shown:
    """Return whether a figure is above the sum of others, by more than ``TIE`` of it and two standard errors, or as far
    below. Else the answer is "not shown".
    """
    difference = more_by(own, *others)
    margin = max(TIE * abs(own.mean), ERRORS * (difference.error or 0.0))
    return difference.mean > 0 if abs(difference.mean) > margin else "not shown"


@check
def exceeds(
    result: Result, column: str, *cases: tuple[Arm, tuple[Arm, ...]], digits: int = 0, unit: str = " %"
) -> Finding:
    """Check in every case that a column of an arm is above the sum of the column of others."""
    parts, listed, numbers = [], [], {}
    for number, (own, rivals) in enumerate(cases):
        own_level, other_levels = value(result, column, own), [value(result, column, other) for other in rivals]
        parts.append(above(own_level, *other_levels))
        summed = " + ".join(f"{figure.mean:.{digits}f}" for figure in other_levels)
        where = ", ".join(f"{factor.replace('_', ' ')} {at}" for factor, at in own[1].items())
        listed.append(f"{own_level.mean:.{digits}f} | {summed}{unit}" + (f" ({where})" if where else ""))
        numbers[f"case {number}"] = own_level.mean - sum(figure.mean for figure in other_levels)
    return Finding(together(parts), "; ".join(listed), numbers)


@check
def alike(result: Result, column: str, *cases: tuple[Arm, Arm], within: float) -> Finding:
    """Check in every case that a column of two arms is alike, within a share."""
    pairs = [(value(result, column, own), value(result, column, other)) for own, other in cases]
    listed = "; ".join(f"{first.mean:.1f} | {second.mean:.1f} %" for first, second in pairs)
    ratios = {f"case {at}": first.mean / second.mean for at, (first, second) in enumerate(pairs)}
    return Finding(all(abs(ratio - 1) <= within for ratio in ratios.values()), listed, ratios)


@check
def narrows(result: Result, column: str, own: str, other: str, factor: str, ats: tuple[int, ...]) -> Finding:
    """Check that the excess of a column of ``own`` over ``other`` shrinks with each value of a factor."""
    apart = {at: more_by(*(value(result, column, (series, {factor: at})) for series in (own, other))) for at in ats}
    parts = [above(before, after) for before, after in itertools.pairwise(apart.values())]
    listed = ", ".join(f"{gap.mean:.1f} at {at}" for at, gap in apart.items())
    return Finding(together(parts), listed, {f"{at}": gap.mean for at, gap in apart.items()})


@check
def between(result: Result, column: str, arm: Arm, low: float, high: float, unit: str = " %") -> Finding:
    """Check that a column of an arm is between two numbers. Not shown: a number is within two standard errors."""
    figure = value(result, column, arm)
    near = min(abs(figure.mean - low), abs(figure.mean - high)) <= ERRORS * (figure.error or 0.0)
    holding = [low <= level <= high for level in figure.by_pool.values()]
    holds: Shown = "not shown" if near else low <= figure.mean <= high
    return Finding(holds, f"{spread(figure, 1)}{unit}", {column: figure.mean}, holding)


@check
def reached(
    result: Result, column: str, series: str, level: float, over: tuple[str, tuple[int, ...]], near: tuple[float, float]
) -> Finding:
    """Check that a series' column comes to ``level`` at a factor's value in ``near``, interpolated between values."""
    factor, ats = over
    known = [(at, value(result, column, (series, {factor: at})).mean) for at in ats]
    listed = ", ".join(f"{mean:.0f} at {at}" for at, mean in known)
    for (first, low), (second, high) in itertools.pairwise(known):
        if low < level <= high:
            at = first + (second - first) * (level - low) / (high - low)
            return Finding(near[0] <= at <= near[1], f"{listed}: {level:g} at {at:.0f}", {"at": at})
    edge = known[0][0] if known[0][1] >= level else known[-1][0]
    side = "before" if known[0][1] >= level else "after"
    return Finding(False, f"{listed}: {level:g} {side} {edge}", {})
