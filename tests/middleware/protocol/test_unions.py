"""Messages with every subtype of their structs are decoded unchanged. New messages take part by themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import msgspec
import pytest
from msgspec import inspect

from thalweg.middleware.core.host import OF_RUNS, HostCore
from thalweg.middleware.core.hosting.links import Links
from thalweg.middleware.core.hosting.runs import TABLE
from thalweg.middleware.core.runs.run import FROM_CLIENT, FROM_GUEST, TO_CLIENT
from thalweg.middleware.network.view import NET
from thalweg.middleware.protocol import frames
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.adaptation import SpaceMoves
from thalweg.middleware.shell.sockets import ANSWERS

ENDPOINT = "tcp://h:1"
HOPS = (m.LinkEnd("r", NET), m.LinkEnd("b", NET))
MADE: dict[type[Any], list[Any]] = {  # they check more than their types can say
    m.NetworkEndpoints: [m.NetworkEndpoints({NET: ENDPOINT})],
    SpaceMoves: [SpaceMoves()],
    m.RoutePreference: [m.RoutePreference("a", "b", (NET, HOPS))],
}


def subtypes(kind: type[Any]) -> Iterator[type[Any]]:
    for sub in kind.__subclasses__():
        yield sub
        yield from subtypes(sub)


CONCRETE = sorted(
    {
        kind
        for kind in subtypes(m.WireMessage)
        if kind not in (m.RunMessage, m.NodeMessage, m.ProposalMessage, m.StateMessage)
    },
    key=lambda kind: kind.__name__,
)


def samples(kind: inspect.Type) -> list[Any]:
    """Return values of a wire type: every alternative of a union once, and every subtype of a struct."""
    match kind:
        case inspect.StructType(cls=cls):
            return [value for form in (cls, *subtypes(cls)) for value in of_struct(form)]
        case inspect.UnionType():
            return [value for each in kind.types for value in samples(each)]
        case inspect.VarTupleType():
            inner = samples(kind.item_type)
            least = max(1, kind.min_length or 0)
            return [(value,) * least for value in inner]
        case inspect.TupleType():
            first = [samples(each)[0] for each in kind.item_types]
            return [tuple(first)]
        case inspect.DictType():
            return [{samples(kind.key_type)[0]: value} for value in samples(kind.value_type)]
        case inspect.StrType(pattern=str()):
            return [ENDPOINT]
        case inspect.StrType():
            return ["x" * (kind.min_length or 1)]
        case inspect.IntType():
            return [1 if kind.ge is None or kind.ge <= 1 else kind.ge]
        case inspect.FloatType():
            return [1.0]
        case inspect.BytesType():
            return [b"x"]
        case inspect.BoolType():
            return [True]
        case inspect.NoneType():
            return [None]
        case inspect.LiteralType():
            return list(kind.values)
        case inspect.Metadata():
            return samples(kind.type)
        case inspect.AnyType():
            return [1]
    raise AssertionError(f"no sample of {kind}")


def of_struct(cls: type[Any]) -> list[Any]:
    if cls in MADE:
        return MADE[cls]
    found = inspect.type_info(cls)
    assert isinstance(found, inspect.StructType)
    given = {field.encode_name: samples(field.type) for field in found.fields}
    least = {
        field.encode_name: given[field.encode_name][0]
        for field in found.fields
        if field.required or field.name == "ends"
    }
    values = [cls(**least)]
    for name, others in given.items():
        values += [cls(**least | {name: value}) for value in others]
    return values


def fit(message: Any) -> list[Any]:
    """Return the message in the form that ``frames`` accepts. Return nothing if its parts cannot be together."""
    change = msgspec.structs.replace
    if isinstance(message, m.AnyState):
        return [change(message, inline=b"x")]
    if isinstance(message, m.Partition):
        return [change(message, end=message.end or True)]
    if isinstance(message, m.Chunk):
        inner = message.message
        if isinstance(message, m.RelayedChunk) and not isinstance(inner, m.Partition):
            return []
        if isinstance(inner, m.Partition):
            inner = change(inner, end=False)
        elif isinstance(inner, m.AnyState):
            inner = change(inner, inline=None, size_bytes=message.total_bytes)
        return [change(message, message=inner, dtype="" if isinstance(inner, m.AnyState) else message.dtype)]
    return [message]


@pytest.mark.parametrize("kind", CONCRETE, ids=lambda kind: kind.__name__)
def test_every_message_with_every_subtype_in_every_field_is_decoded_unchanged(kind: type[Any]) -> None:
    decode = frames.decode_chunk if issubclass(kind, m.Chunk) else frames.decode_control
    sent = [message for sample in of_struct(kind) for message in fit(sample)]
    if kind is m.Probe:  # it travels in a chunk alone
        sent, decode = [m.Chunk(1, 1, 0, probe) for probe in sent], frames.decode_chunk
    assert sent
    for message in sent:
        assert decode(frames.encode(message)) == message
        assert type(decode(frames.encode(message))) is type(message)


def test_every_message_is_part_of_a_decoded_union() -> None:
    assert set(CONCRETE) == {*get_args(m.Control), m.Probe, m.Chunk, m.RelayedChunk}


@pytest.mark.parametrize(
    "table",
    [
        FROM_CLIENT,
        TO_CLIENT,
        FROM_GUEST,
        ANSWERS,
        OF_RUNS,
        TABLE.messages,
        HostCore._MESSAGES.keys(),
        Links.MESSAGES,
    ],
    ids=["from client", "to client", "from guest", "answers", "of runs", "run", "host", "links"],
)
def test_a_table_with_a_message_has_all_subtypes_of_the_message(table: Any) -> None:
    lacks = {(kind.__name__, sub.__name__) for kind in table for sub in subtypes(kind) if sub not in table}
    assert lacks == set(), "who may say a message may say its other forms"
