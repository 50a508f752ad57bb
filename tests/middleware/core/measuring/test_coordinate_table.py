"""Coordinates that hosts compute from measurements, report to each other, and give to planners."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from playbook import ANY, Playbook, got
from run_ids import R, fired, run_of
from virtual_runs import plane, shaped

from thalweg.emulation.virtual.config import WorldConfig
from thalweg.emulation.virtual.world import World
from thalweg.middleware.core.measuring.coordinate_search import ENOUGH
from thalweg.middleware.core.measuring.coordinate_table import LINKS, MOST, SAMPLES, as_message
from thalweg.middleware.dataflow import Node
from thalweg.middleware.network.coordinates import together
from thalweg.middleware.network.figures import HostFigures
from thalweg.middleware.network.place import FARTHEST_S, Place, neighbours
from thalweg.middleware.network.view import Link
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import frames
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.limits import PROBE_PATIENCE_S, CoreConfig, MonitorConfig
from thalweg.middleware.shell.node_code import NodeCode

AT = Place((0.1, 0.0, 0.0), 0.01, 0.5, 7, HostFigures(2.0, 4, 0.25, 10**9, 10**8))


def told(**changes: Any) -> m.PlaceReport:
    return as_message(msgspec.structs.replace(AT, **changes))


def no_code(node: Node) -> NodeCode:
    raise AssertionError(node.name)


@pytest.fixture
def book(make_book: Callable[..., Playbook], install: m.Install) -> Playbook:
    book = make_book("h1")
    book << got("client", msgspec.structs.replace(install, news=("coordinates",))) >> ANY
    return book


def sounded(book: Playbook, to: str) -> m.Echo:
    """Have h1 sound host ``to``, and return the sent echo."""
    book.core.links.latency_prober.under_way.clear()
    for _ in range(4):
        book << fired("sound r") >> ANY
        echoes = [message for message in book.sent(to) if isinstance(message, m.Echo)]
        if echoes:
            return echoes[0]
    raise AssertionError(f"{to} was not sounded")


def test_only_an_answer_to_a_sounding_moves_the_coordinates_of_the_host(book: Playbook) -> None:
    places = book.core.links.coordinate_table
    before = places.own
    echo = sounded(book, "client")
    assert echo.places["h1"] == as_message(before)
    answer = m.Echo(R, echo.number, True, places={"client": told()})
    book << got("client", m.Echo(R, 99, True, places={"client": told()})) >> ANY
    book << got("h2", m.Echo(R, 99, places={"h2": told()})) >> ANY
    assert places.own == before
    book.at(0.4) << got("client", answer) >> ANY
    assert places.own == before.measured(AT, 0.2)  # half of the round trip
    assert (places.own.count, places.reported["client"]) == (1, AT)


def test_the_20th_percentile_of_the_last_samples_of_a_link_counts(book: Playbook) -> None:
    places, place = book.core.links.coordinate_table, book.core.links.coordinate_table.own
    places.reported["h2"] = AT
    for number in range(1, 26):
        samples_s = [1.0 if late % 2 else 0.2 + late / 1000 for late in range(number)]
        places.measured("h2", samples_s[-1])
        last = sorted(samples_s[-SAMPLES:])
        place = place.measured(AT, last[max(0, math.ceil(0.2 * len(last)) - 1)])
    assert places.own == place


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"at": (0.1, math.nan, 0.0)}, "not finite"),
        ({"at": (0.1, math.inf, 0.0)}, "not finite"),
        ({"at": (0.1, 0.0)}, "2 dimensions instead of 3"),
        ({"height_s": -1.0}, "not finite, or farther than an hour"),
        ({"height_s": math.nan}, "not finite"),
        ({"error": math.nan}, "an error of nan"),
    ],
)
def test_odd_coordinates_are_dropped_and_recorded(book: Playbook, changes: dict[str, Any], says: str) -> None:
    echo = frames.decode_control(frames.encode(m.Echo(R, 1, places={"h2": told(**changes), "client": told()})))
    book << got("h2", echo) >> ANY
    assert book.core.links.coordinate_table.reported == {"client": AT}
    (record,) = (record for record in book.only(e.Record) if record.kind == "unexpected")
    assert record.fields["peer"] == "h2" and says in record.fields["detail"]["what"]
    before = book.core.links.coordinate_table.own
    book << got("h2", m.ProbeResult(run_of("probe"), place=told(**changes))) >> ANY
    assert not list(book.only(e.Report)) and book.core.links.coordinate_table.own == before


def test_coordinates_from_the_host_itself_count_more_than_reports_of_peers(book: Playbook) -> None:
    places, far = book.core.links.coordinate_table, {"at": (9.0, 9.0, 9.0)}

    def says(sender: str, of: str, **changes: Any) -> None:
        book << got(sender, m.Echo(R, 1, places={of: told(**changes)})) >> ANY

    says("h2", "client", count=5)
    says("h2", "client", count=4, **far)  # older
    assert places.reported["client"].count == 5
    says("client", "client", count=2)
    says("h2", "client", count=9, **far)
    assert places.reported["client"] == msgspec.structs.replace(AT, count=2)
    book.at(100.0)
    says("h2", "client", count=9, **far)  # it has said nothing for long
    assert places.reported["client"].count == 9
    says("h2", "h1", count=99, **far)
    says("h2", "stranger", count=99)
    assert set(places.known(["h1", "h2", "client", "h3"])) == {"h1", "client"}


def test_memory_and_messages_are_bounded(book: Playbook) -> None:
    places = book.core.links.coordinate_table
    for number in range(MOST + 50):
        places.handle_reports(f"x{number}", {f"x{number}": told()}, ())
        places.measured(f"x{number}", 0.1)
    assert (len(places.reported), len(places._said_s), len(places._samples)) == (MOST, MOST, LINKS)
    echo = sounded(book, "client")
    assert len(echo.places) == m.MAX_PLACES
    assert len(frames.encode(echo)) < 80 * m.MAX_PLACES + 100  # bytes
    names = set().union(*(places.news() for _ in range(300)))
    assert len(names) > MOST  # all in turn
    places.forget()
    assert (places.own.count, places.reported) == (0, {})


def test_thousands_of_false_requesters_do_not_block_a_real_request(book: Playbook) -> None:
    nowhere = [m.Peer(f"x{number}", "tcp://x:1", "tcp://x:2") for number in range(MOST + 1)]
    for peer in nowhere:
        book << got(peer.name, m.ProbeRequest(run_of("probe"), (peer,), peer, "coordinates")) >> ANY
    finding, h2 = book.core.links.coordinate_search, m.Peer("h2", "tcp://h2:1", "tcp://h2:2")
    client = m.Peer("client", "tcp://c:1", "tcp://c:2")
    book << got("client", m.ProbeRequest(run_of("probe"), (h2,), client, "coordinates")) >> ANY
    assert (len(finding.waiting), len(finding.left)) == (MOST, MOST)
    book << got("client", m.ProbeRequest(run_of("probe"), (h2,), client, "coordinates")) >> ANY
    assert [type(message) for message in book.sent("client")] == [m.ProbeResult]
    assert "h2" in finding.left


def test_a_sounding_that_is_answered_too_late_continues_only_after_a_new_request(book: Playbook) -> None:
    h2, stranger = m.Peer("h2", "tcp://h2:1", "tcp://h2:2"), m.Peer("x", "tcp://x:1", "tcp://x:2")
    patience_s = PROBE_PATIENCE_S
    book << got("x", m.ProbeRequest(run_of("probe"), (h2,), stranger, "coordinates")) >> ANY
    (asked,) = book.sent("h2")
    book.at(1.01 * patience_s) << got("h2", m.Echo(run_of("probe"), asked.number, back=True)) >> []
    assert (book.core.links.latency_prober.own, book.core.links.latency_prober.under_way) == ({}, {})
    book << got("x", m.ProbeRequest(run_of("probe"), (h2,), stranger, "coordinates")) >> ANY
    (asked,) = book.sent("h2")
    book << got("h2", m.Echo(run_of("probe"), asked.number, back=True)) >> ANY
    assert [type(message) for message in book.sent("h2")] == [m.Echo]


def test_a_false_peer_cannot_draw_a_host_to_implausible_coordinates() -> None:
    far, place = Place((FARTHEST_S, 0.0, 0.0), FARTHEST_S, 0.0), Place.first("h1")
    for _ in range(100):
        place = place.measured(far, 0.01)
        assert not place.odd(3)


def test_hosts_find_coordinates_before_a_run_despite_a_silent_host() -> None:
    hosts, latency_s = plane(40)
    world = World(hosts, shaped(hosts, latency_s, dead={"h3"}), no_code, WorldConfig("independent", startup_s=0.0))
    places = world.find([Link(host, neighbour) for host in hosts for neighbour in neighbours(host, hosts)], 20.0)
    assert set(places) == set(hosts) - {"h3"}
    assert all(place.count >= ENOUGH for place in places.values())
    known = [number for number, host in enumerate(hosts) if host in places]
    away = together([places[hosts[number]] for number in known]).distances_s(slice(None), slice(None))
    truth, pairs = latency_s[np.ix_(known, known)], np.triu_indices(len(known), 1)
    assert float(np.median(np.abs(away - truth)[pairs] / truth[pairs])) < 0.1
    begun_s, events = world.now, world.events
    again = world.find([Link("h1", neighbour) for neighbour in neighbours("h1", hosts)], 60.0)
    assert again["h1"] == world.hosts["h1"].core.links.coordinate_table.own  # it knows
    assert world.now - begun_s < 1 and world.events - events < 10


def test_coordinates_have_the_configured_number_of_dimensions(make_book: Callable[..., Playbook]) -> None:
    book = make_book("h1", CoreConfig(monitor=MonitorConfig(dimensions=2)))
    assert len(book.core.links.coordinate_table.own.at) == 2
