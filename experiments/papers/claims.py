"""Checks that decide a paper's claims, for studies to combine, and the verdicts.

A check maps a figure's result to a ``Finding``. Every check applies the same rules to differences:

- R1: a difference is decided if it exceeds ``TIE`` and two standard errors between pools. A smaller one is *not shown*.
- R2: the difference of a single pool, without a standard error, is decided if it exceeds ``TIE``.
- R3: a claim about values that the results lack is *not tested*.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Concatenate, Literal, ParamSpec

from thalweg.experiments.papers.study import (
    TIE,
    Claim,
    Comparison,
    Decision,
    FigureResult,
    Finding,
    Over,
    Pooled,
    Published,
    Ratio,
    Study,
    Verdict,
    pooled,
    spread,
)
from thalweg.middleware.errors import counted

MOST = 0.9  # of the configurations: "consistent", "except in a few cases"
ERRORS = 2.0  # standard errors that a difference must exceed
CLEARLY = f"by more than {TIE:.0%} and two standard errors"
NOT_SHOWN = f"not shown: some difference is within {TIE:.0%} or two standard errors"

Result = FigureResult[Any, Any]
Check = Callable[[Result], Finding]
P = ParamSpec("P")
Shown = bool | Literal["not shown"]


# --- verdicts ---------------------------------------------------------------------------------------


_DECISIONS: Mapping[Shown | None, Decision] = {
    None: "not tested", "not shown": "not shown", True: "holds", False: "does not hold",
}  # fmt: skip


def judge(result: Result, claim: Claim) -> Verdict:
    """Return the verdict on a claim that the paper makes of this figure."""
    finding = claim.check(result)
    return Verdict(
        figure=result.figure,
        pool=result.pool,
        claim=claim.name,
        text=claim.quote,
        how=claim.how,
        verdict=_DECISIONS[finding.holds],
        detail=finding.detail,
        numbers=finding.numbers,
        pools_holding=sum(finding.each) if finding.each else None,
        pools=len(finding.each) or result.pools,
        conclusion=claim.conclusion,
    )


def compare(result: Result) -> list[Comparison]:
    """Return the paper's published values beside ours. A range to accept is given only where they bind."""
    comparisons = []
    for value in result.definition.published:
        ours = _ours(result, value)
        accept = value.accept if result.binding else None
        comparisons.append(
            Comparison(
                name=value.name,
                paper=value.value,
                unit=value.unit if value.other is None else "",
                ours=ours,
                ratio=None if ours is None or not value.value else ours.mean / value.value,
                accept=accept,
                within=None if ours is None or accept is None else accept[0] <= ours.mean <= accept[1],
            )
        )
    return comparisons


def _ours(result: Result, value: Published) -> Pooled | None:
    if value.ours is not None:
        return known(value.ours, result)
    if value.other is None:
        return result.value(value.own, result.study.level)
    own = result.arm(value.own)
    ratio = None if own is None else result.ratio(own, result.arm(value.other))
    return None if ratio is None else ratio.median


def conclude(study: Study, results: Iterable[Result]) -> list[Verdict]:
    """Return the paper's conclusions from the verdicts of the figures, for every name of pools.

    A conclusion holds if every claim below it holds, and does not hold if one does not. Else it is not tested if one
    claim is not tested, and otherwise not shown.
    """
    judged: dict[str, dict[tuple[str, str], Verdict]] = {}
    for result in results:
        for verdict in result.verdicts:
            judged.setdefault(result.pool, {})[verdict.figure, verdict.claim] = verdict
    order: tuple[Decision, ...] = ("does not hold", "not tested", "not shown")
    conclusions = []
    for (pool, verdicts), (number, text) in itertools.product(judged.items(), study.conclusions.items()):
        keys = [
            (figure.number, claim.name)
            for figure in study.figures.values()
            for claim in figure.claims
            if claim.conclusion == number
        ]
        states: list[Decision] = [verdicts[key].verdict if key in verdicts else "not tested" for key in keys]
        conclusions.append(
            Verdict(
                figure="conclusions",
                pool=pool,
                claim=f"conclusion-{number}",
                text=text,
                how="holds when every claim that it rests on does, does not when one of them does not",
                verdict=next((state for state in order if state in states), "holds"),
                detail=", ".join(f"Fig. {at} {name}: {state}" for (at, name), state in zip(keys, states, strict=True)),
                conclusion=number,
            )
        )
    return conclusions


