"""What a single machine would give: the dataflow evaluated in this process, and digests to compare by."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from thalweg.middleware.dataflow import Dataflow
from thalweg.middleware.errors import OperatorError, UsageError
from thalweg.middleware.loading import DEFAULT_ALLOW, load_code
from thalweg.operators.interface import Operator, Source, Value


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
    sources: dict[str, Source] = {}
    operators: dict[str, Operator] = {}
    for name in dataflow.upward:
        node = dataflow.by_name[name]
        if node.code is None:
            continue
        code = load_code(node.code, allow)
        wanted = "produce" if node.kind == "source" else "combine"
        if not hasattr(code, wanted):
            raise OperatorError(f"{node.kind} {name!r} runs {node.code.use!r}, which has no {wanted}()")
        if node.kind == "source":
            sources[name] = code
        else:
            operators[name] = code
    return _evaluate(dataflow, sources, operators, partitions)


def _evaluate(
    dataflow: Dataflow, sources: dict[str, Source], operators: dict[str, Operator], partitions: int | None
) -> Iterator[Value]:
    index = 0
    while partitions is None or index < partitions:
        values: dict[str, Value] = {}
        for name in dataflow.upward:
            node = dataflow.by_name[name]
            if name in sources:
                value = sources[name].produce(index)
                if value is None:
                    return
                values[name] = value
            else:
                inputs = [values.pop(producer) for producer in node.inputs]
                values[name] = operators[name].combine(inputs, index) if name in operators else inputs[0]
        yield values[dataflow.sink]
        index += 1
