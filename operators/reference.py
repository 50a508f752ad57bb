"""What a single machine would give: the dataflow evaluated in this process, and digests to compare by."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import count
from typing import Any

import numpy as np

from thalweg.middleware.dataflow import Dataflow
from thalweg.middleware.errors import OperatorError, UsageError
from thalweg.middleware.loading import DEFAULT_ALLOW
from thalweg.middleware.shell.node_code import OwnCode
from thalweg.middleware.shell.values import opened, parcel_of


def digest(value: Any) -> str:
    """``sha256:…`` over dtype, shape and bytes, or kind, schema and bytes; equal only for equal values of one type.

    Raises OperatorError for anything that does not travel.
    """
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise OperatorError(f"no digest of an array of {value.dtype}; use numbers")
        head = f"{value.dtype.str} {'x'.join(map(str, value.shape))}\n"
        body = np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
    elif isinstance(value, bytes):
        head = f"bytes {len(value)}\n"
        body = memoryview(value)
    else:
        parcel = parcel_of(value.combine_chunks() if hasattr(value, "combine_chunks") else value)
        head = f"{parcel.kind} {len(parcel.head)} {len(parcel.body)}\n"
        body = memoryview(parcel.head + parcel.body)
    import hashlib  # OpenSSL: 4 MB that a host process does without

    state = hashlib.sha256(head.encode())
    state.update(body)
    return f"sha256:{state.hexdigest()}"


def sequence_digest(digests: Iterable[str]) -> str:
    """The digest of a whole delivery, ``sha256:`` and 64 hex digits, from its partitions' in their order.

    It is the SHA-256 of the partitions' digests (any text, as in ``detail.digest``) joined by newlines.
    """
    whole = hashlib.sha256()
    for i, digest in enumerate(digests):
        whole.update(f"\n{digest}".encode() if i else digest.encode())
    return f"sha256:{whole.hexdigest()}"


def reference_run(
    dataflow: Dataflow, partitions: int | None = None, allow: Collection[str] = DEFAULT_ALLOW
) -> Iterator[Any]:
    """The sink's values in order, evaluated in this process one index at a time; ``NOTHING`` where there is none.

    Ends after ``partitions``, or when the first source ends. ``allow``: packages whose code may be named by
    import path. Raises DataflowError, or OperatorError from loading or from a node's code.
    """
    dataflow.validate()
    if partitions is not None and partitions < 0:
        raise UsageError(f"partitions={partitions}; give the number of partitions, 0 or more")
    nodes = [dataflow.by_name[name] for name in dataflow.upward]
    codes = {node.name: OwnCode(node, allow) for node in nodes if node.code is not None}
    return _evaluate(dataflow, codes, partitions, allow)


def _evaluate(
    dataflow: Dataflow, codes: Mapping[str, OwnCode], partitions: int | None, allow: Collection[str]
) -> Iterator[Any]:
    for index in count() if partitions is None else range(partitions):
        values: dict[str, Any] = {}
        for name in dataflow.upward:
            inputs = tuple(values.pop(producer) for producer in dataflow.by_name[name].inputs)
            if name not in codes:
                values[name] = inputs[0]
                continue
            made = codes[name].make(index, inputs)
            if made.end:
                return
            values[name] = made.value
        yield opened(values[dataflow.sink], allow)