# --- parts of checks --------------------------------------------------------------------------------


def clearly(ratio: Pooled) -> Shown:
    """Return whether a ratio is above 1 by more than ``TIE`` and two standard errors between pools, or as far below.
    Else the answer is "not shown".
    """
    margin = max(TIE, ERRORS * (ratio.error or 0.0))  # R1: a difference within this margin is not shown
    return ratio.mean > 1 if abs(ratio.mean - 1) > margin else "not shown"


def more(ratio: float) -> bool:
    """Return whether a single pool's ratio is above 1 by more than ``TIE``."""
    return ratio > 1 + TIE  # R2: a single pool has no standard error


def together(parts: Iterable[Shown]) -> Shown:
    """Return False if one part is False, else "not shown" if one part is, else True."""
    values = list(parts)
    return False if False in values else "not shown" if "not shown" in values else True


def each(value: Pooled, good: Callable[[float], bool]) -> list[bool]:
    return [good(figure) for figure in value.by_pool.values()]


def in_all(parts: Iterable[Pooled], good: Callable[[float], bool]) -> list[bool]:
    """Return, for every pool with all figures, whether all figures are good."""
    values = list(parts)
    shared = set.intersection(*(set(value.by_pool) for value in values)) if values else set()
    return [all(good(value.by_pool[seed]) for value in values) for seed in sorted(shared)]


class NotTested(Exception):
    """Error of a check if the results lack what the claim needs (R3)."""


Value = Callable[[Result], Pooled]
"""What a result says of something, pool by pool; raises NotTested where it says nothing."""


def of(series: str, column: str, **given: Any) -> Value:
    """Return a column of a series, with factors as given, as a function of the result."""

    def found(result: Result) -> Pooled:
        value = result.value(series, column, **given)
        if value is None:
            raise lacking(result, *filter(None, (result.study.base, series)))
        return value

    return found


def known(value: Value, result: Result) -> Pooled | None:
    """Return a value of a result. None: the result lacks the value."""
    try:
        return value(result)
    except NotTested:
        return None


def over(own: Pooled, other: Pooled) -> Pooled:
    """Return the ratio of two figures, pool by pool. Raise NotTested if no pool has both."""
    ratio = own.over(other)
    if ratio is None:
        raise NotTested("no pool has both")
    return ratio


def missing(*names: str) -> NotTested:
    return NotTested(f"not in the results: {', '.join(dict.fromkeys(names))}")


def lacking(result: Result, *names: str) -> NotTested:
    """Return the error for series that are absent, or that no configuration finished together."""
    absent = [name for name in names if result.arm(name) is None]
    return missing(*absent) if absent else NotTested(f"no configuration finished with {' and '.join(names)}")


def percent(change: Pooled) -> str:
    """Return a relative change with its standard error as text."""
    if change.error is None:
        return f"{change.mean:+.1%}"
    return f"{change.mean:+.1%} (standard error {change.error:.1%})"


def gain(ratio: Pooled) -> Pooled:
    """Return a ratio as a relative change."""
    return ratio.map(lambda one: one - 1)


def _pair(result: Result, own: str, other: str) -> Ratio[Any]:
    ratio = result.ratio(result.arm(own), result.arm(other))
    if ratio is None:
        raise lacking(result, own, other)
    return ratio


# --- checks -----------------------------------------------------------------------------------------


def check(decides: Callable[Concatenate[Result, P], Finding]) -> Callable[P, Check]:
    """Turn a function of a result and parameters into a function from the parameters to a check."""

    def made(*given: P.args, **named: P.kwargs) -> Check:
        def decide(result: Result) -> Finding:
            try:
                return decides(result, *given, **named)
            except NotTested as why:  # R3: the results lack what the claim needs
                return Finding(None, str(why))

        return decide

    return made


@check
def all_faster(result: Result, *names: str) -> Finding:
    """Check that every named series is faster than the base, in the mean and on ``MOST`` of the configurations."""
    numbers: dict[str, float] = {}
    holds, parts, pools = [], [], []
    for name in names:
        speedup, share = result.value(name, "speedup"), result.value(name, "faster")
        if speedup is None or share is None:
            raise lacking(result, result.study.base, *names)
        holds.append(clearly(speedup) is True and share.mean >= MOST)
        good = {at: float(more(ratio) and share.by_pool[at] >= MOST) for at, ratio in speedup.by_pool.items()}
        pools.append(pooled(good))
        numbers |= {f"speedup {name}": speedup.mean, f"faster {name}": share.mean}
        parts.append(f"{name} {spread(speedup)} (faster on {share.mean:.0%})")
    return Finding(all(holds), f"mean speed-up {', '.join(parts)}", numbers, in_all(filter(None, pools), bool))


