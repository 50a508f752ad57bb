"""Which of the paper's claims hold, in numbers. How each is decided is said at the claim itself (``Claim.how``)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from thalweg.experiments.papers.ranganathan1998.definitions import (
    CONCLUSIONS,
    FIGURES,
    KS,
    PAPER_POOL,
    PERIODS_S,
    PLACEMENTS,
    SERVERS,
    TIE,
    Claim,
    Comparison,
    Decision,
    FigureResult,
    Pooled,
    Published,
    Ratio,
    Verdict,
    minutes,
    pooled,
)
from thalweg.experiments.records.analysis import BASELINE

MOST = 0.9  # "except in a few cases"
LARGE = 2.0  # "large gains"
SUBSTANTIAL = 1.1  # the paper's local gains 12% on one-shot by the means and counts as substantial
SAME = 0.05  # "no significant difference"
ERRORS = 2.0  # standard errors that a difference must exceed


_Shown = bool | Literal["not shown"]


class _Finding:
    """What a claim's check comes to, before it is put into words: None for ``holds`` means not tested."""

    def __init__(
        self, holds: _Shown | None, detail: str, numbers: Mapping[str, float] = {}, each: Sequence[bool] = ()
    ) -> None:  # fmt: skip
        self.holds, self.detail, self.numbers, self.each = holds, detail, dict(numbers), list(each)


def judge(result: FigureResult) -> list[Verdict]:
    """A verdict on every claim that the paper makes of this figure."""
    return [_verdict(result, claim, _CHECKS[claim.name](result)) for claim in FIGURES[result.figure].claims]


def compare(result: FigureResult) -> list[Comparison]:
    """The paper's published values beside ours; what to accept only on its own pool, network and workload."""
    made = []
    for value in FIGURES[result.figure].published:
        ours = _ours(result, value)
        ratio = None if ours is None else ours.mean / value.value
        accept = value.accept if _binding(result) else None
        within = None if ours is None or accept is None else accept[0] <= ours.mean <= accept[1]
        made.append(
            Comparison(
                name=value.own if value.other is None else f"{value.own} over {value.other}",
                paper=value.value,
                unit="s" if value.other is None else "",
                ours=ours,
                ratio=ratio,
                accept=accept,
                within=within,
            )
        )
    return made


def conclude(results: Iterable[FigureResult]) -> list[Verdict]:
    """The paper's five conclusions (section 7) from the verdicts of any figures, for every pool's name.

    A conclusion holds when every claim it rests on does, and does not when one of them does not; else it is not tested
    when one of them is not.
    """
    judged: dict[str, dict[tuple[str, str], Verdict]] = {}
    for result in results:
        for verdict in result.verdicts:
            judged.setdefault(result.pool, {})[verdict.figure, verdict.claim] = verdict
    wanted: dict[int, list[tuple[str, str]]] = {}
    for figure in FIGURES.values():
        for claim in figure.claims:
            if claim.conclusion is not None:
                wanted.setdefault(claim.conclusion, []).append((figure.number, claim.name))
    made = []
    for pool, verdicts in judged.items():
        for number, text in CONCLUSIONS.items():
            parts = [(f"Fig. {key[0]} {key[1]}", verdicts.get(key)) for key in wanted[number]]
            states: list[Decision] = [part.verdict if part else "not tested" for _, part in parts]
            made.append(
                Verdict(
                    figure="conclusions",
                    pool=pool,
                    claim=f"conclusion-{number}",
                    text=text,
                    how="holds when every claim that it rests on does, does not when one of them does not",
                    verdict=_all(states),
                    detail=", ".join(f"{name}: {state}" for (name, _), state in zip(parts, states, strict=True)),
                    conclusion=number,
                )
            )
    return made


def _all(states: Sequence[Decision]) -> Decision:
    order: tuple[Decision, ...] = ("does not hold", "not tested", "not shown")
    return next((state for state in order if state in states), "holds")


_DECISIONS: Mapping[_Shown | None, Decision] = {
    None: "not tested", "not shown": "not shown", True: "holds", False: "does not hold",
}  # fmt: skip


def _verdict(result: FigureResult, claim: Claim, found: _Finding) -> Verdict:
    return Verdict(
        figure=result.figure,
        pool=result.pool,
        claim=claim.name,
        text=claim.text,
        how=claim.how,
        verdict=_DECISIONS[found.holds],
        detail=found.detail,
        numbers=found.numbers,
        pools_holding=sum(found.each) if found.each else None,
        pools=len(found.each) or result.pools,
        conclusion=claim.conclusion,
    )


