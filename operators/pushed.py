"""Source of an application's values, pushed at the application's own client (``Client.push``)."""

from __future__ import annotations

from typing import Any

from thalweg.middleware.client.flow.feeds import channel_of
from thalweg.middleware.parcels import Parcel
from thalweg.operators.interface import Source


class Pushed(Source[Any]):
    """Source of the values pushed to ``feed``, each value once. ``produce`` waits for the next value."""

    replayable = False
    waits = True

    def __init__(self, feed: str) -> None:
        self.channel = channel_of(feed)

    def produce(self, index: int) -> Any:
        value = self.channel.take(self, index)
        self.watermark_s = value.watermark_s if type(value) is Parcel else None
        return value

    def abandon(self) -> None:
        """End the wait, because the run is over. The feed then refuses values, unless a later source reads it."""
        if self.channel.taker is self:
            self.channel.abandon("the run that took from it is over")