@check
def between(
    result: Result, value: Value, low: float, high: float, name: str, says: str = "{}", digits: int = 2
) -> Finding:
    """Check that a value is between two numbers. ``name``: its key in the numbers. ``says``: the text around it."""
    figure = value(result)
    detail, good = says.format(spread(figure, digits)), each(figure, lambda one: low <= one <= high)
    return Finding(low <= figure.mean <= high, detail, {name: figure.mean}, good)


@check
def adds(result: Result, own: str, other: str, least: float) -> Finding:
    """Check that ``own`` is faster than ``other`` on ``MOST`` of the configurations, and by ``least`` in the median."""
    ratio = _pair(result, own, other)
    good = {at: share >= MOST and ratio.median.by_pool[at] >= least for at, share in ratio.faster.by_pool.items()}
    holding = list(good.values())
    detail = (
        f"median ratio {spread(ratio.median)}, lowest pool {min(ratio.median.by_pool.values()):.2f};"
        f" faster on {ratio.faster.mean:.0%} of the configurations"
    )
    numbers = {"median": ratio.median.mean, "faster": ratio.faster.mean}
    return Finding(ratio.faster.mean >= MOST and ratio.median.mean >= least, detail, numbers, holding)


@check
def falls(result: Result, column: str, *names: str, digits: int = 1, unit: str = " s") -> Finding:
    """Check that a column falls from each named series to the next."""
    means = {name: value for name in names if (value := result.value(name, column)) is not None}
    steps: dict[str, Pooled] = {}
    for earlier, later in itertools.pairwise(names):
        step = means[earlier].over(means[later]) if {earlier, later} <= means.keys() else None
        if step is None:
            raise lacking(result, *names)
        steps[f"{earlier} over {later}"] = step
    least = min(steps, key=lambda name: steps[name].mean)
    ranked = sorted(means, key=lambda name: -means[name].mean)
    detail = " > ".join(f"{name} {means[name].mean:.{digits}f}" for name in ranked)
    detail += f"{unit}; smallest step, {least}: {percent(gain(steps[least]))}"
    numbers = {name: value.mean for name, value in means.items()}
    return Finding(together(map(clearly, steps.values())), detail, numbers, in_all(steps.values(), more))


@check
def mostly_faster(result: Result, own: str, other: str) -> Finding:
    """Check that ``own`` is faster than ``other`` on ``MOST`` of the configurations."""
    ratio = _pair(result, own, other)
    share, count = ratio.faster, counted(ratio.configurations, "configuration")
    detail = f"faster on {share.mean:.0%} of {count}, as fast on {ratio.tied:.0%}, slower on {ratio.slower.mean:.0%}"
    numbers = {"faster": share.mean, "slower": ratio.slower.mean}
    return Finding(share.mean >= MOST, detail, numbers, each(share, lambda one: one >= MOST))


@check
def reproduced(result: Result, own: str, other: str | None = None) -> Finding:
    """Check that our value meets the published value, where the paper's values bind."""
    value = next(number for number in result.definition.published if (number.own, number.other) == (own, other))
    ours = _ours(result, value)
    if ours is None:
        raise lacking(result, own, *([other] if other else []))
    assert value.accept is not None
    low, high = value.accept
    digits, unit = (1, " s") if other is None else (2, "")
    detail = f"{spread(ours, digits, unit)}, the paper's {value.value:.{digits}f}{unit}"
    numbers = {"ours": ours.mean, "paper": value.value}
    if not result.binding:
        pool = result.study.pool
        return Finding(None, f"{detail}; a target only on the pool {pool} as the paper ran it", numbers)
    return Finding(low <= ours.mean <= high, detail, numbers, each(ours, lambda one: low <= one <= high))