# --- the checks -------------------------------------------------------------------------------------


def _binding(result: FigureResult) -> bool:
    """Whether the paper's values are a target for these runs."""
    return result.comparable and result.pool == PAPER_POOL


def _missing(*names: str) -> _Finding:
    return _Finding(None, f"not in the results: {', '.join(dict.fromkeys(names))}")


def _lacking(result: FigureResult, *names: str) -> _Finding:
    """Which of these placements are not there, or that no configuration finished with all of them."""
    absent = [name for name in names if result.arm(name) is None]
    return _missing(*absent) if absent else _Finding(None, f"no configuration finished with {' and '.join(names)}")


def _clearly(ratio: Pooled) -> _Shown:
    """Whether a ratio is above 1 by more than ``TIE`` and two standard errors between pools, or as far below."""
    margin = max(TIE, ERRORS * (ratio.error or 0.0))
    return ratio.mean > 1 if abs(ratio.mean - 1) > margin else "not shown"


def _above(ratio: Pooled) -> bool:
    return _clearly(ratio) is True


def _more(ratio: float) -> bool:
    """The same of a single pool, which has no standard error."""
    return ratio > 1 + TIE


def _together(parts: Iterable[_Shown]) -> _Shown:
    """False when one is, True when all are."""
    found = list(parts)
    return False if False in found else "not shown" if "not shown" in found else True


def _over(own: Pooled, other: Pooled) -> Pooled | None:
    """The ratio of two figures, pool by pool."""
    return pooled({seed: value / other.by_pool[seed] for seed, value in own.by_pool.items() if seed in other.by_pool})


def _each(value: Pooled, good: Callable[[float], bool]) -> list[bool]:
    return [good(one) for one in value.by_pool.values()]


def _both(*parts: Mapping[int, bool]) -> list[bool]:
    """In which pools all hold, of those that all have."""
    shared = set.intersection(*(set(part) for part in parts)) if parts else set()
    return [all(part[seed] for part in parts) for seed in sorted(shared)]


def _good(value: Pooled, good: Callable[[float], bool]) -> dict[int, bool]:
    return {seed: good(one) for seed, one in value.by_pool.items()}


def spread(value: Pooled, digits: int = 2, unit: str = "") -> str:
    """Mean ± standard deviation between pools, or the mean alone of one pool."""
    mean = f"{value.mean:.{digits}f}"
    return mean + unit if value.deviation is None else f"{mean} ± {value.deviation:.{digits}f}{unit}"


def _ours(result: FigureResult, value: Published) -> Pooled | None:
    own = result.arm(value.own)
    if own is None:
        return None
    if value.other is None:
        return result.row(own).interarrival_s
    ratio = result.ratio(own, result.arm(value.other))
    return None if ratio is None else ratio.median


def _relocation_helps(result: FigureResult) -> _Finding:
    holds: list[bool] = []
    numbers: dict[str, float] = {}
    pools: list[dict[int, bool]] = []
    told: list[str] = []
    lacking = False
    for name in PLACEMENTS[1:]:
        arm = result.arm(name)
        row = result.row(arm) if arm else None
        if row is None or row.speedup is None or row.faster is None:
            lacking = True
            continue
        holds.append(_above(row.speedup) and row.faster.mean >= MOST)
        most = _good(row.faster, lambda share: share >= MOST)
        pools.append({seed: most[seed] and _more(speedup) for seed, speedup in row.speedup.by_pool.items()})
        numbers |= {f"speedup {name}": row.speedup.mean, f"faster {name}": row.faster.mean}
        told.append(f"{name} {spread(row.speedup)} (faster on {row.faster.mean:.0%})")
    if lacking:
        return _lacking(result, *PLACEMENTS)
    return _Finding(all(holds), f"mean speed-up {', '.join(told)}", numbers, _both(*pools))


def _one_shot_gains(result: FigureResult) -> _Finding:
    arm = result.arm("one-shot")
    value = result.row(arm).median_speedup if arm else None
    if value is None:
        return _lacking(result, BASELINE, "one-shot")
    holds = value.mean >= LARGE
    return _Finding(
        holds, f"median speed-up {spread(value)}", {"median speedup": value.mean}, _each(value, lambda x: x >= LARGE)
    )


def _ratio_of(result: FigureResult, own: str, other: str) -> Ratio | _Finding:
    arms = {name: result.arm(name) for name in (own, other)}
    ratio = result.ratio(arms[own], arms[other]) if all(arms.values()) else None
    if ratio is None:
        return _lacking(result, own, other)
    return ratio


