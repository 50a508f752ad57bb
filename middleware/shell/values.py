"""What a value is: ``bytes``, a read-only array of plain numbers, Arrow records, plain data, or nothing.

It is the same wherever its consumer is. ``bytes`` and arrays travel as they are; the others are parcels
(``middleware.parcels``): records in Arrow's IPC format, plain data and msgspec's structs in msgpack. None is a pickle.

Rules:

- R1: What a node's code returned is made a value there and then, so that nothing depends on where its consumer is.
- R2: Nobody can change a value. Memory that anybody else may write, now or later, is copied.
- R3: Not copied are ``bytes``, an array over ``bytes`` or over an input, and one that nobody else has: that is sealed.
- R4: What would lose something on its way (a mask, a unit, fields, Python objects) is refused.
- R5: A value keeps at most twice its own bytes in memory.
- R6: Records are written once, as they are returned, and views wherever they are read. Plain data are read anew by
  whoever gets them, who may change them.
- R7: A schema goes with the first records on a line, until they have arrived there; then records name it by its digest.
"""

from __future__ import annotations

import hashlib
import math
import re
import sys
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np

from thalweg.middleware.errors import OperatorError, ProtocolError, one_line, shown
from thalweg.middleware.loading import find_code
from thalweg.middleware.parcels import NOTHING, Parcel
from thalweg.middleware.protocol.messages import MAX_DIMENSIONS, MAX_PARTITION_BYTES

RECORDS = ("batch", "table")
INSTALL_RECORDS = "pip install 'thalweg[records]'"
MOST_HEAD_BYTES = 65_536  # a longer schema goes with all of its records
HEADS_KNOWN = 256
MICRO_S, FOREVER = 1_000_000, 2**63 - 1  # a watermark's unit on the wire, and that of a stream in which nothing follows
PLAIN = (np.matrix, np.memmap)  # of numpy's own: what they have beside their elements does not tell of these
_DTYPE = re.compile(r"[<>|][biufcmMSU]\d+(\[\d*\w+\])?")  # dtype.str of numbers, times and fixed-width text


# --- of what code returned ------------------------------------------------------------------------------


def returned_by(call: Callable[..., Any], given: tuple[Any, ...], inputs: Sequence[Any] = ()) -> Any:
    """What ``call(*given)`` returns, as a value; None is None. OperatorError when it cannot be one (R4).

    ``inputs``: values that the call was given, which may be returned, or parts of them.
    """
    returned = call(*given)
    holders = sys.getrefcount(returned)
    if isinstance(returned, np.ndarray):
        return _array_of(returned, inputs, fresh=holders <= _ALONE)
    if returned is None or type(returned) is bytes:
        return returned
    if isinstance(returned, bytes | bytearray | memoryview):
        return bytes(returned)  # R2
    if isinstance(returned, np.generic):
        return _array_of(np.array(returned), (), fresh=True)
    return parcel_of(returned)


def _alone() -> int:
    """How many hold what a call returned and nobody else has, where it is counted as in ``returned_by``."""
    returned = np.empty(1)
    return sys.getrefcount(returned)


def _base(array: np.ndarray[Any, Any]) -> tuple[Any, int]:
    """What an array is a view of, and how many hold that: with nobody else, as many as in the call below."""
    base = array.base
    return base, sys.getrefcount(base)


_ALONE = _alone()  # a view holds its array, and so does a memoryview: whoever else can write counts
_BASE_ALONE = _base(np.empty(2).reshape(2, 1))[1]


def _array_of(array: np.ndarray[Any, Any], inputs: Sequence[Any], *, fresh: bool) -> np.ndarray[Any, Any]:
    """The value of an array; ``fresh`` when nobody else holds it."""
    plain = type(array) is np.ndarray
    if not plain:
        _check_class(array)
    kind = array.dtype
    dtype = _plain(kind)
    if array.ndim > MAX_DIMENSIONS:
        raise OperatorError(f"an array of {array.ndim} dimensions; a partition has at most {MAX_DIMENSIONS}")
    if array.nbytes > MAX_PARTITION_BYTES:  # before a copy is made of it
        raise OperatorError(f"an array of {array.nbytes} bytes; a partition has at most {MAX_PARTITION_BYTES}")
    flags = array.flags
    settled = plain and flags.c_contiguous and flags.aligned and _is_settled(array, inputs, fresh)
    if not settled:
        array = np.array(array, order="C", subok=False)  # R2
        flags = array.flags
    if flags.writeable:
        array.setflags(write=False)
    # of a sealed array: whoever gets this one cannot unseal it
    return array.view() if kind is dtype else array.view(dtype)


