"""Checks that the studies of this paper share: columns of arms beside each other, as differences."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from thalweg.experiments.papers.claims import ERRORS, NotTested, Result, Shown, check, missing, together
from thalweg.experiments.papers.study import TIE, Finding, Pooled, pooled, spread

Arm = tuple[str, Mapping[str, Any]]  # a series, and factors


def value(result: Result, column: str, arm: Arm) -> Pooled:
    """A column of an arm; NotTested where there is none."""
    series, given = arm
    found = result.value(series, column, **given)
    if found is None:
        raise missing(" ".join([series, *(str(one) for one in given.values())]))
    return found


def more_by(own: Pooled, *others: Pooled) -> Pooled:
    """Pool by pool, one less the sum of others."""
    seeds = set(own.by_pool).intersection(*(one.by_pool for one in others))
    found = pooled({seed: own.by_pool[seed] - sum(one.by_pool[seed] for one in others) for seed in seeds})
    if found is None:
        raise NotTested("no pool has all of them")
    return found


def above(own: Pooled, *others: Pooled) -> Shown:
    """Whether one is above the sum of others, by more than ``TIE`` of it and two standard errors; or as far below."""
    difference = more_by(own, *others)
    margin = max(TIE * abs(own.mean), ERRORS * (difference.error or 0.0))
    return difference.mean > 0 if abs(difference.mean) > margin else "not shown"


@check
def exceeds(
    result: Result, column: str, *cases: tuple[Arm, tuple[Arm, ...]], digits: int = 0, unit: str = " %"
) -> Finding:
    """In every case a column of an arm is above the sum of that of others."""
    parts, told, numbers = [], [], {}
    for number, (own, others) in enumerate(cases):
        mine, theirs = value(result, column, own), [value(result, column, other) for other in others]
        parts.append(above(mine, *theirs))
        summed = " + ".join(f"{one.mean:.{digits}f}" for one in theirs)
        where = ", ".join(f"{factor.replace('_', ' ')} {at}" for factor, at in own[1].items())
        told.append(f"{mine.mean:.{digits}f} | {summed}{unit}" + (f" ({where})" if where else ""))
        numbers[f"case {number}"] = mine.mean - sum(one.mean for one in theirs)
    return Finding(together(parts), "; ".join(told), numbers)


@check
def alike(result: Result, column: str, *cases: tuple[Arm, Arm], within: float) -> Finding:
    """In every case a column of an arm is that of another, within a share of it."""
    pairs = [(value(result, column, own), value(result, column, other)) for own, other in cases]
    told = "; ".join(f"{one.mean:.1f} | {other.mean:.1f} %" for one, other in pairs)
    ratios = {f"case {at}": one.mean / other.mean for at, (one, other) in enumerate(pairs)}
    return Finding(all(abs(ratio - 1) <= within for ratio in ratios.values()), told, ratios)


@check
def narrows(result: Result, column: str, own: str, other: str, factor: str, ats: tuple[int, ...]) -> Finding:
    """What a column of a series is above that of another is less with each value of a factor."""
    apart = {at: more_by(*(value(result, column, (series, {factor: at})) for series in (own, other))) for at in ats}
    parts = [above(before, after) for before, after in itertools.pairwise(apart.values())]
    told = ", ".join(f"{one.mean:.1f} at {at}" for at, one in apart.items())
    return Finding(together(parts), told, {f"{at}": one.mean for at, one in apart.items()})


@check
def between(result: Result, column: str, arm: Arm, low: float, high: float, unit: str = " %") -> Finding:
    """A column of an arm is between two numbers; not shown where one is within two standard errors."""
    found = value(result, column, arm)
    near = min(abs(found.mean - low), abs(found.mean - high)) <= ERRORS * (found.error or 0.0)
    each = [low <= one <= high for one in found.by_pool.values()]
    holds: Shown = "not shown" if near else low <= found.mean <= high
    return Finding(holds, f"{spread(found, 1)}{unit}", {column: found.mean}, each)


@check
def reached(
    result: Result, column: str, series: str, level: float, over: tuple[str, tuple[int, ...]], near: tuple[float, float]
) -> Finding:
    """Where a column of a series comes to a level, between the values of a factor, is between two numbers."""
    factor, ats = over
    known = [(at, value(result, column, (series, {factor: at})).mean) for at in ats]
    told = ", ".join(f"{mean:.0f} at {at}" for at, mean in known)
    for (one, low), (other, high) in itertools.pairwise(known):
        if low < level <= high:
            at = one + (other - one) * (level - low) / (high - low)
            return Finding(near[0] <= at <= near[1], f"{told}: {level:g} at {at:.0f}", {"at": at})
    edge = known[0][0] if known[0][1] >= level else known[-1][0]
    side = "before" if known[0][1] >= level else "after"
    return Finding(False, f"{told}: {level:g} {side} {edge}", {})