def _adds(name: str) -> Callable[[FigureResult], _Finding]:
    def check(result: FigureResult) -> _Finding:
        ratio = _ratio_of(result, name, "one-shot")
        if isinstance(ratio, _Finding):
            return ratio
        each = _each(ratio.median, lambda x: x > 1)
        detail = (
            f"median ratio {spread(ratio.median)}, lowest pool {min(ratio.median.by_pool.values()):.2f};"
            f" faster on {ratio.faster.mean:.0%} of the configurations"
        )
        numbers = {"median": ratio.median.mean, "faster": ratio.faster.mean}
        return _Finding(all(each) and ratio.median.mean >= SUBSTANTIAL, detail, numbers, each)

    return check


def _order(result: FigureResult) -> _Finding:
    arms = {name: result.arm(name) for name in PLACEMENTS}
    shared = {name: result.row(arm).shared_s for name, arm in arms.items() if arm is not None}
    means = {name: value for name, value in shared.items() if value is not None}
    steps: dict[str, Pooled] = {}
    for earlier, later in itertools.pairwise(PLACEMENTS):
        step = _over(means[earlier], means[later]) if {earlier, later} <= means.keys() else None
        if step is None:
            return _lacking(result, *PLACEMENTS)
        steps[f"{earlier} over {later}"] = step
    ranked = sorted(means, key=lambda name: -means[name].mean)
    least = min(steps, key=lambda name: steps[name].mean)
    detail = " > ".join(f"{name} {means[name].mean:.1f}" for name in ranked)
    detail += f" s; smallest step, {least}: {_percent(_shifted(steps[least]))}"
    return _Finding(
        _together(map(_clearly, steps.values())),
        detail,
        {name: value.mean for name, value in means.items()},
        _both(*(_good(step, _more) for step in steps.values())),
    )


def _global_beats_local(result: FigureResult) -> _Finding:
    ratio = _ratio_of(result, "global", "local")
    if isinstance(ratio, _Finding):
        return ratio
    share = ratio.faster
    count = f"{ratio.configurations} configuration{'s' * (ratio.configurations != 1)}"
    return _Finding(
        share.mean >= MOST,
        f"faster on {share.mean:.0%} of {count}, as fast on {ratio.tied:.0%}, slower on {ratio.slower.mean:.0%}",
        {"faster": share.mean, "slower": ratio.slower.mean},
        _each(share, lambda x: x >= MOST),
    )


def _target(own: str, other: str | None = None) -> Callable[[FigureResult], _Finding]:
    def check(result: FigureResult) -> _Finding:
        value = next(one for one in FIGURES[result.figure].published if (one.own, one.other) == (own, other))
        ours = _ours(result, value)
        if ours is None or value.accept is None:
            return _lacking(result, own, *([other] if other else []))
        low, high = value.accept
        digits, unit = (1, " s") if other is None else (2, "")
        detail = f"{spread(ours, digits, unit)}, the paper's {value.value:.{digits}f}{unit}"
        numbers = {"ours": ours.mean, "paper": value.value}
        if not _binding(result):
            return _Finding(None, f"{detail}; a target only on the pool {PAPER_POOL} as the paper ran it", numbers)
        return _Finding(low <= ours.mean <= high, detail, numbers, _each(ours, lambda x: low <= x <= high))

    return check


def _k_does_not_matter(result: FigureResult) -> _Finding:
    base = result.arm("local", k=0)
    changes: dict[int, Pooled] = {}
    for row in result.of("local"):
        ratio = result.ratio(row.arm, base)
        if row.arm.k and ratio is not None and ratio.mean is not None:
            changes[row.arm.k] = _shifted(ratio.mean)
    absent = [f"k = {k}" for k in KS if k and k not in changes]
    if base is None or not changes:
        return _missing("k = 0" if base is None else "k above 0")
    largest = max(changes, key=lambda k: abs(changes[k].mean))
    holds = _together(map(_same, changes.values()))
    detail = f"largest change {_percent(changes[largest])} at k = {largest}"
    numbers = {f"change k={k}": one.mean for k, one in sorted(changes.items())}
    each = _both(*(_good(one, lambda x: abs(x) < SAME) for one in changes.values()))
    if absent:
        return _Finding(None, f"{detail}; not in the results: {', '.join(absent)}", numbers, each)
    return _Finding(holds, detail, numbers, each)


def _same(change: Pooled) -> _Shown:
    """Whether a change is below ``SAME``; not shown when it may be none at all, yet cannot be told from as much."""
    doubt = ERRORS * (change.error or 0.0)
    if abs(change.mean) <= doubt and doubt > SAME:
        return "not shown"
    return abs(change.mean) < SAME