def _check_class(array: np.ndarray[Any, Any]) -> None:
    """R4: OperatorError for an array that tells more than its elements do."""
    if isinstance(array, np.ma.MaskedArray):
        raise OperatorError("a masked array cannot travel with its mask; return array.filled(value), or array.data")
    more = None if isinstance(array, PLAIN) else getattr(array, "__dict__", None)
    if more:
        said = f"a {type(array).__name__} cannot travel with its {', '.join(more)}"
        raise OperatorError(f"{said}; return array.view(numpy.ndarray)")


def _is_settled(array: np.ndarray[Any, Any], inputs: Sequence[Any], fresh: bool) -> bool:
    """R3: whether nobody else can write into an array's memory, which is sealed where it is another's."""
    if array.base is None:
        return fresh and array.flags.owndata
    base, holders = _base(array)
    root, under = _root(array)
    if (len(under) if type(under) is bytes else root.nbytes) > 2 * array.nbytes:
        return False  # R5
    if type(under) is bytes or any(root is _root(each)[0] for each in inputs if type(each) is np.ndarray):
        return True
    if not (fresh and base is root and holders <= _BASE_ALONE and under is None and root.flags.owndata):
        return False
    root.setflags(write=False)
    return True


def _root(array: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], Any]:
    """The array that all views of one memory are views of, and what that itself stands on, None for its own memory."""
    while type(base := array.base) is np.ndarray:
        array = base
    return array, base


# --- on the wire ----------------------------------------------------------------------------------------


class Reached(Protocol):
    """Where a value is sent: ``heads`` has the digests of those that are known there."""

    @property
    def heads(self) -> Collection[str]: ...


def frames_of(value: Any, to: Reached | None = None) -> tuple[str, tuple[int, ...], memoryview]:
    """dtype, shape and bytes of a value, for ``to``."""
    if type(value) is not np.ndarray:
        return ("", (), memoryview(value)) if type(value) is bytes else _parcel_frames(value, to)
    if not value.nbytes:
        body = memoryview(b"")
    else:
        try:
            body = value.data.cast("B")
        except (TypeError, ValueError):  # for elements that memoryviews do not know numpy takes longer
            body = value.reshape(-1).view(np.uint8).data
    return value.dtype.str, value.shape, body


def size_of(value: Any) -> int:
    """Bytes a value takes on the wire."""
    if type(value) is np.ndarray:
        return value.nbytes
    return value.size_bytes if type(value) is Parcel else len(value)


def value_of(dtype: str, shape: tuple[int, ...], body: memoryview, heads: dict[str, bytes] | None = None) -> Any:
    """The value that ``frames_of`` took apart; it views ``body``, but for bytes. ProtocolError when it does not fit.

    ``heads``: those that are known here, by their digests. None for a parcel whose head is not.
    """
    if not dtype:
        return bytes(body)
    if dtype[0].isalpha():
        return _parcel_from(dtype, shape, body.toreadonly(), {} if heads is None else heads)
    try:
        kind = _dtype(dtype)
        array = np.frombuffer(body.toreadonly(), kind) if len(body) else np.frombuffer(bytes(kind.itemsize), kind)[:0]
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
def _dtype(text: str) -> np.dtype[Any]:
    """The dtype whose ``str`` is ``text``: numpy's own parser takes much more, even expressions."""
    if _DTYPE.fullmatch(text) is None:
        raise ProtocolError(f"dtype {text!r} is not one of plain numbers")
    return np.dtype(text)


# --- parcels --------------------------------------------------------------------------------------------


def _parcel_frames(value: Parcel, to: Reached | None) -> tuple[str, tuple[int, ...], memoryview]:
    kind, head, body = value.kind, value.head, value.body
    if to is not None and value.digest and value.digest in to.heads:  # R7
        head = b""
    marks = () if value.watermark_s is None else (_micros(value.watermark_s),)
    whole = memoryview(b"".join((head, body)) if head else body)
    return f"{kind} {value.digest}" if value.digest else kind, (len(head), *marks), whole


def _parcel_from(dtype: str, shape: tuple[int, ...], body: memoryview, heads: dict[str, bytes]) -> Parcel | None:
    kind, _, digest = dtype.partition(" ")
    if kind not in ("nothing", "plain", *RECORDS) or not 1 <= len(shape) <= 2 or not 0 <= shape[0] <= len(body):
        raise ProtocolError(f"a value of kind {dtype!r} and {shape}, of {len(body)} bytes")
    head = bytes(body[: shape[0]])
    if digest and head:
        if _digest_of(head) != digest:
            raise ProtocolError(f"the head of a {kind} is not the one that its digest names")
        heads.pop(digest, None)
        while len(heads) >= HEADS_KNOWN:
            del heads[next(iter(heads))]
        heads[digest] = head
    elif digest:
        if digest not in heads:
            return None
        head = heads[digest]
    watermark_s = None if len(shape) == 1 else math.inf if shape[1] == FOREVER else shape[1] / MICRO_S
    return Parcel(kind, head, body[shape[0] :], digest, watermark_s)


