"""Values that are more than one array or bytes, as hosts carry them; and ``NOTHING``, for an index without a value."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from typing import Any, Final


class Nothing(Enum):
    """The type of ``NOTHING``: what ``produce`` and ``combine`` return for an index that has no value."""

    NOTHING = "nothing"

    def __repr__(self) -> str:
        return "NOTHING"


NOTHING: Final = Nothing.NOTHING


class Parcel:
    """A value as its bytes, which nobody changes: of ``kind`` ``nothing``, ``plain``, ``batch`` or ``table``.

    ``head``: what is the same for a whole stream (a schema, the name of a class), with its ``digest`` where a host that
    has seen it once can do without; ``body``: the rest. ``watermark_s``: no event before that time follows in this
    stream. ``opened``: what it stands for, where whoever made or opened it keeps that.
    """

    __slots__ = ("body", "digest", "head", "kind", "opened", "watermark_s")

    def __init__(
        self,
        kind: str,
        head: bytes = b"",
        body: memoryview | bytes = b"",
        digest: str = "",
        watermark_s: float | None = None,
        opened: Any = None,
    ) -> None:
        self.kind, self.head, self.body, self.digest = kind, head, body, digest
        self.watermark_s, self.opened = watermark_s, opened

    def __repr__(self) -> str:
        return f"<{self.kind} of {self.size_bytes} bytes, watermark {self.watermark_s}>"

    @property
    def size_bytes(self) -> int:
        """With its head, wherever that is known."""
        return len(self.head) + len(self.body)


PAST_END = Parcel("nothing", body=b"past")  # of a stripe, for a partition that no source has: the stream ended before
PAST_SOME = Parcel("nothing", body=b"past some")  # and for one that only some have


def is_past_end(value: object) -> bool:
    """Whether this stands for a partition that the stream has not, as it ended before."""
    return type(value) is Parcel and value.kind == "nothing" and len(value.body) > 0


def past_end_of(inputs: Collection[object]) -> Parcel | None:
    """What is made of inputs of which some are past their end; None where none is."""
    past = [value for value in inputs if is_past_end(value)]
    if not past:
        return None
    return PAST_END if all(type(value) is Parcel and value.body == PAST_END.body for value in inputs) else PAST_SOME


def is_nothing(value: object) -> bool:
    """Whether this is an index without a value, as hosts carry it."""
    return type(value) is Parcel and value.kind == "nothing"
