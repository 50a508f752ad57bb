"""Values as hosts carry them, beyond single arrays and bytes, and ``NOTHING``, the value of an index without data."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from typing import Any, Final


class Nothing(Enum):
    """Type of ``NOTHING``, which ``produce`` and ``combine`` return for an index without a value."""

    NOTHING = "nothing"

    def __repr__(self) -> str:
        return "NOTHING"


NOTHING: Final = Nothing.NOTHING


class Parcel:
    """Value as immutable bytes, of the ``kind`` ``nothing``, ``plain``, ``batch`` or ``table``.

    - ``head``: the bytes that are the same for a whole stream (a schema, the name of a class).
    - ``digest``: the digest of a head that a host needs only once. Empty: the head is always sent.
    - ``body``: the remaining bytes.
    - ``watermark_s``: no event before this time follows in the stream.
    - ``opened``: the value itself, if the code that packed or opened the parcel keeps it.
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
        """Size in bytes, including the head, also for a receiver that knows the head."""
        return len(self.head) + len(self.body)


PAST_END = Parcel("nothing", body=b"past")  # for a partition of a stripe that no source has, as the stream ended before
PAST_SOME = Parcel("nothing", body=b"past some")  # for a partition that only some sources have


def is_past_end(value: object) -> bool:
    """Return whether a value stands for a partition after the end of its stream."""
    return type(value) is Parcel and value.kind == "nothing" and len(value.body) > 0


def past_end_of(inputs: Collection[object]) -> Parcel | None:
    """Return the parcel of an operator with inputs past their ends, or None if every input has its partition.

    ``PAST_END``: no source of the inputs has the partition. ``PAST_SOME``: a part of the sources has the partition.
    """
    past = [value for value in inputs if is_past_end(value)]
    if not past:
        return None
    return PAST_END if all(type(value) is Parcel and value.body == PAST_END.body for value in inputs) else PAST_SOME


def is_nothing(value: object) -> bool:
    """Return whether a value, as hosts carry it, is an index without a value."""
    return type(value) is Parcel and value.kind == "nothing"