def _digest_of(head: bytes) -> str:
    return hashlib.sha256(head).hexdigest()[:32] if len(head) <= MOST_HEAD_BYTES else ""


def _micros(watermark_s: float) -> int:
    return FOREVER if watermark_s == math.inf else math.floor(watermark_s * MICRO_S)


def parcel_of(value: Any) -> Parcel:
    """The parcel of a value that is neither ``bytes`` nor an array; OperatorError for one that cannot travel (R4)."""
    if type(value) is Parcel:  # it was one already
        return value
    if value is NOTHING:
        return Parcel("nothing", opened=NOTHING)
    if type(value).__module__ == "pyarrow.lib":
        return _records_of(value)
    head = b""
    if isinstance(value, msgspec.Struct):
        head = _path_of(type(value)).encode()
    else:
        try:
            _check_data(value, "")
        except RecursionError:
            raise OperatorError(f"a {type(value).__name__} that contains itself does not travel") from None
    try:
        body = _encode(value)
        if head:  # what does not fit the class is found where it was made
            msgspec.msgpack.decode(body, type=type(value))
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise OperatorError(f"a {type(value).__name__} does not travel: {one_line(error)}") from None
    return Parcel("plain", head, body)


def marked(value: Any, watermark_s: float | None) -> Any:
    """The same value with this watermark, where it is a parcel: arrays and bytes have no events in them."""
    if type(value) is Parcel and watermark_s != value.watermark_s:
        if watermark_s is not None:
            if math.isnan(watermark_s) or not -(2**62) < (micros := _micros(watermark_s)) <= FOREVER:
                raise OperatorError(f"a watermark of {watermark_s!r}; give seconds")
            watermark_s = math.inf if micros == FOREVER else micros / MICRO_S
        return Parcel(value.kind, value.head, value.body, value.digest, watermark_s, value.opened)
    return value


def opened(value: Any, packages: Collection[str] = ()) -> Any:
    """What a value stands for, as code and the application get it; OperatorError where that cannot be had here.

    ``packages``: those whose structs may be named.
    """
    if type(value) is not Parcel:
        return value
    if value.kind == "plain":
        return _data_of(value, packages)
    if value.opened is None:
        value.opened = NOTHING if value.kind == "nothing" else _open_records(value)
    return value.opened


# --- plain data -----------------------------------------------------------------------------------------

_encode = msgspec.msgpack.Encoder().encode
INSTEAD = {
    "set": "a list",
    "frozenset": "a list",
    "complex": "a list of two floats",
    "ndarray": "its tolist(), or the array itself",
    "DataFrame": "pyarrow.Table.from_pandas(frame), or what the frame's to_arrow() gives",
    "datetime": "its isoformat(), or a msgspec.Struct with a field of that class",
    "date": "its isoformat(), or a msgspec.Struct with a field of that class",
    "Decimal": "a str, or a msgspec.Struct with a field of that class",
    "generator": "a list",
    "NoneType": "NOTHING for an index without a value",
    "Array": "a pyarrow.RecordBatch or a pyarrow.Table",
}


def _check_data(value: Any, where: str) -> None:
    """R4: OperatorError for what msgpack would give back as something else. Tuples come as lists."""
    kind = type(value)
    if kind is dict:
        for key, each in value.items():
            if type(key) not in (str, int):
                raise OperatorError(
                    f"the key {shown(key)}{where and f' at {where}'} does not travel; use a str or an int"
                )
            _check_data(each, f"{where}[{key!r}]")
    elif kind is list or kind is tuple:
        for position, each in enumerate(value):
            _check_data(each, f"{where}[{position}]")
    elif kind not in (bool, int, float, str, bytes) and (value is not None or not where):
        name = kind.__name__
        advice = INSTEAD.get(name, "plain data (str, numbers, bool, dict, list), a msgspec.Struct, or bytes")
        if isinstance(value, msgspec.Struct):
            advice = f"a msgspec.Struct with a field of list[{name}] or dict[str, {name}]"
        elif isinstance(value, np.generic):
            advice = "its item()"
        raise OperatorError(f"a value of type {name}{where and f' at {where}'} does not travel; return {advice}")


def _path_of(kind: type) -> str:
    """Where whoever gets a struct finds its class."""
    path = f"{kind.__module__}:{kind.__qualname__}"
    found = getattr(sys.modules.get(kind.__module__), kind.__qualname__, None)
    if kind.__module__ == "__main__" or found is not kind:
        raise OperatorError(f"a struct of {path!r} does not travel; define its class in a module, outside of functions")
    return path


