"""Sources and operators for tests of the runtime, which hosts of a test cluster are allowed to load."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from thalweg import NOTHING
from thalweg.middleware.dataflow import Code, Dataflow
from thalweg.middleware.loading import DEFAULT_ALLOW
from thalweg.operators import Operator, Source
from thalweg.operators.reference import digest, reference_run

ALLOW = ("runtime_codes",)
MIX = Code("runtime_codes:Mix")


def blocks(hosts: Iterable[str] = ("h1", "h2", "h3"), **params: Any) -> dict[str, Code]:
    """Return the code of a source for each host."""
    return {host: Code("runtime_codes:Blocks", {"site": i, **params}) for i, host in enumerate(hosts)}


def assert_reference(got: Sequence[Any], flow: Dataflow, partitions: int | None) -> None:
    """Check that the values equal those of a single process."""
    expected = [digest(value) for value in reference_run(flow, partitions, (*DEFAULT_ALLOW, *ALLOW))]
    assert [digest(value) for value in got] == expected
    assert partitions is None or len(got) == partitions


class Blocks(Source):
    """Source of noise that depends on site and index. Sizes repeat. ``text``: bytes instead of arrays."""

    def __init__(
        self, site: int, sizes: Sequence[int] = (1000,), length: int | None = None, text: bool = False
    ) -> None:
        self.site, self.sizes, self.length, self.text = site, sizes, length, text

    def produce(self, index: int) -> Any:
        if self.length is not None and index >= self.length:
            return None
        size = self.sizes[index % len(self.sizes)]
        block = np.random.default_rng([self.site, index]).integers(0, 256, size, dtype=np.uint8)
        return block.tobytes() if self.text else block

    def size_bytes(self) -> float:
        return sum(self.sizes) / len(self.sizes)


class Pictures(Source):
    """Source of grey noise images, which get brighter with the index. Heights and widths repeat."""

    def __init__(self, site: int, sizes: Sequence[Sequence[int]]) -> None:
        self.site, self.sizes = site, sizes

    def produce(self, index: int) -> Any:
        height, width = self.sizes[(index + self.site) % len(self.sizes)]
        random = np.random.default_rng([self.site, index])
        return random.integers(0, 2 + index % 250, (height, width), dtype=np.uint8)


class Mix(Operator):
    """Sum of the inputs, weighted by position, so that an output depends on the inputs and on their order."""

    def combine(self, inputs: Sequence[Any], index: int) -> Any:
        if isinstance(inputs[0], bytes):
            return b"|".join([*inputs, str(index).encode()])
        out = np.full_like(inputs[0], index % 256)
        for place, value in enumerate(inputs):
            out += value * np.uint8(2 * place + 3)
        return out


class Largest(Operator):
    """Maximum of each byte, which is the same in every order and grouping."""

    reorderable = True

    def combine(self, inputs: Sequence[Any], index: int) -> Any:
        return np.maximum.reduce(inputs)


class Stalls(Operator):
    """Operator that waits at partition ``at`` until a process opens the named pipe ``path`` for writing."""

    def __init__(self, path: str, at: int) -> None:
        self.path, self.at = path, at

    def combine(self, inputs: Sequence[Any], index: int) -> Any:
        if index == self.at:
            with open(self.path, "rb") as pipe:
                pipe.read()
        return inputs[0]


class Hangs(Operator):
    """Operator that sleeps at every partition, and never returns at partition ``at``, or when it is made (-1)."""

    def __init__(self, at: int | None = None, sleeps_s: float = 0.0) -> None:
        self.at, self.sleeps_s = at, sleeps_s
        self.combine((b"",), -1)

    def combine(self, inputs: Sequence[Any], index: int) -> Any:
        if index == self.at:
            threading.Event().wait()
        if self.sleeps_s:
            time.sleep(self.sleeps_s)
        return inputs[0]


class Talks(Operator):
    """Operator that prints more than a pipe holds, and reads all of its standard input."""

    def combine(self, inputs: Sequence[Any], index: int) -> Any:
        print(f"partition {index} {'…' * 100_000}")
        assert not sys.stdin.read()
        return inputs[0]


class Hushes(Operator):
    """Operator that closes its standard output and error."""

    def combine(self, inputs: Sequence[Any], index: int) -> Any:
        sys.stdout.close()
        sys.stderr.close()
        return inputs[0]


class Raises(Operator):
    """Operator that fails at partition ``at``, in the manner ``how``."""

    def __init__(self, how: str, at: int = 2) -> None:
        self.how, self.at = how, at

    def combine(self, inputs: Sequence[Any], index: int) -> Any:
        if index < self.at:
            return inputs[0]
        match self.how:
            case "value":
                raise ValueError("two lines\nof text")
            case "surrogate":
                raise FileNotFoundError("no file caf\udce9")
            case "long":
                raise ValueError("so " * 1_000_000)
            case "exit":
                sys.exit(3)
            case "none":
                return None
            case "set":
                return {"a": {1}}
            case _:
                return np.array([object()])


class Dies(Operator):
    """Operator that ends its host at partition ``at``: by ``os._exit(status)``, or by a signal if it is negative."""

    def __init__(self, status: int, at: int = 2) -> None:
        self.status, self.at = status, at

    def combine(self, inputs: Sequence[Any], index: int) -> Any:
        if index == self.at:
            if self.status >= 0:
                os._exit(self.status)
            os.kill(os.getpid(), -self.status)
        return inputs[0]


class Picky(Operator):
    """Operator that cannot be constructed."""

    def __init__(self) -> None:
        raise RuntimeError("never")

    def combine(self, inputs: Sequence[Any], index: int) -> Any:
        return inputs[0]


def not_an_operator() -> int:
    return 3


class Stubborn(Operator):
    """Operator that counts partitions, and whose state cannot be moved, for the reason ``how``."""

    def __init__(self, how: str) -> None:
        self.how = how
        self.count = 0

    @property
    def state_version(self) -> int:
        return os.getpid() if self.how == "version" else 1  # a different version on every host

    def combine(self, inputs: Sequence[Any], index: int) -> Any:
        self.count += 1
        return inputs[0] + np.uint8(self.count % 256)

    def snapshot(self) -> Any:
        match self.how:
            case "snapshot":
                raise ValueError("not now")
            case "type":
                return str(self.count)
            case "size":
                return bytes(64 * 1024 * 1024 + 1)
            case _:
                return self.count.to_bytes(8, "little")

    def restore(self, state: bytes) -> None:
        if self.how == "restore":
            raise ValueError("not here")
        self.count = int.from_bytes(state, "little")


# --- values that are no arrays -------------------------------------------------------------------------


class Plate(msgspec.Struct, frozen=True):
    text: str
    speed: float


class Gives(Source):
    """Source of a value at every ``every``-th index, else ``NOTHING``. Records change their schema at ``changes``."""

    def __init__(self, kind: str, every: int = 1, changes: int = -1, lag_s: float | None = None) -> None:
        self.kind, self.every, self.changes, self.lag_s = kind, every, changes, lag_s

    def produce(self, index: int) -> Any:
        self.watermark_s = None if self.lag_s is None else index - self.lag_s
        if index % self.every:
            return NOTHING
        columns = {"n": [f"{index}"] if index == self.changes else [index], "name": [f"row {index}"]}
        match self.kind:
            case "text":
                return f"text {index}"
            case "plain":
                return {"index": index, "parts": [1.5, None, b"x"]}
            case "struct":
                return Plate(f"plate {index}", 0.5)
        return pa.record_batch(columns) if self.kind == "batch" else pa.table(columns)


class Sees(Operator):
    """Operator whose output has the number of earlier calls, and the inputs."""

    def __init__(self, on_nothing: bool = False) -> None:
        self.on_nothing, self.calls = on_nothing, 0

    def combine(self, inputs: Sequence[Any], index: int) -> Any:
        self.calls += 1
        return f"{self.calls - 1} calls before {[*inputs]}"

    def snapshot(self) -> bytes:
        return self.calls.to_bytes(8, "little")

    def restore(self, state: bytes) -> None:
        self.calls = int.from_bytes(state, "little")


class Forwards(Operator):
    """Operator that returns the first input."""

    def combine(self, inputs: Sequence[Any], index: int) -> Any:
        return inputs[0]


class Marks(Operator):
    """Operator that returns the watermark of the inputs."""

    def combine(self, inputs: Sequence[Any], index: int) -> Any:
        return f"{self.watermark_s}"


class LateRows(Source):
    """Source of batches of two rows. From partition 3 on, the second row is of second 0, and late."""

    def produce(self, index: int) -> Any:
        self.watermark_s = float(index)
        return pa.record_batch({"t": [float(index), 0.0 if index > 2 else float(index)]})
