"""Partitions under way to a host for one consumer, and who there rides along (R3 of ``outputs``)."""

from __future__ import annotations

import msgspec

from thalweg.middleware.protocol import messages as m


class SharedTransfer(msgspec.Struct):
    """A partition under way to a host for one consumer, and for these others there."""

    host: str
    consumers: list[str] = []


class SharedTransfers:
    """The only writer of who rides with which partition, in one run."""

    __slots__ = ("under_way",)

    def __init__(self) -> None:
        # by producer, index, and for whom it was sent: one dict for ever, as others look whether there is anything
        self.under_way: dict[tuple[str, int, str], SharedTransfer] = {}

    def sent(self, part: m.Partition, host: str) -> None:
        """Its transfer has begun."""
        self.under_way[part.producer, part.index, part.consumer] = SharedTransfer(host)

    def board(self, producer: str, index: int, consumer: str, host: str) -> bool:
        """Whether that partition is under way to ``host``, where the consumer is, which rides along from now on."""
        for (name, number, _), carried in self.under_way.items():
            if (name, number) == (producer, index) and carried.host == host:
                carried.consumers.append(consumer)
                return True
        return False

    def alight(self, demand: m.Demand, host: str) -> bool:
        """Whether who demands from ``host`` was to get that partition elsewhere, with another consumer's."""
        alighted = False
        for (name, index, _), carried in self.under_way.items():
            gone = (name, index) == (demand.producer, demand.index) and carried.host != host
            if gone and demand.consumer in carried.consumers:
                carried.consumers.remove(demand.consumer)
                alighted = True
        return alighted

    def over(self, part: m.Partition) -> list[str]:
        """The transfer is over: who rode along."""
        carried = self.under_way.pop((part.producer, part.index, part.consumer), None)
        return [] if carried is None else carried.consumers

    def peer_gone(self, host: str) -> None:
        """Nothing is under way there any more."""
        for key in [key for key, carried in self.under_way.items() if carried.host == host]:
            del self.under_way[key]
