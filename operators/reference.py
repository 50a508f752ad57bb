"""Reference of a run: the dataflow evaluated in this process without hosts, and digests for comparisons."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import count
from types import MappingProxyType
from typing import Any

import numpy as np

from thalweg.middleware.dataflow import Dataflow, Node
from thalweg.middleware.errors import OperatorError, UsageError
from thalweg.middleware.loading import DEFAULT_ALLOW
from thalweg.middleware.shell.node_code import OwnCode
from thalweg.middleware.shell.packing import arrow, opened, parcel_of

EVERYTHING: Mapping[str, int] = MappingProxyType({})


def digest(value: Any) -> str:
    """Return ``sha256:…`` over dtype, shape and bytes of an array, or kind, schema and bytes of another value.

    Only equal values of one type have equal digests. Raise OperatorError for a value that cannot be sent.
    """
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise OperatorError(f"there is no digest of an array of {value.dtype}; use numbers")
        head = f"{value.dtype.str} {'x'.join(map(str, value.shape))}\n"
        body = np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
    elif isinstance(value, bytes):
        head = f"bytes {len(value)}\n"
        body = memoryview(value)
    else:
        if hasattr(value, "schema"):  # records: buffers may be longer than the values
            value = _compact(value)
        parcel = parcel_of(value.combine_chunks() if hasattr(value, "combine_chunks") else value)
        head = f"{parcel.kind} {len(parcel.head)} {len(parcel.body)}\n"
        body = memoryview(parcel.head + parcel.body)
    import hashlib  # loads OpenSSL: 4 MB, which host processes do without

    state = hashlib.sha256(head.encode())
    state.update(body)
    return f"sha256:{state.hexdigest()}"


def _compact(records: Any) -> Any:
    """Return records in buffers of their own size. Views and run ends, without ``take``, become their values."""
    from thalweg.operators.columns import carried_as, decoded  # needs pyarrow, as records do

    table = records if hasattr(records, "combine_chunks") else arrow().Table.from_batches([records])
    rows, columns = arrow().array(range(table.num_rows), "int64"), []
    for column in table.columns:
        kind = carried_as(column.type, dictionaries=True)
        columns.append(column if kind is None else decoded(column, kind).take(rows))
    if all(column.type == kind for column, kind in zip(columns, table.schema.types, strict=True)):
        return records.take(rows)
    return arrow().table(columns, names=table.column_names)


def sequence_digest(digests: Iterable[str]) -> str:
    """Return the digest of a whole delivery from the digests of its partitions in order.

    It is ``sha256:`` and the SHA-256, 64 hex digits, of the partitions' digests (any text, as in ``detail.digest``)
    joined by newlines.
    """
    whole = hashlib.sha256()
    for i, digest in enumerate(digests):
        whole.update(f"\n{digest}".encode() if i else digest.encode())
    return f"sha256:{whole.hexdigest()}"


def reference_run(
    dataflow: Dataflow,
    partitions: int | None = None,
    allow: Collection[str] = DEFAULT_ALLOW,
    *,
    sink: str = "",
    first: Mapping[str, int] = EVERYTHING,
) -> Iterator[Any]:
    """Return an iterator of the values of a sink, evaluated in order in this process, one index at a time.

    ``sink``: name of the sink if the dataflow has several. An index without a value gives ``NOTHING``. A sink with
    several inputs gives tuples. The iterator ends after ``partitions``, or when the first source below the sink ends.
    ``allow``: packages whose code may be named by import path. ``first``: first partition of nodes, also sinks, of a
    query that began while data flowed. Raise DataflowError, or OperatorError from loading or from a node's code. Raise
    UsageError if ``partitions`` is negative, or a source is not replayable.
    """
    dataflow.validate()
    if partitions is not None and partitions < 0:
        raise UsageError(f"partitions={partitions}; give the number of partitions, 0 or more")
    below = dataflow.below(sink or dataflow.sinks[0])
    nodes = [dataflow.by_name[name] for name in dataflow.upward if name in below]
    codes = {node.name: OwnCode(node, allow) for node in nodes if node.code is not None}
    for name, code in codes.items():
        if not getattr(code.code, "replayable", True):
            raise UsageError(f"source {name!r} gives each value once: it has no reference; keep the delivered values")
    return _evaluate(nodes, codes, partitions, allow, first)


def _evaluate(
    nodes: Sequence[Node],
    codes: Mapping[str, OwnCode],
    partitions: int | None,
    allow: Collection[str],
    first: Mapping[str, int],
) -> Iterator[Any]:
    """Yield the values of the last of ``nodes``, a sink."""
    *producers, sink = nodes
    for index in count() if partitions is None else range(partitions):
        values: dict[str, Any] = {}
        for node in producers:
            if index < first.get(node.name, 0):
                continue
            result = codes[node.name].make(index, tuple([values[producer] for producer in node.inputs]))
            if result.end:
                return
            values[node.name] = result.value
        if index < first.get(sink.name, 0):
            continue
        inputs = tuple([opened(values[producer], allow) for producer in sink.inputs])
        yield inputs if len(inputs) > 1 else inputs[0]