@check
def same(result: Result, name: str, over: Over, within: float) -> Finding:
    """Check that a series' mean speed-up at later values of the factor is within ``within`` of that at the first."""
    at_first, *later = over.values
    base, says = result.arm(name, **{over.factor: at_first}), result.study.says[over.factor]
    ratios = result.over_factor(name, None, over.factor)
    changes = {at: gain(ratio) for at, ratio in ratios.items() if at != at_first}
    if base is None or not changes:
        raise missing(says(at_first) if base is None else f"{over.factor} above {at_first}")
    largest = max(changes, key=lambda at: abs(changes[at].mean))
    detail = f"largest change {percent(changes[largest])} at {says(largest)}"
    numbers = {f"change {over.factor}={at}": change.mean for at, change in sorted(changes.items())}
    holding = in_all(changes.values(), lambda one: abs(one) < within)
    if absent := [says(at) for at in later if at not in changes]:
        return Finding(None, f"{detail}; not in the results: {', '.join(absent)}", numbers, holding)
    return Finding(together(changes_less(change, within) for change in changes.values()), detail, numbers, holding)


def changes_less(change: Pooled, within: float) -> Shown:
    """Return whether a change is below ``within``, or "not shown" if two standard errors exceed the change and
    ``within``.
    """
    doubt = ERRORS * (change.error or 0.0)
    if abs(change.mean) <= doubt and doubt > within:
        return "not shown"
    return abs(change.mean) < within


@check
def rises(result: Result, own: str, other: str, over: Over) -> Finding:
    """Check that the mean speed-up of ``own`` over ``other`` is larger at the factor's last value than at the first."""
    ratios = result.over_factor(own, other, over.factor)
    if len(ratios) < 2:
        raise NotTested(f"{own} and {other} have not both run with two numbers of {over.noun}")
    few, many = min(ratios), max(ratios)
    growth = ratios[many].over(ratios[few])
    if growth is None:
        raise NotTested(f"no pool ran with both {few} and {many} {over.noun}")
    numbers = {f"ratio at {at}": value.mean for at, value in ratios.items()} | {"growth": growth.mean}
    detail = f"{own} over {other} {over.told(ratios)} {over.noun}; growth {spread(growth)}"
    holds = clearly(growth) is True
    if growth.mean > 1 and not holds:
        detail += f", within {TIE:.0%} or two standard errors of none"
    first, last = over.values[0], over.values[-1]
    if (few, many) != (first, last):
        detail += f"; the claim is of {first} and {last} {over.noun}"
        return Finding(None, detail, numbers, each(growth, more))
    return Finding(holds, detail, numbers, each(growth, more))


@check
def faster_at_all(result: Result, own: str, other: str, over: Over) -> Finding:
    """Check that the mean speed-up of ``own`` is above that of ``other`` at every value of a factor."""
    ratios = result.over_factor(own, other, over.factor)
    if not ratios:
        raise NotTested(f"{own} and {other} have not both run")
    detail = f"{over.told(ratios)} {over.noun}"
    numbers = {f"ratio at {at}": value.mean for at, value in ratios.items()}
    holds, holding = together(map(clearly, ratios.values())), in_all(ratios.values(), more)
    if (absent := over.absent(ratios)) and holds is not False:
        return Finding(None, f"{detail}; not in the results: {', '.join(map(str, absent))}", numbers, holding)
    return Finding(holds, detail, numbers, holding)


@check
def best_at_all(result: Result, own: str, names: Sequence[str], column: str, over: Over) -> Finding:
    """Check that a column of ``own`` is above the column of the other series at every value of a factor."""
    best: dict[Any, str] = {}
    leads: dict[Any, Pooled] = {}
    least: list[Pooled] = []  # lead in every pool over the pool's next best series
    for at in over.values:
        arms = {name: result.arm(name, **{over.factor: at}) for name in names}
        if absent := [f"{name} with {at} {over.noun}" for name, arm in arms.items() if arm is None]:
            raise missing(*absent)
        known = {name: value for name in names if (value := result.value(name, column, **{over.factor: at}))}
        leading = known.pop(own, None)
        rival = max(known, key=lambda name: known[name].mean, default=None)
        lead = None if leading is None or rival is None else leading.over(known[rival])
        if leading is None or rival is None or lead is None:
            raise NotTested(f"no configuration with {at} {over.noun} finished with {' and '.join(names)}")
        leads[at] = lead
        best[at] = own if leading.mean > known[rival].mean else rival
        ratios = {
            seed: min(value / figure.by_pool[seed] for figure in known.values())
            for seed, value in leading.by_pool.items()
        }
        least += filter(None, [pooled(ratios)])
    detail = f"best: {', '.join(f'{name} at {at}' for at, name in best.items())}"
    detail += f"; {own} over the next best {', '.join(spread(lead) for lead in leads.values())}"
    numbers = {f"lead at {at}": lead.mean for at, lead in leads.items()}
    return Finding(together(map(clearly, leads.values())), detail, numbers, in_all(least, more))