def _shifted(value: Pooled) -> Pooled:
    """A ratio as a relative change."""
    made = pooled({seed: one - 1 for seed, one in value.by_pool.items()})
    assert made is not None
    return made


def _percent(change: Pooled) -> str:
    if change.error is None:
        return f"{change.mean:+.1%}"
    return f"{change.mean:+.1%} (standard error {change.error:.1%})"


def over_servers(result: FigureResult, own: str, other: str) -> dict[int, Pooled]:
    """By the number of servers, ``own``'s mean speed-up over ``other``'s on the same configurations."""
    found: dict[int, Pooled] = {}
    for row in result.of(own):
        servers = row.arm.servers
        ratio = result.ratio(result.arm(own, servers=servers), result.arm(other, servers=servers))
        if ratio is not None and ratio.mean is not None:
            found[servers] = ratio.mean
    return dict(sorted(found.items()))


def _scales(other: str) -> Callable[[FigureResult], _Finding]:
    def check(result: FigureResult) -> _Finding:
        ratios = over_servers(result, "global", other)
        if len(ratios) < 2:
            return _Finding(None, f"global and {other} have not both run with two numbers of servers")
        few, many = min(ratios), max(ratios)
        growth = pooled(
            {seed: value / ratios[few].by_pool[seed] for seed, value in ratios[many].by_pool.items()
             if seed in ratios[few].by_pool}
        )  # fmt: skip
        if growth is None:
            return _Finding(None, f"no pool ran with both {few} and {many} servers")
        numbers = {f"ratio at {servers}": value.mean for servers, value in ratios.items()} | {"growth": growth.mean}
        told = ", ".join(f"{spread(value)} at {servers}" for servers, value in ratios.items())
        detail = f"global over {other} {told} servers; growth {spread(growth)}"
        each = _each(growth, _more)
        if growth.mean > 1 and not _above(growth):
            detail += f", within {TIE:.0%} or two standard errors of none"
        if (few, many) != (SERVERS[0], SERVERS[-1]):
            return _Finding(None, f"{detail}; the claim is of {SERVERS[0]} and {SERVERS[-1]} servers", numbers, each)
        return _Finding(_above(growth), detail, numbers, each)

    return check


def _global_best_to_32(result: FigureResult) -> _Finding:
    ratios = over_servers(result, "global", "local")
    if not ratios:
        return _Finding(None, "global and local have not both run")
    told = ", ".join(f"{spread(value)} at {servers}" for servers, value in ratios.items())
    numbers = {f"ratio at {servers}": value.mean for servers, value in ratios.items()}
    each = _both(*(_good(value, _more) for value in ratios.values()))
    absent = [str(servers) for servers in SERVERS if servers not in ratios]
    holds = _together(map(_clearly, ratios.values()))
    if absent and holds is not False:
        return _Finding(None, f"{told} servers; not in the results: {', '.join(absent)}", numbers, each)
    return _Finding(holds, f"{told} servers", numbers, each)


def _global_best_of_all(result: FigureResult) -> _Finding:
    best: dict[int, str] = {}
    leads: dict[int, Pooled] = {}
    each: list[dict[int, bool]] = []
    for servers in SERVERS:
        arms = {name: result.arm(name, servers=servers) for name in PLACEMENTS}
        absent = [f"{name} with {servers} servers" for name, arm in arms.items() if arm is None]
        if absent:
            return _missing(*absent)
        shared = {name: result.row(arm).shared_speedup for name, arm in arms.items() if arm is not None}
        known = {name: value for name, value in shared.items() if value is not None}
        leading = known.pop("global", None)
        next_best = max(known, key=lambda name: known[name].mean, default=None)
        lead = None if leading is None or next_best is None else _over(leading, known[next_best])
        if leading is None or next_best is None or lead is None:
            names = " and ".join(PLACEMENTS)
            return _Finding(None, f"no configuration with {servers} servers finished with {names}")
        leads[servers] = lead
        best[servers] = "global" if leading.mean > known[next_best].mean else next_best
        each.append(
            {seed: all(_more(value / one.by_pool[seed]) for one in known.values())
             for seed, value in leading.by_pool.items()}
        )  # fmt: skip
    told = ", ".join(f"{name} at {servers}" for servers, name in best.items())
    detail = f"best: {told}; global over the next best {', '.join(spread(lead) for lead in leads.values())}"
    numbers = {f"lead at {servers}": lead.mean for servers, lead in leads.items()}
    return _Finding(_together(map(_clearly, leads.values())), detail, numbers, _both(*each))


