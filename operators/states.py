"""Bytes of an operator's state: a header that names the operator and its arrays, then the arrays' raw bytes.

    "TWS1" | length of the header, 4 bytes, little-endian | header, msgpack | the arrays' bytes, little-endian, in order

Every content has exactly one encoding. Equal states are equal bytes, and ``pack`` returns byte for byte what ``unpack``
has accepted. A state contains nothing executable. Memory is allocated only after the sizes have been found to agree.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from thalweg.middleware.errors import OperatorError

Array = NDArray[Any]
Param = str | int | None

_MAGIC = b"TWS1"
_PREFIX_BYTES = len(_MAGIC) + 4
_DTYPE = re.compile(r"\|[iu]1|<[iu][248]|<f[248]")

_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Form(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: str
    shape: tuple[_Count, ...]


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    operator: str
    version: int
    params: dict[str, Param]
    counts: dict[str, _Count]
    arrays: tuple[_Form, ...]


_encoder = msgspec.msgpack.Encoder(order="deterministic")
_decoder = msgspec.msgpack.Decoder(_Header)


def is_numeric(value: object) -> bool:
    """Return whether ``value`` is an array that a state can hold: integers or floats of at most 8 bytes, in native
    order.
    """
    return (
        isinstance(value, np.ndarray)
        and value.dtype.kind in "iuf"
        and value.dtype.itemsize <= 8
        and value.dtype.isnative
    )


def pack(
    operator: str, version: int, params: Mapping[str, Param], counts: Mapping[str, int], arrays: Sequence[Array]
) -> bytes:
    """Return the state of ``operator`` constructed with ``params``, as bytes.

    ``counts``: numbers by name, 0 or more. ``arrays``: the state's arrays (see ``is_numeric``).
    """
    little = [np.asarray(array, array.dtype.newbyteorder("<"), order="C") for array in arrays]
    forms = tuple(_Form(array.dtype.str, array.shape) for array in little)
    header = _encoder.encode(_Header(operator, version, dict(params), dict(counts), forms))
    bodies = [array.reshape(-1).view(np.uint8).data for array in little if array.size]
    return b"".join([_MAGIC, len(header).to_bytes(4, "little"), header, *bodies])


def unpack(
    state: bytes, operator: str, version: int, params: Mapping[str, Param], counts: Sequence[str]
) -> tuple[dict[str, int], list[Array]]:
    """Return the counts and the arrays of a state that ``pack`` encoded for the same operator and params. The arrays
    are new.

    ``counts``: the names that the state must have. Raise OperatorError, with one line that says what does not fit.
    """
    header = _header(state, operator)
    if header.operator != operator:
        raise OperatorError(f"{operator}: the state belongs to operator {header.operator!r}")
    if header.version != version:
        raise OperatorError(f"{operator}: the state is of version {header.version}; this is version {version}")
    if header.params != dict(params):
        differ = sorted(
            name for name in header.params.keys() | params.keys() if header.params.get(name) != params.get(name)
        )
        raise OperatorError(
            f"{operator}: the state was made with other params: "
            + ", ".join(f"{name}={header.params.get(name)!r}, here {params.get(name)!r}" for name in differ)
        )
    if set(header.counts) != set(counts):
        raise OperatorError(f"{operator}: the state counts {sorted(header.counts)}, not {sorted(counts)}")
    start = _PREFIX_BYTES + int.from_bytes(state[len(_MAGIC) : _PREFIX_BYTES], "little")
    kinds = [_dtype(form.dtype, operator) for form in header.arrays]
    sizes = [kind.itemsize * math.prod(form.shape) for kind, form in zip(kinds, header.arrays, strict=True)]
    if sum(sizes) != len(state) - start:
        raise OperatorError(
            f"{operator}: the state's arrays take {sum(sizes)} bytes, but {len(state) - start} follow its header"
        )
    arrays: list[Array] = []
    for kind, form, size in zip(kinds, header.arrays, sizes, strict=True):
        try:
            stored = np.frombuffer(state, kind, size // kind.itemsize, start).reshape(form.shape)
        except (ValueError, OverflowError) as error:  # more dimensions than numpy has; a huge one beside a zero
            raise OperatorError(f"{operator}: no array has the state's shape {form.shape}: {error}") from None
        arrays.append(stored.astype(kind.newbyteorder("=")))
        start += size
    return header.counts, arrays


def _header(state: bytes, operator: str) -> _Header:
    if state[: len(_MAGIC)] != _MAGIC:
        raise OperatorError(f"{operator}: {len(state)} bytes are no state: they do not begin with {_MAGIC!r}")
    length = int.from_bytes(state[len(_MAGIC) : _PREFIX_BYTES], "little")
    if len(state) < _PREFIX_BYTES + length:
        raise OperatorError(
            f"{operator}: the state is cut off: it has {len(state)} bytes, and its header ends at"
            f" {_PREFIX_BYTES + length}"
        )
    raw = state[_PREFIX_BYTES : _PREFIX_BYTES + length]
    try:
        header = _decoder.decode(raw)
        canonical = _encoder.encode(header)
    except (msgspec.DecodeError, UnicodeDecodeError, OverflowError, ValueError) as error:
        raise OperatorError(f"{operator}: the state's header cannot be read: {error}") from None
    if canonical != raw:
        raise OperatorError(f"{operator}: the state's header is not as this operator writes it")
    return header


def _dtype(text: str, operator: str) -> np.dtype[Any]:
    if _DTYPE.fullmatch(text) is None:  # numpy's own parser accepts much more, even expressions
        raise OperatorError(f"{operator}: the state holds an array of dtype {text!r}, not of plain numbers")
    return np.dtype(text)
