"""What hosts passed on for others, told route by route."""

from __future__ import annotations

from thalweg.experiments.records.log import Detail, Row
from thalweg.experiments.records.relaying import relayings


def test_what_went_over_other_relays_is_told_apart() -> None:
    def row(host: str, peer: str, relays: tuple[str, ...]) -> Row:
        detail = Detail(via="fast", source="h1", target="client", relays=relays)
        return Row("p", host, 0.0, 0.0, "relayed", "s", peer, 0, 10, 0.1, None, detail)

    there, back = ("h2", "h3"), ("h3", "h2")
    rows = [row("h2", "h3", there), row("h3", "client", there), row("h3", "h2", back), row("h2", "client", back)]
    rows += [row("h2", "client", ("h2",))] * 2
    told = [(each.relays, each.partitions, each.size_bytes) for each in relayings(rows)]
    assert told == [(("h2",), 2, 20), (there, 1, 10), (back, 1, 10)]
