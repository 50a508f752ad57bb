"""What a value is: ``bytes``, a read-only array of plain numbers, Arrow records, plain data, or nothing.

It is the same wherever its consumer is. ``bytes`` and arrays travel as they are; the others are parcels (``packing``).

Rules:

- R1: What a node's code returned is made a value there and then, so that nothing depends on where its consumer is.
- R2: Nobody can change a value. Memory that anybody else may write, now or later, is copied.
- R3: Not copied are ``bytes``, an array over ``bytes`` or over an input, and one that nobody else has: that is sealed.
- R4: What would lose something on its way (a mask, a unit, fields, Python objects) is refused.
- R5: A value keeps at most twice its own bytes in memory.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy import frombuffer, ndarray  # numpy answers for unknown names, so each look-up there takes longer

from thalweg.middleware.errors import OperatorError, ProtocolError
from thalweg.middleware.parcels import Parcel
from thalweg.middleware.protocol.messages import MAX_DIMENSIONS, MAX_PARTITION_BYTES
from thalweg.middleware.shell.packing import ValueReceiver, parcel_frames, parcel_from, parcel_of

# bits of array.flags.num, which takes one look where their names take one each
ORDERLY, OWN_MEMORY, WRITEABLE = 0x101, 0x4, 0x400  # numpy/ndarraytypes.h: C_CONTIGUOUS and ALIGNED, OWNDATA, WRITEABLE
PLAIN = (np.matrix, np.memmap)  # of numpy's own: what they have beside their elements does not tell of these
_DTYPE = re.compile(r"[<>|][biufcmMSU]\d+(\[\d*\w+\])?")  # dtype.str of numbers, times and fixed-width text


# --- of what code returned ------------------------------------------------------------------------------


def returned_by(call: Callable[..., Any], given: tuple[Any, ...], inputs: Sequence[Any] = ()) -> Any:
    """What ``call(*given)`` returns, as a value; None is None. OperatorError when it cannot be one (R4).

    ``inputs``: values that the call was given, which may be returned, or parts of them.
    """
    returned = call(*given)
    holders = sys.getrefcount(returned)
    if isinstance(returned, ndarray):
        return _array_of(returned, inputs, holders <= _ALONE)
    if returned is None or type(returned) is bytes:
        return returned
    if isinstance(returned, bytes | bytearray | memoryview):
        return bytes(returned)  # R2: somebody else may write into this memory
    if isinstance(returned, np.generic):
        return _array_of(np.array(returned), (), True)
    return parcel_of(returned)


def _alone() -> int:
    """How many hold what a call returned and nobody else has, where it is counted as in ``returned_by``."""
    returned = np.empty(1)
    return sys.getrefcount(returned)


def _base(array: ndarray[Any, Any]) -> tuple[Any, int]:
    """What an array is a view of, and how many hold that: with nobody else, as many as in the call below."""
    base = array.base
    return base, sys.getrefcount(base)


_ALONE = _alone()  # a view holds its array, and so does a memoryview: whoever else can write counts
_BASE_ALONE = _base(np.empty(2).reshape(2, 1))[1]


def _array_of(array: ndarray[Any, Any], inputs: Sequence[Any], fresh: bool) -> ndarray[Any, Any]:
    """The value of an array; ``fresh`` when nobody else holds it."""
    plain = type(array) is ndarray
    if not plain:
        _check_class(array)
    kind = array.dtype
    dtype = _plain(kind)
    if array.ndim > MAX_DIMENSIONS:
        raise OperatorError(f"an array of {array.ndim} dimensions; a partition has at most {MAX_DIMENSIONS}")
    if array.nbytes > MAX_PARTITION_BYTES:  # before a copy is made of it
        raise OperatorError(f"an array of {array.nbytes} bytes; a partition has at most {MAX_PARTITION_BYTES}")
    flags = array.flags.num
    if not plain or flags & ORDERLY != ORDERLY or not _is_settled(array, inputs, fresh, flags):
        array = np.array(array, order="C", subok=False)  # R2: a copy, in memory that nobody else can write
        flags = WRITEABLE
    if flags & WRITEABLE:
        array.setflags(write=False)
    # of a sealed array: whoever gets this one cannot unseal it
    return array.view() if kind is dtype else array.view(dtype)


def _check_class(array: ndarray[Any, Any]) -> None:
    """R4: OperatorError for an array that tells more than its elements do."""
    if isinstance(array, np.ma.MaskedArray):
        raise OperatorError("a masked array cannot travel with its mask; return array.filled(value), or array.data")
    more = None if isinstance(array, PLAIN) else getattr(array, "__dict__", None)
    if more:
        problem = f"a {type(array).__name__} cannot travel with its {', '.join(more)}"
        raise OperatorError(f"{problem}; return array.view(numpy.ndarray)")


def _is_settled(array: ndarray[Any, Any], inputs: Sequence[Any], fresh: bool, flags: int) -> bool:
    """R3: whether nobody else can write into an array's memory, which is sealed where it is another's."""
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
    """The array that all views of one memory are views of, and what that itself stands on, None for its own memory."""
    while type(base := array.base) is ndarray:
        array = base
    return array, base


# --- on the wire ----------------------------------------------------------------------------------------


def frames_of(value: Any, to: ValueReceiver | None = None) -> tuple[str, tuple[int, ...], memoryview]:
    """dtype, shape and bytes of a value, for ``to``."""
    if type(value) is not ndarray:
        return ("", (), memoryview(value)) if type(value) is bytes else parcel_frames(value, to)
    if not value.nbytes:
        body = memoryview(b"")
    else:
        try:
            body = value.data.cast("B")
        except (TypeError, ValueError):  # for elements that memoryviews do not know numpy takes longer
            body = value.reshape(-1).view(np.uint8).data
    return _text(value.dtype), value.shape, body


def size_of(value: Any) -> int:
    """Bytes a value takes on the wire."""
    if type(value) is ndarray:
        return value.nbytes
    return value.size_bytes if type(value) is Parcel else len(value)


def value_of(dtype: str, shape: tuple[int, ...], body: memoryview, heads: dict[str, bytes] | None = None) -> Any:
    """The value that ``frames_of`` took apart; it views ``body``, but for bytes. ProtocolError when it does not fit.

    ``heads``: those that are known here, by their digests. None for a parcel whose head is not.
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
                raise ProtocolError(f"an array of shape {shape}")
            array = array.reshape(shape)
    except (TypeError, ValueError, OverflowError) as error:
        raise ProtocolError(f"{len(body)} bytes are not an array of {dtype!r} {shape}: {error}") from None
    if array.flags.aligned:
        return array  # it stands on memory that only reads, so nobody can unseal it
    array = array.copy()
    array.setflags(write=False)
    return array.view()


@lru_cache(maxsize=256)
def _plain(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The same dtype as whoever receives it makes it of its ``str``; OperatorError for one that cannot travel (R4)."""
    if dtype.hasobject:
        raise OperatorError(f"an array of dtype {dtype} holds Python objects; only plain numbers travel")
    if dtype.fields is not None:
        raise OperatorError(f"an array of dtype {dtype} has fields; send a plain array of each, or bytes")
    if not dtype.itemsize or _DTYPE.fullmatch(dtype.str) is None:
        raise OperatorError(f"an array of dtype {dtype} cannot travel; only numbers, times and fixed-width text do")
    return _dtype(dtype.str)


@lru_cache(maxsize=256)
def _text(dtype: np.dtype[Any]) -> str:
    return dtype.str  # which numpy writes anew each time


@lru_cache(maxsize=256)
def _dtype(text: str) -> np.dtype[Any]:
    """The dtype whose ``str`` is ``text``: numpy's own parser takes much more, even expressions."""
    if _DTYPE.fullmatch(text) is None:
        raise ProtocolError(f"dtype {text!r} is not one of plain numbers")
    return np.dtype(text)
