"""What hosts that mean ill say and do, drawn from the definitions of messages and events."""

from __future__ import annotations

import types
from typing import Any

import msgspec


def state_of(part: Any, seen: dict[int, int] | None = None) -> Any:
    """All that a part of the core holds, as values that can be compared; the clock and what lies out are left out."""
    seen = {} if seen is None else seen
    if part is None or isinstance(part, str | int | float | bytes):
        return part
    if id(part) in seen:
        return "seen", seen[id(part)]
    seen[id(part)] = len(seen)
    if isinstance(part, dict):
        return [(state_of(key, seen), state_of(value, seen)) for key, value in part.items()]
    if isinstance(part, list | tuple):
        return [state_of(each, seen) for each in part]
    if isinstance(part, set | frozenset):
        return sorted(map(repr, part))
    if isinstance(part, types.FunctionType | types.MethodType | type) or type(part).__name__ in ("Desk", "Outbox"):
        return None
    if isinstance(part, msgspec.Struct):
        return [state_of(getattr(part, name), seen) for name in part.__struct_fields__]
    names = [*getattr(part, "__dict__", {}), *getattr(type(part), "__slots__", ())]
    return [(name, state_of(getattr(part, name, None), seen)) for name in names]
