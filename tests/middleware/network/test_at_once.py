"""Links that are measured at once: the end of the wait, and the assumed rate of links without an answer."""

from __future__ import annotations

import math

import pytest

from thalweg.middleware.dataflow import Code, complete_binary_tree
from thalweg.middleware.network.at_once import AtOnce, late_from_s, slowest
from thalweg.middleware.network.view import LinkEstimate, LinksNeeded, NetworkView, links_between
from thalweg.middleware.planning import Plan, Task
from thalweg.middleware.planning.asking import plan_probing
from thalweg.middleware.planning.costs.critical_path import CriticalPath
from thalweg.middleware.planning.problem.hints import Hints


def test_the_wait_ends_after_twice_the_time_of_three_quarters_of_the_links() -> None:
    assert late_from_s([], 4) == late_from_s([1.0, 2.0], 4) == math.inf
    assert late_from_s([1.0, 2.0, 5.0], 4) == late_from_s([1.0, 2.0, 5.0, 9.0], 4) == 10.0


def test_a_link_without_an_answer_counts_as_the_slowest_link_that_answered() -> None:
    assert slowest([LinkEstimate(5.0), LinkEstimate(3.0), LinkEstimate(0.0)]) == LinkEstimate(3.0, count=0)
    assert slowest([]).rate_bps == 0.0


@pytest.mark.parametrize("answered", [0, 3])
def test_a_planner_gets_the_assumed_rates_of_late_links(answered: int) -> None:
    hosts = ("h1", "h2", "client")
    flow = complete_binary_tree(dict.fromkeys(hosts[:2], Code("x")), Code("x"), "client")

    class Curious:
        def plan(self, task: Task, model: object) -> Plan:
            if unknown := [link for link in links_between(hosts) if task.view.rate_bps(*link) is None]:
                raise LinksNeeded(unknown, at_once=True)
            return Plan({"op0": "h1", "s1": "h1", "s2": "h2", "sink": "client"}, task.dataflow)

    search = plan_probing(Curious(), Task((flow,), hosts, NetworkView({}), Hints({})), CriticalPath())
    wanted = next(search)
    assert isinstance(wanted, AtOnce)
    answers = {link: LinkEstimate(1e6 + number) for number, link in enumerate(sorted(wanted)[:answered])}
    with pytest.raises(StopIteration) as done:
        search.send(answers)
    plan = done.value.value
    rates = {plan.view.rate_bps(*link) for link in wanted - answers.keys()}
    assert rates == {1e6 if answered else 0.0}
    assert len(plan.unanswered) == (0 if answered else len(wanted))
