"""Application on a host of a testbed, which runs one stream and prints a line of JSON for each event.

``python one_stream.py '{"hosts": {"h1": "tcp://10.77.0.1:7800"}, …}'``; see ``Asked`` for the keys.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

import msgspec

from thalweg import Client, Code, Dataflow, Failover, Node, ThalwegError
from thalweg.middleware.protocol.limits import CoreConfig


class Asked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Request for a chain: a source on ``source``, an operator on ``operator``, and the sink here, at ``listen``.

    ``others``: stand-ins of the source. ``limits``: limits of this client that differ from the defaults.
    """

    hosts: dict[str, str]
    listen: str
    source: str
    operator: str
    partitions: int
    mean_bytes: int
    failover: bool = False
    others: tuple[str, ...] = ()
    limits: dict[str, float] = {}


def flow_of(asked: Asked) -> Dataflow:
    scenes = {"site": 0, "sites": 1, "seed": 1, "mean_bytes": asked.mean_bytes, "relative_deviation": 0.0}
    source = Node("s", "source", (), Code("scenes", {**scenes, "length": asked.partitions}), asked.source)
    if asked.others:
        source = msgspec.structs.replace(source, stand_ins=asked.others)
    return Dataflow((source, Node("o", "operator", ("s",), Code("running")), Node("t", "sink", ("o",))))


def say(**what: Any) -> None:
    print(json.dumps({"at_s": time.monotonic(), **what}), flush=True)


def main(asked: Asked) -> None:
    logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(message)s")
    with Client(asked.hosts, listen=asked.listen, insecure=True, limits=CoreConfig(**asked.limits)) as client:
        failover = Failover() if asked.failover else None
        run = client.run(flow_of(asked), {"o": asked.operator}, failover=failover)
        say(began=run.id)
        try:
            for partition in run:
                say(index=partition.index)
        except ThalwegError as error:
            say(error=str(error))


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Asked))