def _data_of(parcel: Parcel, packages: Collection[str]) -> Any:
    kind: Any = Any
    if parcel.head:
        kind = find_code(parcel.head.decode(errors="replace"), packages)
        if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
            raise OperatorError(f"a value names {kind!r} as its class, which is no msgspec.Struct")
    try:
        return msgspec.msgpack.decode(parcel.body, type=kind)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise OperatorError(
            f"a value of {len(parcel.body)} bytes does not read as it says: {one_line(error)}"
        ) from None


# --- records ----------------------------------------------------------------------------------------------


def arrow() -> Any:
    """pyarrow; OperatorError that says how to install it."""
    try:
        import pyarrow.ipc
    except ImportError:
        raise OperatorError(f"records need pyarrow, which is not installed here: {INSTALL_RECORDS}") from None
    return pyarrow


class _Layout(NamedTuple):
    """A schema as read once: ``whole`` for one with dictionaries, whose records are read as one stream with it."""

    schema: Any
    digest: str
    whole: bool


@lru_cache(maxsize=HEADS_KNOWN)
def _layout(head: bytes) -> _Layout:
    schema = arrow().ipc.read_schema(arrow().py_buffer(head))
    whole = any(map(_has_dictionary, schema.types))
    return _Layout(schema, "" if whole else _digest_of(head), whole)


def _has_dictionary(kind: Any) -> bool:
    if arrow().types.is_dictionary(kind):
        return True
    inner = (
        [kind.storage_type] if hasattr(kind, "storage_type") else [kind.field(i).type for i in range(kind.num_fields)]
    )
    return any(map(_has_dictionary, inner))


def _records_of(value: Any) -> Parcel:
    """R6."""
    pa = arrow()
    kind = {pa.RecordBatch: "batch", pa.Table: "table"}.get(type(value))
    if kind is None:
        advice = "its as_py()" if hasattr(value, "as_py") else INSTEAD["Array"]
        raise OperatorError(f"a value of type pyarrow.{type(value).__name__} does not travel; return {advice}")
    if value.nbytes > MAX_PARTITION_BYTES:
        raise OperatorError(f"a {kind} of {value.nbytes} bytes; a partition has at most {MAX_PARTITION_BYTES}")
    try:
        head = value.schema.serialize().to_pybytes()
        layout = _layout(head)
        if layout.whole:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, value.schema) as writer:
                writer.write(value)
            body = memoryview(sink.getvalue())[len(head) :]
        else:
            batches = [value] if kind == "batch" else value.to_batches()
            bodies = [memoryview(batch.serialize()) for batch in batches]
            body = bodies[0] if len(bodies) == 1 else memoryview(b"".join(bodies))
    except pa.ArrowException as error:
        raise OperatorError(f"a {kind} does not travel: {one_line(error)}") from None
    parcel = Parcel(kind, head, body.toreadonly(), layout.digest)
    parcel.opened = _read_records(parcel)
    return parcel


def _open_records(parcel: Parcel) -> Any:
    """What has come from another host: offsets that point anywhere would be followed."""
    pa = arrow()
    try:
        value = _read_records(parcel)
        value.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError) as error:
        raise OperatorError(f"records of {len(parcel.body)} bytes do not read: {one_line(error)}") from None
    return value


def _read_records(parcel: Parcel) -> Any:
    pa, layout, body = arrow(), _layout(parcel.head), parcel.body
    buffer = pa.py_buffer(b"".join((parcel.head, body)) if layout.whole else body)
    if buffer.address % 8:  # what a small frame holds may lie anywhere, and kernels take no such memory
        buffer = pa.py_buffer(bytes(body))
    if layout.whole:
        batches = list(pa.ipc.open_stream(buffer))
    else:
        batches = [pa.ipc.read_record_batch(each, layout.schema) for each in pa.ipc.MessageReader.open_stream(buffer)]
    if parcel.kind == "table":
        return pa.Table.from_batches(batches, layout.schema)
    if len(batches) != 1:
        raise OperatorError(f"a batch came as {len(batches)}")
    return batches[0]


def check_schema(parcel: Parcel, before: bytes, what: str) -> None:
    """OperatorError where the columns of records are not those of the records before, whose head is ``before``."""
    was, now = _layout(before).schema, _layout(parcel.head).schema
    for name in dict.fromkeys((*was.names, *now.names)):
        types = [schema.field(name).type if schema.names.count(name) == 1 else None for schema in (was, now)]
        if types[0] != types[1]:
            told = [f"{kind}" if kind is not None else "missing" for kind in types]
            advice = "all records of a stream have the same columns"
            raise OperatorError(f"{what}: column {name!r} is {told[1]}, and was {told[0]} before; {advice}")
    if was.names != now.names:
        raise OperatorError(f"{what}: the columns are {', '.join(now.names)}, and were {', '.join(was.names)} before")