@check
def best_between(result: Result, name: str, over: Over, low: float, high: float) -> Finding:
    """Check that a series' mean speed-up is best at one of the factor's values from ``low`` to ``high``."""
    speedups = result.over_factor(name, None, over.factor)
    says, usual = result.study.says[over.factor], result.usual(over.factor)
    if not speedups:
        raise lacking(result, result.study.base, name)
    if len(speedups) < 2:
        raise NotTested(f"{name} has not run with two {over.noun}")
    best = max(speedups, key=lambda at: speedups[at].mean)
    listed = ", ".join(f"{says(at)} {spread(value)}" for at, value in speedups.items() if at != usual)
    detail = f"best {says(best)}; mean speed-up over that with {says(usual)}: {listed}"
    numbers = {f"speedup {says(at)} over {says(usual)}": value.mean for at, value in speedups.items()}
    inside = {at: value for at, value in speedups.items() if low <= at <= high}
    outside = {at: value for at, value in speedups.items() if at not in inside}
    lead, holding = None, list[bool]()
    if inside and outside:
        winner, rival = (max(some, key=lambda at: some[at].mean) for some in (inside, outside))
        lead = inside[winner].over(outside[rival])
        detail += f"; {says(winner)} over {says(rival)}: {percent(gain(lead))}" if lead else ""
        shared = set.intersection(*(set(value.by_pool) for value in speedups.values()))

        def top(some: Mapping[Any, Pooled], seed: int) -> float:
            return max(value.by_pool[seed] for value in some.values())

        holding = [more(top(inside, seed) / top(outside, seed)) for seed in sorted(shared)]
    absent = over.absent(speedups)
    if absent or lead is None:
        lacks = f"not in the results: {', '.join(map(says, absent))}" if absent else "no pool has all of them"
        return Finding(None, f"{detail}; {lacks}", numbers, holding)
    return Finding(clearly(lead), detail, numbers, holding)


@check
def best_variant(result: Result, name: str, inside: Sequence[str], outside: Sequence[str]) -> Finding:
    """Check that the best variant ``inside`` has a larger mean speed-up than the best ``outside``. "" is the series."""
    speedups = {at: result.value(name, "speedup", variant=at) for at in (*inside, *outside)}
    known = {at: value for at, value in speedups.items() if value is not None}
    if absent := speedups.keys() - known.keys():
        raise missing(*sorted(at or name for at in absent))
    winner, rival = (max(some, key=lambda at: known[at].mean) for some in (inside, outside))
    lead = known[winner].over(known[rival])
    if lead is None:
        raise NotTested("no pool has all of them")
    listed = ", ".join(f"{at or name} {spread(value)}" for at, value in known.items())
    detail = f"mean speed-up {listed}; {winner or name} over {rival or name}: {percent(gain(lead))}"
    numbers = {f"speedup {at or name}": value.mean for at, value in known.items()}
    return Finding(clearly(lead), detail, numbers, each(lead, more))


@check
def better_with(result: Result, name: str, over: Over) -> Finding:
    """Check that a series' mean speed-up is larger with the factor's first value than with the second."""
    arms = {value: result.arm(name, **{over.factor: value}) for value in over.values}
    first, second = over.values
    ratio, base = result.ratio(arms[first], arms[second]), result.study.base
    mean = result.gain(ratio)
    if ratio is None or mean is None:
        absent = [f"{name} with the {value} {over.noun}" for value, arm in arms.items() if arm is None]
        raise missing(*absent) if absent else lacking(result, base)
    detail = (
        f"mean speed-up ratio {spread(mean)}; without {base} (mean {result.study.quantity}, {second} over"
        f" {first}) {spread(ratio.level)}; faster on {ratio.faster.mean:.0%} of the configurations"
    )
    numbers = {"ratio": mean.mean, "interarrival": ratio.level.mean, "faster": ratio.faster.mean}
    return Finding(clearly(mean) is True, detail, numbers, each(mean, more))
