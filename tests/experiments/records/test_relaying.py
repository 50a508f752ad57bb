"""Partitions that hosts relayed, counted route by route."""

from __future__ import annotations

from thalweg.experiments.records.log import Detail, Row
from thalweg.experiments.records.relaying import relayings


def test_relayed_partitions_are_counted_by_the_list_of_relays() -> None:
    def row(host: str, peer: str, relays: tuple[str, ...]) -> Row:
        detail = Detail(via="fast", source="h1", target="client", relays=relays)
        return Row("p", host, 0.0, 0.0, "relayed", "s", peer, 0, 10, 0.1, None, detail)

    forth, back = ("h2", "h3"), ("h3", "h2")
    rows = [row("h2", "h3", forth), row("h3", "client", forth), row("h3", "h2", back), row("h2", "client", back)]
    rows += [row("h2", "client", ("h2",))] * 2
    counts = [(relaying.relays, relaying.partitions, relaying.size_bytes) for relaying in relayings(rows)]
    assert counts == [(("h2",), 2, 20), (forth, 1, 10), (back, 1, 10)]
