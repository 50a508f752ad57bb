"""Transfers of partitions to hosts with several consumers, which share a transfer (R3 of ``outputs``)."""

from __future__ import annotations

import msgspec

from thalweg.middleware.protocol import messages as m


class SharedTransfer(msgspec.Struct):
    """Transfer of a partition to ``host`` for a first consumer, and the further ``consumers`` with a share in it."""

    host: str
    consumers: list[str] = []


class SharedTransfers:
    """Transfers under way of a run, with the sharing consumers. No other part writes the table."""

    __slots__ = ("under_way",)

    def __init__(self) -> None:
        # by producer, index, and consumer of the transfer. The dict is never replaced, because ``Outputs`` refers to it
        self.under_way: dict[tuple[str, int, str], SharedTransfer] = {}

    def sent(self, part: m.Partition, host: str) -> None:
        """Record that the transfer of ``part`` to ``host`` has begun."""
        self.under_way[part.producer, part.index, part.consumer] = SharedTransfer(host)

    def board(self, producer: str, index: int, consumer: str, host: str) -> bool:
        """Let a consumer on ``host`` share the transfer of a partition to the host.

        Return False if no transfer there is under way.
        """
        for (name, number, _), carried in self.under_way.items():
            if (name, number) == (producer, index) and carried.host == host:
                carried.consumers.append(consumer)
                return True
        return False

    def alight(self, demand: m.Demand, host: str) -> bool:
        """Remove a consumer from shared transfers of the demanded partition to hosts other than ``host``.

        ``host``: the present host of the consumer. Return whether the consumer had a share in a transfer.
        """
        alighted = False
        for (name, index, _), carried in self.under_way.items():
            gone = (name, index) == (demand.producer, demand.index) and carried.host != host
            if gone and demand.consumer in carried.consumers:
                carried.consumers.remove(demand.consumer)
                alighted = True
        return alighted

    def over(self, part: m.Partition) -> list[str]:
        """Remove a transfer that has ended. Return the further consumers."""
        carried = self.under_way.pop((part.producer, part.index, part.consumer), None)
        return [] if carried is None else carried.consumers

    def peer_gone(self, host: str) -> None:
        """Remove the transfers to a lost host."""
        for key in [key for key, carried in self.under_way.items() if carried.host == host]:
            del self.under_way[key]
