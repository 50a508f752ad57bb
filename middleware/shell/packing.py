"""Parcels: packing and opening of values that are neither ``bytes`` nor a single array.

Records are sent in Arrow's IPC format, plain data and msgspec's structs in msgpack. Nothing is a pickle. Rules, beside
those of ``values``:

- R6: Records are written once, when they are returned, and every reader has views of them. Plain data are decoded anew
  for each reader, who may change them.
- R7: A schema is sent with the first records on a line, until the records have arrived. Later records name the schema
  by its digest.
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Collection
from functools import cache, lru_cache
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np

from thalweg.middleware.errors import OperatorError, ProtocolError, one_line, shown
from thalweg.middleware.loading import Allow, find_code, importing
from thalweg.middleware.parcels import NOTHING, Parcel
from thalweg.middleware.protocol.messages import MAX_PARTITION_BYTES

RECORDS = ("batch", "table")
INSTALL_RECORDS = "pip install 'thalweg[records]'"
MOST_HEAD_BYTES = 65_536  # a longer schema is sent with all of its records
HEADS_KNOWN = 256
MICRO_S, FOREVER = 1_000_000, 2**63 - 1  # unit of watermarks on the wire; watermark without further records


# --- on the wire ----------------------------------------------------------------------------------------


class ValueReceiver(Protocol):
    """Receiver of a value. ``heads``: digests of the heads that the receiver has."""

    @property
    def heads(self) -> Collection[str]: ...


def parcel_frames(value: Parcel, to: ValueReceiver | None) -> tuple[str, tuple[int, ...], memoryview]:
    """Return the three parts of a parcel for sending to ``to``.

    They are the kind with the digest, the length of the head with the watermark, and the bytes.
    """
    kind, head, body = value.kind, value.head, value.body
    if to is not None and value.digest and value.digest in to.heads:  # R7: the receiver knows the schema by its digest
        head = b""
    marks = () if value.watermark_s is None else (_micros(value.watermark_s),)
    whole = memoryview(b"".join((head, body)) if head else body)
    return f"{kind} {value.digest}" if value.digest else kind, (len(head), *marks), whole


def parcel_from(dtype: str, shape: tuple[int, ...], body: memoryview, heads: dict[str, bytes]) -> Parcel | None:
    """Return the parcel from the three parts of ``parcel_frames``. None: its head is not among ``heads``.

    Raises ProtocolError if the parts do not fit.
    """
    kind, _, digest = dtype.partition(" ")
    if kind not in ("nothing", "plain", *RECORDS) or not 1 <= len(shape) <= 2 or not 0 <= shape[0] <= len(body):
        raise ProtocolError(f"a value of {len(body)} bytes cannot have kind {dtype!r} and lengths {shape}")
    head = bytes(body[: shape[0]])
    if digest and head:
        if _digest_of(head) != digest:
            raise ProtocolError(f"the head of a {kind} does not have the digest that the message names")
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
    """Return the parcel of a value that is neither ``bytes`` nor an array.

    Raises OperatorError for a value that cannot be sent (R4).
    """
    if type(value) is Parcel:  # the value is a parcel already
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
        if head:  # a value that does not fit its class is found where it was made
            msgspec.msgpack.decode(body, type=type(value))
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise OperatorError(f"a {type(value).__name__} does not travel: {one_line(error)}") from None
    return Parcel("plain", head, body)


def marked(value: Any, watermark_s: float | None) -> Any:
    """Return the value with this watermark if the value is a parcel. Arrays and bytes have no event times."""
    if type(value) is Parcel and watermark_s != value.watermark_s:
        if watermark_s is not None:
            if math.isnan(watermark_s) or not -(2**62) < (micros := _micros(watermark_s)) <= FOREVER:
                raise OperatorError(f"the watermark is {watermark_s!r}; give seconds")
            watermark_s = math.inf if micros == FOREVER else micros / MICRO_S
        return Parcel(value.kind, value.head, value.body, value.digest, watermark_s, value.opened)
    return value


def opened(value: Any, allow: Allow = ()) -> Any:
    """Return the object that a value stands for, as code and the application get it.

    ``allow``: packages whose structs may be named. Raises OperatorError if the object cannot be had on this host.
    """
    if type(value) is not Parcel:
        return value
    if value.kind == "plain":
        return _data_of(value, allow)
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
    """Raise OperatorError for data that msgpack would change (R4). Tuples become lists, which is accepted."""
    kind = type(value)
    if kind is dict:
        for key, element in value.items():
            if type(key) not in (str, int):
                raise OperatorError(
                    f"the key {shown(key)}{where and f' at {where}'} does not travel; use a str or an int"
                )
            _check_data(key, where)
            _check_data(element, f"{where}[{key!r}]")
    elif kind is list or kind is tuple:
        for position, element in enumerate(value):
            _check_data(element, f"{where}[{position}]")
    elif kind is int and not -(2**63) <= value < 2**64:
        raise OperatorError(
            f"the number {shown(value)}{where and f' at {where}'} does not travel; return a str or a float"
        )
    elif kind not in (bool, int, float, str, bytes) and (value is not None or not where):
        name = kind.__name__
        advice = INSTEAD.get(name, "plain data (str, numbers, bool, dict, list), a msgspec.Struct, or bytes")
        if isinstance(value, msgspec.Struct):
            advice = f"a msgspec.Struct with a field of list[{name}] or dict[str, {name}]"
        elif isinstance(value, np.generic):
            advice = "its item()"
        raise OperatorError(f"a value of type {name}{where and f' at {where}'} does not travel; return {advice}")


def _path_of(kind: type) -> str:
    """Return the path by which a reader finds a struct's class. Raises OperatorError for a class without a path."""
    path = f"{kind.__module__}:{kind.__qualname__}"
    definition = getattr(sys.modules.get(kind.__module__), kind.__qualname__, None)
    if kind.__module__ == "__main__" or definition is not kind:
        raise OperatorError(f"a struct of {path!r} does not travel; define its class in a module, outside of functions")
    return path


