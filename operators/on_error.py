"""Wrapper of an operator that continues after an error and leaves out rows or partitions.

An operator over records leaves out rows. Any other operator leaves out the partition. Rules:

- R1: The omissions depend on the inputs alone. An operator that moved, or was restored, leaves out the same.
- R2: A lack of memory or time, and an error that concerns a whole column, still fail the run.
- R3: Dead letters are the output of a separate operator with the same code and inputs. It computes the same and
  delivers what the first operator leaves out. So dead letters are delivered exactly once, like every output.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from thalweg.middleware.dataflow import Code, OnError
from thalweg.middleware.errors import OperatorError, ThalwegError, one_line, shown
from thalweg.middleware.loading import ALLOWED, OperatorCode, keeps_state, load_code
from thalweg.middleware.parcels import NOTHING
from thalweg.middleware.protocol.events import LeftOut
from thalweg.middleware.shell.packing import arrow
from thalweg.middleware.shell.values import returned_by
from thalweg.operators.interface import Operator

MOST = 400  # characters of a reason
DELEGATED = ("snapshot", "restore", "delta", "apply", "state_version")


class Tolerant(Operator[Any, Any]):
    """Operator ``use`` with ``params`` that leaves out the rows or partitions that it cannot compute.

    ``left_out``: the omission from the last computed partition, with the reason. ``letters_of``: name of an operator
    with the same code, whose dead letters are then the output. The output is a table with a row for each omitted row or
    partition.
    """

    left_out: LeftOut | None = None

    def __init__(self, use: str, params: Mapping[str, Any], how: OnError, letters_of: str = "") -> None:
        if how not in get_args(OnError)[1:]:
            raise OperatorError(f"on_error={shown(how)}; use {' or '.join(get_args(OnError)[1:])}")
        inner = load_code(Code(use, dict(params)), ALLOWED.get())
        if not isinstance(inner, OperatorCode):
            raise OperatorError(f"{use!r} is a source; only operators have on_error")
        self.inner, self.letters_of = inner, letters_of
        self.by_rows = hasattr(inner, "skips_rows")
        if self.by_rows:
            self.inner.skips_rows = True  # type: ignore[attr-defined]  # of operators over records
        self.on_nothing = bool(getattr(inner, "on_nothing", False))
        self.allows_missing = bool(getattr(inner, "allows_missing", False))
        if keeps_state(inner):
            vars(self).update({name: getattr(inner, name) for name in DELEGATED if hasattr(inner, name)})

    def combine(self, inputs: Sequence[Any], index: int) -> Any:
        inner: Any = self.inner
        self.left_out, inner.watermark_s = None, self.watermark_s
        value = self._rows(inputs, index) if self.by_rows else self._partition(inputs, index)
        self.watermark_s = inner.watermark_s
        return value

    @property
    def late_rows(self) -> int:  # type: ignore[override]  # it is read only
        """Number of late rows of the wrapped operator.

        With ``letters_of`` it is 0, because late rows are counted once.
        """
        return 0 if self.letters_of else int(getattr(self.inner, "late_rows", 0))

    def _rows(self, inputs: Sequence[Any], index: int) -> Any:
        inner: Any = self.inner
        inner.refused = []
        value = inner.combine(inputs, index)
        if self.letters_of:
            return self._letters([(_short(why), at, _texts(rows)) for rows, why, at in inner.refused], index)
        if inner.refused:
            self.left_out = LeftOut(_short(inner.refused[0].why), sum(rows.num_rows for rows, _, _ in inner.refused))
        return value

    def _partition(self, inputs: Sequence[Any], index: int) -> Any:
        try:
            value = returned_by(self.inner.combine, (inputs, index), inputs)
            if value is None:
                raise OperatorError("combine returned None; return NOTHING for an index without a value")
        except MemoryError:  # R2: another host may have the memory
            raise
        except Exception as error:
            why = one_line(error) if isinstance(error, ThalwegError) else f"{type(error).__name__}: {one_line(error)}"
            if self.letters_of:
                return self._letters([(_short(why), None, [None])], index)
            self.left_out = LeftOut(_short(why))
            return NOTHING
        return NOTHING if self.letters_of else value

    def _letters(self, left_out: list[tuple[str, int | None, list[str | None]]], index: int) -> Any:
        """Return a table of dead letters: the reason, the node, the index, the input, and the rows as JSON."""
        letters = [(why, position, row) for why, position, rows in left_out for row in rows]
        if not letters:
            return NOTHING
        pa = arrow()
        reasons, positions, rows = zip(*letters, strict=True)
        return pa.table(
            {
                "reason": pa.array(reasons, pa.string()),
                "node": pa.array([self.letters_of] * len(letters), pa.string()),
                "index": pa.array([index] * len(letters), pa.int64()),
                "input": pa.array(positions, pa.int32()),
                "row": pa.array(rows, pa.string()),
            }
        )

    def output_size_bytes(self, input_sizes: Sequence[float]) -> float:
        tell = getattr(self.inner, "output_size_bytes", super().output_size_bytes)
        return 0.0 if self.letters_of else float(tell(input_sizes))

    def compute_s(self, input_sizes: Sequence[float]) -> float:
        return float(getattr(self.inner, "compute_s", super().compute_s)(input_sizes))


def _short(why: str) -> str:
    return why if len(why) <= MOST else f"{why[:MOST]}…"


def _texts(rows: Any) -> list[str | None]:
    """Return rows as JSON texts. A value that JSON does not have becomes text."""
    columns = {name: _plain(rows.column(at)) for at, name in enumerate(rows.column_names) if not name.startswith("__")}
    return [
        json.dumps({name: values[row] for name, values in columns.items()}, default=str, ensure_ascii=False)
        for row in range(rows.num_rows)
    ]


def _plain(column: Any) -> list[Any]:
    try:
        return column.to_pylist()  # type: ignore[no-any-return]
    except (ValueError, OverflowError):  # Python has no value for some times of nanoseconds
        return column.cast(arrow().string()).to_pylist()  # type: ignore[no-any-return]
