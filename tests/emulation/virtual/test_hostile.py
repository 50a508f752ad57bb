"""Messages of a hostile host: every kind that a socket accepts, and the same messages for the same seed."""

from __future__ import annotations

from random import Random

import msgspec
from flows import chain
from run_ids import run_of

from thalweg.emulation.virtual.hostile import DRAWN, KINDS, Hostile
from thalweg.middleware.dataflow import Code
from thalweg.middleware.protocol import messages as m

FLOW = chain(Code("s"), Code("o"), client="client")


def said(seed: int, count: int = 2000) -> list[tuple[object, object, int]]:
    hostile = Hostile("stranger", ("h1", "h2", "client"), run_of("run"), FLOW, Random(seed))
    for index in range(5):
        hostile.overhear(m.Demand(run_of("run"), "s", "o", index, version=1))
    return [hostile.says() for _ in range(count)]


def test_a_hostile_host_sends_every_valid_kind_of_message_and_repeats_overheard_messages() -> None:
    messages = [message for message, _, _ in said(1)]
    assert {type(message) for message in messages} == set(DRAWN) <= set(KINDS)
    for message in messages:
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=type(message)) == message
    demands = [message for message in messages if isinstance(message, m.Demand)]
    again = [
        demand for demand in demands if demand in [m.Demand(run_of("run"), "s", "o", i, version=1) for i in range(5)]
    ]
    assert len(demands) > len(again) > 100
    assert said(1, 50) == said(1, 50) != said(2, 50)


def test_fields_of_a_message_do_not_influence_the_next_message_with_separate_seeds() -> None:
    def kinds(skipped: int) -> list[object]:
        hostile = Hostile("stranger", ("h1", "h2", "client"), run_of("run"), FLOW, Random(1), apart=True)
        messages = []
        for number in range(50):
            messages.append(hostile.says()[0])
            if number == skipped:
                hostile._pool.dice.random()  # as a field more takes
        return messages

    assert kinds(10) == kinds(60)
