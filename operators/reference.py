"""What a single machine would give: the dataflow evaluated in this process, and digests to compare by."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import count
from typing import Any

import numpy as np

from thalweg.middleware.dataflow import Dataflow
from thalweg.middleware.errors import OperatorError, UsageError
from thalweg.middleware.loading import DEFAULT_ALLOW, load_code
from thalweg.middleware.shell.values import returned_by
from thalweg.operators.interface import Value


def digest(value: Value) -> str:
    """``sha256:…`` over dtype, shape and bytes; equal only for equal values of one type.

    Raises OperatorError for anything but ``bytes`` and an array of numbers.
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
        raise OperatorError(f"no digest of {type(value).__name__}; a partition is an array or bytes")
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
) -> Iterator[Value]:
    """The sink's partitions in order, evaluated in this process one index at a time.

    Ends after ``partitions``, or when the first source ends. ``allow``: packages whose code may be named by
    import path. Raises DataflowError, or OperatorError from loading or from a node's code.
    """
    dataflow.validate()
    if partitions is not None and partitions < 0:
        raise UsageError(f"partitions={partitions}; give the number of partitions, 0 or more")
    codes: dict[str, Any] = {}
    for name in dataflow.upward:
        node = dataflow.by_name[name]
        if node.code is None:
            continue
        codes[name] = load_code(node.code, allow)
        wanted = "produce" if node.kind == "source" else "combine"
        if not hasattr(codes[name], wanted):
            raise OperatorError(f"{node.kind} {name!r} runs {node.code.use!r}, which has no {wanted}()")
    return _evaluate(dataflow, codes, partitions)


def _evaluate(dataflow: Dataflow, codes: Mapping[str, Any], partitions: int | None) -> Iterator[Value]:
    for index in count() if partitions is None else range(partitions):
        values: dict[str, Value] = {}
        for name in dataflow.upward:
            node = dataflow.by_name[name]
            inputs = [values.pop(producer) for producer in node.inputs]
            if node.kind != "source":
                values[name] = (
                    returned_by(codes[name].combine, inputs, index, inputs=inputs) if name in codes else inputs[0]
                )
            elif (value := returned_by(codes[name].produce, index)) is not None:
                values[name] = value
            else:
                return
        yield values[dataflow.sink]
