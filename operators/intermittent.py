"""Source that is absent from a run for a number of partitions, or from a partition on."""

from __future__ import annotations

import itertools
import math
from typing import Any

import msgspec

from thalweg.middleware.dataflow import Code
from thalweg.middleware.errors import OperatorError
from thalweg.middleware.loading import ALLOWED, load_code
from thalweg.middleware.parcels import NOTHING
from thalweg.operators.interface import Source


class Intermittent(Source[Any]):
    """Source ``code`` ({use, params}) that gives ``NOTHING`` for the partitions of ``gaps``, each [first, until).

    ``until`` of the last gap may be None. Then the source is absent and never ends, and its code need not be on the
    host. Raise OperatorError for gaps that are malformed or out of order. Errors of ``code`` are raised too.
    """

    def __init__(self, code: dict[str, Any], gaps: list[list[int | None]]) -> None:
        try:
            own = msgspec.convert(code, Code)
            pairs = msgspec.convert(gaps, list[tuple[int, int | None]])
        except msgspec.ValidationError as error:
            raise OperatorError(f"intermittent: {error}; give code as {{use, params}}, gaps as pairs") from None
        self.gaps = [(first, math.inf if until is None else until) for first, until in pairs]
        ends = [0, *(end for gap in self.gaps for end in gap)]
        if not self.gaps or any(end > next_end for end, next_end in itertools.pairwise(ends)):
            raise OperatorError(f"intermittent: gaps are {gaps!r}; give [first, until) of each, in order")
        self._own, self._allowed = own, ALLOWED.get()
        self._source: Any = None
        if ends[-1] < math.inf:
            source = self._present()
            self.length = getattr(source, "length", None)
            self.replayable = bool(getattr(source, "replayable", True))
            self.waits = bool(getattr(source, "waits", False))

    def produce(self, index: int) -> Any:
        self.watermark_s = None
        if any(first <= index < until for first, until in self.gaps):
            return NOTHING
        source = self._present()
        value = source.produce(index)
        self.watermark_s = getattr(source, "watermark_s", None)
        return value

    def abandon(self) -> None:
        if self._source is not None and self.waits:
            self._source.abandon()

    def partition_bytes(self, index: int) -> int | None:
        if any(first <= index < until for first, until in self.gaps):
            return 0
        size: int | None = self._present().partition_bytes(index)
        return size

    def size_bytes(self) -> float:
        return 0.0 if self._source is None else float(self._source.size_bytes())

    def _present(self) -> Any:
        """Return the source of ``code``, and load the code on the first call.

        An absent source is loaded only for a partition before its last gap.
        """
        if self._source is None:
            self._source = load_code(self._own, self._allowed)
        return self._source