def _data_of(parcel: Parcel, allow: Allow) -> Any:
    kind: Any = Any
    if parcel.head:
        kind = find_code(parcel.head.decode(errors="replace"), allow)
        if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
            raise OperatorError(f"a value names {kind!r} as its class, which is no msgspec.Struct")
    try:
        return msgspec.msgpack.decode(parcel.body, type=kind)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise OperatorError(f"a value of {len(parcel.body)} bytes cannot be decoded: {one_line(error)}") from None


# --- records ----------------------------------------------------------------------------------------------


@cache
def _import_arrow() -> None:
    """Import pyarrow once, while no other thread imports."""
    with importing():
        import pyarrow.ipc  # noqa: F401  # ``arrow`` returns the module


def arrow() -> Any:
    """Return pyarrow. Raises OperatorError with the install command if pyarrow is not installed."""
    try:
        _import_arrow()
        import pyarrow.ipc
    except ImportError:
        raise OperatorError(f"records need pyarrow, which is not installed here: {INSTALL_RECORDS}") from None
    return pyarrow


class _Layout(NamedTuple):
    """Schema that has been read. ``whole``: it has dictionaries, so records are read as one stream with the schema."""

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
    """Return the parcel of Arrow records (R6). Raises OperatorError for an Arrow object that cannot be sent."""
    pa = arrow()
    kind = {pa.RecordBatch: "batch", pa.Table: "table"}.get(type(value))
    if kind is None:
        advice = "its as_py()" if hasattr(value, "as_py") else INSTEAD["Array"]
        raise OperatorError(f"a value of type pyarrow.{type(value).__name__} does not travel; return {advice}")
    if value.nbytes > MAX_PARTITION_BYTES:
        raise OperatorError(f"a {kind} has {value.nbytes} bytes; a partition has at most {MAX_PARTITION_BYTES}")
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
    """Return the records of a parcel from another host, fully validated, as wrong offsets would be followed."""
    pa = arrow()
    try:
        value = _read_records(parcel)
        value.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError) as error:
        raise OperatorError(f"records of {len(parcel.body)} bytes cannot be read: {one_line(error)}") from None
    return value


def _read_records(parcel: Parcel) -> Any:
    pa, layout, body = arrow(), _layout(parcel.head), parcel.body
    buffer = pa.py_buffer(b"".join((parcel.head, body)) if layout.whole else body)
    if buffer.address % 8:  # memory of a small frame may be unaligned, which kernels refuse
        buffer = pa.py_buffer(bytes(body))
    if layout.whole:
        batches = list(pa.ipc.open_stream(buffer))
    else:
        batches = [
            pa.ipc.read_record_batch(message, layout.schema) for message in pa.ipc.MessageReader.open_stream(buffer)
        ]
    if parcel.kind == "table":
        return pa.Table.from_batches(batches, layout.schema)
    if len(batches) != 1:
        raise OperatorError(f"a batch came as {len(batches)} batches")
    return batches[0]


def check_schema(parcel: Parcel, before: bytes, what: str) -> None:
    """Raise OperatorError if the columns of records differ from those of the records before.

    ``before``: head of the records before.
    """
    was, now = _layout(before).schema, _layout(parcel.head).schema
    for name in dict.fromkeys((*was.names, *now.names)):
        types = [schema.field(name).type if schema.names.count(name) == 1 else None for schema in (was, now)]
        if types[0] != types[1]:
            kinds = [f"{kind}" if kind is not None else "missing" for kind in types]
            advice = "all records of a stream have the same columns"
            raise OperatorError(f"{what}: column {name!r} is {kinds[1]}, and was {kinds[0]} before; {advice}")
    if was.names != now.names:
        raise OperatorError(f"{what}: the columns are {', '.join(now.names)}, and were {', '.join(was.names)} before")
