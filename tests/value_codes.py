"""Sources and operators for tests of values: every kind of value, and careless use of buffers."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from thalweg.operators import Operator, Source

BASE = np.arange(24, dtype="<i4")


class Metres(np.ndarray[Any, Any]):
    """Array with a unit that is not in the elements."""

    unit: str


class Reading(msgspec.Struct, frozen=True):
    site: str
    values: list[float]


class Blob(bytes):
    """Subclass of bytes."""


def metres() -> Any:
    array = BASE.view(Metres)
    array.unit = "m"
    return array


KINDS: dict[str, Callable[[], Any]] = {
    "bytes": lambda: b"abcdefgh",
    "no bytes": lambda: b"",
    "bytearray": lambda: bytearray(b"abcdefgh"),
    "memoryview": lambda: memoryview(bytearray(b"abcdefgh")),
    "memoryview in steps": lambda: memoryview(b"abcdefgh")[::2],
    "memoryview of numbers": lambda: memoryview(BASE.copy()),
    "subclass of bytes": lambda: Blob(b"abcdefgh"),
    "numpy bytes": lambda: np.bytes_(b"abcdefgh"),
    "array": lambda: BASE.copy(),
    "no elements": lambda: np.empty((3, 0, 2), "<f4"),
    "0-d": lambda: np.array(1.5),
    "numpy number": lambda: np.float32(1.5),
    "numpy time": lambda: np.datetime64("2001-02-03T04:05", "m"),
    "in planes": lambda: BASE.reshape(2, 3, 4) + 1,
    "Fortran": lambda: np.asfortranarray(BASE.reshape(4, 6)),
    "transposed": lambda: BASE.reshape(4, 6).T,
    "in steps": lambda: BASE[::-3],
    "broadcast": lambda: np.broadcast_to(np.float64(2.5), (3, 4)),
    "view": lambda: BASE[3:9],
    "unaligned": lambda: np.frombuffer(bytearray(33), "<f8", offset=1),
    "over bytes": lambda: np.frombuffer(bytes(range(64)), "<u2"),
    "big-endian": lambda: BASE.astype(">i4"),
    "long long": lambda: BASE.astype("longlong"),
    "with metadata": lambda: BASE.astype(np.dtype("<i4", metadata={"unit": "m"})),
    "text": lambda: np.array(["a", "bcd"]),
    "times": lambda: np.array(["2001-02-03"], "M8[D]"),
    "flags": lambda: BASE > 3,
    "matrix": lambda: np.matrix(BASE.reshape(4, 6)),
    "text alone": lambda: "text",
    "number": lambda: 3.5,
    "plain data": lambda: {"a": [1, None, (b"x", True)], 7: {"b": -0.5}},
    "struct": lambda: Reading("h1", [1.5]),
    "batch": lambda: pa.record_batch({"a": [1, None], "b": ["x", "y"]}),
    "table": lambda: pa.table({"a": pa.chunked_array([[1], [2, 3]]), "b": ["x", None, ""]}),
    "slice": lambda: pa.table({"a": range(1000), "b": ["xyz"] * 1000}).slice(990, 4),
    "no rows": lambda: pa.table({"a": pa.array([], "int64"), "b": pa.array([], "string")}),
    "mapped": lambda: np.frombuffer(mmap.mmap(-1, 4096), "<i4"),
}

REFUSED: dict[str, Callable[[], Any]] = {
    "masked": lambda: np.ma.masked_less(BASE, 5),
    "masked nowhere": lambda: np.ma.array(BASE),
    "unit": metres,
    "fields": lambda: np.zeros(3, [("a", "<i4")]),
    "records": lambda: np.rec.array([(1, 2.0)]),
    "objects": lambda: np.array([None]),
    "nine dimensions": lambda: np.zeros((1,) * 9),
    "no width": lambda: np.zeros(3, "V"),
    "beyond any limit": lambda: np.broadcast_to(np.uint8(0), (2**40,)),
    "set": lambda: {1, 2},
    "complex": lambda: {"a": [2j]},
    "column": lambda: pa.array([1, 2]),
}


def told(value: Any) -> str:
    """Return a full description of a value, with its type, memory layout and bytes."""
    if not isinstance(value, np.ndarray):
        return f"{type(value)} {value!r}"
    kind = value.dtype
    seals = "sealed"
    try:
        value.setflags(write=True)
        seals = "open"
    except ValueError:
        pass
    head = f"{type(value)} {kind.str} {kind.char} {kind.metadata} {value.shape} {seals}"
    return f"{head} {str(value.flags).split()} {value.tobytes().hex()}"


class Kinds(Source):
    """Source whose partition i is of the i-th kind. ``only``: the source has one partition, of this refused kind."""

    def __init__(self, only: str | None = None) -> None:
        self.makes = list(KINDS.values()) if only is None else [REFUSED[only]]

    def produce(self, index: int) -> Any:
        return self.makes[index]() if index < len(self.makes) else None


class Tells(Operator):
    """Operator that returns a description of its input."""

    def combine(self, inputs: Sequence[Any], index: int) -> Any:
        return told(inputs[0]).encode()


class Passes(Operator):
    """Operator that returns its input, or a part of the input."""

    def __init__(self, part: bool = False) -> None:
        self.part = part

    def combine(self, inputs: Sequence[Any], index: int) -> Any:
        return inputs[0][1:] if self.part else inputs[0]


class Counts(Operator):
    """Operator that returns the length of its input."""

    def combine(self, inputs: Sequence[Any], index: int) -> Any:
        return str(len(inputs[0])).encode()


WRITES: dict[str, Callable[[Any], Any]] = {
    "assigns": lambda array: array.__setitem__(0, 1),
    "out": lambda array: np.add(array, 1, out=array),
    "opens": lambda array: array.setflags(write=True),
    "memory": lambda array: memoryview(array).__setitem__(0, 1),
}


class Writes(Operator):
    """Operator that writes into its input."""

    def __init__(self, how: str) -> None:
        self.how = how

    def combine(self, inputs: Sequence[Any], index: int) -> Any:
        WRITES[self.how](inputs[0])
        return inputs[0]


# --- buffers that are used again ----------------------------------------------------------------------

WAYS = ("buffer", "view", "shape", "read-only view", "memory", "bytearray", "array over bytearray", "kept view")


class _Careless:
    """Producer that fills one buffer again and again, and returns the buffer or a view of the buffer."""

    def __init__(self, size: int, way: str) -> None:
        self.way = way
        self.bytes = bytearray(size)
        self.buffer = np.frombuffer(self.bytes, np.uint8) if "bytearray" in way else np.zeros(size, np.uint8)
        self.kept: Any = None

    def filled(self, fill: int) -> Any:
        if self.way == "kept view":  # a new array for each partition, and a view that writes into it later
            if self.kept is not None:
                self.kept[:] = 255
            array = np.full_like(self.buffer, fill)
            self.kept = array[:]
            return array
        self.buffer[:] = fill
        match self.way:
            case "buffer" | "array over bytearray":
                return self.buffer
            case "view":
                return self.buffer[:]
            case "shape":
                return self.buffer.reshape(4, -1)
            case "read-only view":
                view = self.buffer.view()
                view.setflags(write=False)
                return view
            case "memory":
                return memoryview(self.buffer)
        return self.bytes


class Camera(_Careless, Source):
    """Source whose partition i has only bytes of the value ``(7 i + 1) % 251``."""

    def produce(self, index: int) -> Any:
        return self.filled((7 * index + 1) % 251)


class Reader(_Careless, Operator):
    """Operator that adds 1 to the bytes of a camera's partition, which all have the same value."""

    def combine(self, inputs: Sequence[Any], index: int) -> Any:
        first = np.frombuffer(inputs[0], np.uint8)
        assert first.min() == first.max(), f"torn at partition {index}"
        return self.filled(int(first[0]) + 1)


def wrong_frames(values: Sequence[Any], size: int) -> list[int]:
    """Return the indices of wrong partitions behind a camera and a reader."""
    rights = [hashlib.sha256(bytes([(7 * i + 1) % 251 + 1]) * size).digest() for i in range(len(values))]
    return [i for i, value in enumerate(values) if hashlib.sha256(value).digest() != rights[i]]
