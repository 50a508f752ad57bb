"""Values: ``bytes``, read-only arrays of plain numbers, Arrow records, plain data, or nothing.

A value is the same on every host. ``bytes`` and arrays are sent as they are. Other values are parcels (``packing``).

Rules:

- R1: The result of a node's code becomes a value at once, so nothing depends on the location of the consumer.
- R2: Nobody can change a value. Memory that other code may write, now or later, is copied.
- R3: ``bytes`` are not copied, and neither is an array over ``bytes`` or over an input. An array that no other code
  holds is sealed in place of a copy.
- R4: A value that would lose something when sent (a mask, a unit, fields, Python objects) is refused.
- R5: A value keeps at most twice its own bytes in memory.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy import frombuffer, ndarray  # numpy answers for unknown names, so every look-up in the module takes longer

from thalweg.middleware.errors import OperatorError, ProtocolError
from thalweg.middleware.parcels import Parcel
from thalweg.middleware.protocol.messages import MAX_DIMENSIONS, MAX_PARTITION_BYTES
from thalweg.middleware.shell.packing import ValueReceiver, parcel_frames, parcel_from, parcel_of

# bits of array.flags.num: one look-up, where their names take one each
ORDERLY, OWN_MEMORY, WRITEABLE = 0x101, 0x4, 0x400  # numpy/ndarraytypes.h: C_CONTIGUOUS and ALIGNED, OWNDATA, WRITEABLE
PLAIN = (np.matrix, np.memmap)  # numpy's own classes: their attributes say nothing about the elements
_DTYPE = re.compile(r"[<>|][biufcmMSU]\d+(\[\d*\w+\])?")  # dtype.str of numbers, times and fixed-width text


# --- results of code ------------------------------------------------------------------------------------


def returned_by(call: Callable[..., Any], given: tuple[Any, ...], inputs: Sequence[Any] = ()) -> Any:
    """Call ``call(*given)`` and return the result as a value. None stays None.

    ``inputs``: input values, which the call may return, or parts of them. Raises OperatorError for a result that cannot
    be a value (R4).
    """
    returned = call(*given)
    holders = sys.getrefcount(returned)
    if isinstance(returned, ndarray):
        return _array_of(returned, inputs, holders <= _ALONE)
    if returned is None or type(returned) is bytes:
        return returned
    if isinstance(returned, bytes | bytearray | memoryview):
        return bytes(returned)  # R2: other code may write into this memory
    if isinstance(returned, np.generic):
        return _array_of(np.array(returned), (), True)
    return parcel_of(returned)


def _alone() -> int:
    """Return the reference count of a result that no other code holds, counted as in ``returned_by``."""
    returned = np.empty(1)
    return sys.getrefcount(returned)


def _base(array: ndarray[Any, Any]) -> tuple[Any, int]:
    """Return the array that an array views, and its reference count."""
    base = array.base
    return base, sys.getrefcount(base)


_ALONE = _alone()  # views and memoryviews hold their array, so all code that can write is counted
_BASE_ALONE = _base(np.empty(2).reshape(2, 1))[1]


def _array_of(array: ndarray[Any, Any], inputs: Sequence[Any], fresh: bool) -> ndarray[Any, Any]:
    """Return the value of an array. ``fresh``: no other code holds the array."""
    plain = type(array) is ndarray
    if not plain:
        _check_class(array)
    kind = array.dtype
    dtype = _plain(kind)
    if array.ndim > MAX_DIMENSIONS:
        raise OperatorError(f"an array has {array.ndim} dimensions; a partition has at most {MAX_DIMENSIONS}")
    if array.nbytes > MAX_PARTITION_BYTES:  # before a copy is made
        raise OperatorError(f"an array has {array.nbytes} bytes; a partition has at most {MAX_PARTITION_BYTES}")
    flags = array.flags.num
    if not plain or flags & ORDERLY != ORDERLY or not _is_settled(array, inputs, fresh, flags):
        array = np.array(array, order="C", subok=False)  # R2: a copy, in memory that no other code can write
        flags = WRITEABLE
    if flags & WRITEABLE:
        array.setflags(write=False)
    # a view of a sealed array, which its receiver cannot unseal
    return array.view() if kind is dtype else array.view(dtype)


def _check_class(array: ndarray[Any, Any]) -> None:
    """Raise OperatorError for an array with information beyond its elements (R4)."""
    if isinstance(array, np.ma.MaskedArray):
        raise OperatorError("a masked array cannot travel with its mask; return array.filled(value), or array.data")
    more = None if isinstance(array, PLAIN) else getattr(array, "__dict__", None)
    if more:
        problem = f"a {type(array).__name__} cannot travel with its {', '.join(more)}"
        raise OperatorError(f"{problem}; return array.view(numpy.ndarray)")


def _is_settled(array: ndarray[Any, Any], inputs: Sequence[Any], fresh: bool, flags: int) -> bool:
    """Return whether no other code can write into the memory of an array. Seal the array that owns the memory (R3)."""
    if array.base is None:
        return fresh and bool(flags & OWN_MEMORY)
    kind: type = type(array.base)
    if kind is bytes:
        return len(array.base) <= 2 * array.nbytes  # R5: a small view of large memory is copied
    base, holders = _base(array)
    root, under = _root(array)
    if (len(under) if type(under) is bytes else root.nbytes) > 2 * array.nbytes:
        return False  # R5: a small view of large memory is copied
    if type(under) is bytes or any(root is _root(operand)[0] for operand in inputs if type(operand) is ndarray):
        return True
    if not (fresh and base is root and holders <= _BASE_ALONE and under is None and root.flags.owndata):
        return False
    root.setflags(write=False)
    return True


def _root(array: ndarray[Any, Any]) -> tuple[ndarray[Any, Any], Any]:
    """Return the last array in a chain of views, and the object with its memory. None: the array has its own memory."""
    while type(base := array.base) is ndarray:
        array = base
    return array, base


# --- on the wire ----------------------------------------------------------------------------------------


def frames_of(value: Any, to: ValueReceiver | None = None) -> tuple[str, tuple[int, ...], memoryview]:
    """Return the dtype, shape and bytes of a value for sending. ``to``: the receiver, with the heads that it has."""
    if type(value) is not ndarray:
        return ("", (), memoryview(value)) if type(value) is bytes else parcel_frames(value, to)
    if not value.nbytes:
        body = memoryview(b"")
    else:
        try:
            body = value.data.cast("B")
        except (TypeError, ValueError):  # memoryviews do not know these elements; numpy does, but takes longer
            body = value.reshape(-1).view(np.uint8).data
    return _text(value.dtype), value.shape, body


def size_of(value: Any) -> int:
    """Return the number of bytes of a value when sent."""
    if type(value) is ndarray:
        return value.nbytes
    return value.size_bytes if type(value) is Parcel else len(value)


def value_of(dtype: str, shape: tuple[int, ...], body: memoryview, heads: dict[str, bytes] | None = None) -> Any:
    """Return the value from the three parts of ``frames_of``. The value is a view of ``body``, except for ``bytes``.

    ``heads``: known heads by digest. None is returned for a parcel with an unknown head. Raises ProtocolError if the
    parts do not fit.
    """
    if not dtype:
        return bytes(body)
    if dtype[0].isalpha():
        return parcel_from(dtype, shape, body.toreadonly(), {} if heads is None else heads)
    try:
        kind = _dtype(dtype)
        array = frombuffer(body.toreadonly(), kind) if len(body) else frombuffer(bytes(kind.itemsize), kind)[:0]
        if array.shape != shape:
            if min(shape, default=0) < 0:
                raise ProtocolError(f"an array cannot have shape {shape}")
            array = array.reshape(shape)
    except (TypeError, ValueError, OverflowError) as error:
        raise ProtocolError(f"{len(body)} bytes are not an array of {dtype!r} {shape}: {error}") from None
    if array.flags.aligned:
        return array  # its memory is read-only, so nobody can unseal it
    array = array.copy()
    array.setflags(write=False)
    return array.view()


@lru_cache(maxsize=256)
def _plain(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype as a receiver builds it from its ``str``.

    Raises OperatorError for a dtype that cannot be sent (R4).
    """
    if dtype.hasobject:
        raise OperatorError(f"an array of dtype {dtype} holds Python objects; only plain numbers travel")
    if dtype.fields is not None:
        raise OperatorError(f"an array of dtype {dtype} has fields; send a plain array of each, or bytes")
    if not dtype.itemsize or _DTYPE.fullmatch(dtype.str) is None:
        raise OperatorError(f"an array of dtype {dtype} cannot travel; only numbers, times and fixed-width text do")
    return _dtype(dtype.str)


@lru_cache(maxsize=256)
def _text(dtype: np.dtype[Any]) -> str:
    return dtype.str  # cached, as numpy builds the text in each call


@lru_cache(maxsize=256)
def _dtype(text: str) -> np.dtype[Any]:
    """Return the dtype whose ``str`` is ``text``. numpy's own parser would accept much more, even expressions."""
    if _DTYPE.fullmatch(text) is None:
        raise ProtocolError(f"dtype {text!r} is not one of plain numbers")
    return np.dtype(text)