def over_periods(result: FigureResult, placement: str = "global") -> dict[float, Pooled]:
    """By a placement's period, its mean speed-up over that with the usual one, on the same configurations."""
    base = result.arm(placement)
    of_base = result.row(base).speedup if base else None
    found: dict[float, Pooled] = {}
    for row in result.of(placement):
        ratio = result.ratio(row.arm, base)
        mean = ratio.mean if ratio else None
        if row.arm == base and of_base is not None:
            mean = pooled(dict.fromkeys(of_base.by_pool, 1.0))
        if row.arm.period_s is not None and mean is not None:
            found[row.arm.period_s] = mean
    return dict(sorted(found.items()))


def _five_to_ten_minutes(result: FigureResult) -> _Finding:
    speedups = over_periods(result)
    if not speedups:
        return _lacking(result, BASELINE, "global")
    if len(speedups) < 2:
        return _Finding(None, "global has not run with two periods")
    best = max(speedups, key=lambda period_s: speedups[period_s].mean)
    usual = minutes(result.period_s)
    told = ", ".join(f"{minutes(at_s)} {spread(value)}" for at_s, value in speedups.items() if at_s != result.period_s)
    detail = f"best {minutes(best)}; mean speed-up over that with {usual}: {told}"
    numbers = {f"speedup {minutes(at_s)} over {usual}": value.mean for at_s, value in speedups.items()}
    inside = {period_s: value for period_s, value in speedups.items() if 300 <= period_s <= 600}
    outside = {period_s: value for period_s, value in speedups.items() if period_s not in inside}
    absent = [minutes(period_s) for period_s in PERIODS_S if period_s not in speedups]
    lead, each = None, []
    if inside and outside:
        winner, rival = (max(some, key=lambda p: some[p].mean) for some in (inside, outside))
        lead = _over(inside[winner], outside[rival])
        detail += f"; {minutes(winner)} over {minutes(rival)}: {_percent(_shifted(lead))}" if lead else ""
        shared = set.intersection(*(set(value.by_pool) for value in speedups.values()))
        each = [_more(_best(inside, seed) / _best(outside, seed)) for seed in sorted(shared)]
    if absent or lead is None:
        lacking = f"not in the results: {', '.join(absent)}" if absent else "no pool has all of them"
        return _Finding(None, f"{detail}; {lacking}", numbers, each)
    return _Finding(_clearly(lead), detail, numbers, each)


def _best(values: Mapping[float, Pooled], seed: int) -> float:
    return max(value.by_pool[seed] for value in values.values())


def _binary(name: str) -> Callable[[FigureResult], _Finding]:
    def check(result: FigureResult) -> _Finding:
        arms = {tree: result.arm(name, tree=tree) for tree in ("binary", "left-deep")}
        ratio = result.ratio(arms["binary"], arms["left-deep"])
        if ratio is None or ratio.mean is None:
            lacking = [f"{name} with the {tree} tree" for tree, arm in arms.items() if arm is None]
            return _missing(*lacking) if lacking else _lacking(result, BASELINE)
        detail = (
            f"mean speed-up ratio {spread(ratio.mean)}; without download-all (mean inter-arrival time, left-deep over"
            f" binary) {spread(ratio.interarrival)}; faster on {ratio.faster.mean:.0%} of the configurations"
        )
        numbers = {"ratio": ratio.mean.mean, "interarrival": ratio.interarrival.mean, "faster": ratio.faster.mean}
        return _Finding(_above(ratio.mean), detail, numbers, _each(ratio.mean, _more))

    return check


_CHECKS: Mapping[str, Callable[[FigureResult], _Finding]] = {
    "relocation-helps": _relocation_helps,
    "one-shot-gains": _one_shot_gains,
    "global-adds": _adds("global"),
    "local-adds": _adds("local"),
    "order": _order,
    "global-beats-local": _global_beats_local,
    "level-download-all": _target(BASELINE),
    "median-one-shot": _target("global", "one-shot"),
    "median-local": _target("global", "local"),
    "k-does-not-matter": _k_does_not_matter,
    "scales-over-one-shot": _scales("one-shot"),
    "scales-over-local": _scales("local"),
    "global-best-to-32": _global_best_to_32,
    "global-best-of-all": _global_best_of_all,
    "five-to-ten-minutes": _five_to_ten_minutes,
    "binary-global": _binary("global"),
    "binary-local": _binary("local"),
}
