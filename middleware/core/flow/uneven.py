"""Report to the application about sources with unequal numbers of partitions (R8 of ``node``)."""

from __future__ import annotations

from collections.abc import Collection

from thalweg.middleware.core.context.outbox import Outbox
from thalweg.middleware.core.flow.actions import Output
from thalweg.middleware.core.flow.tree import Tree
from thalweg.middleware.errors import LISTED
from thalweg.middleware.protocol.absent_sources import is_absent


def unevenly(out: Outbox, tree: Tree, sink: str, output: Output, told: int | None) -> str:
    """Return a sentence about the uneven end of a stream at ``sink``, and write the record.

    ``output``: the end, with the names of nodes that had one more partition. ``told``: the partition's index for the
    application. If only absent sources had one more partition, the result is empty, and there is no record.
    """
    assert isinstance(output.end, tuple)
    went_on = tree.sources_of(output.end, output.index)
    ended = tree.sources_of((sink,), output.index) - went_on
    went_on = {name for name in went_on if not is_absent(tree.node_of(name))}
    if not went_on:
        return ""
    out.record("uneven", index=output.index, detail={"ended": sorted(ended), "went_on": sorted(went_on)})
    return f"sources do not end together: partition {told} is missing from {_some(ended)}, not {_some(went_on)}"


def _some(names: Collection[str]) -> str:
    """Return the first few of ``names``, as an error message lists them."""
    shown = ", ".join(map(repr, sorted(names)[:LISTED]))
    return f"{shown} and {len(names) - LISTED} more" if len(names) > LISTED else shown
