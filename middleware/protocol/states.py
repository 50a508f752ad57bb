"""Messages with operators' states, and requests for states (``core.states``)."""

from __future__ import annotations

from typing import Annotated

import msgspec

from thalweg.middleware.protocol.fields import Index, Name, NodeMessage, RunMessage

INLINE_STATE_BYTES = 16_384  # up to this size, a state is sent as control, ahead of all bulk


class StateMessage(NodeMessage, frozen=True):
    """Base of messages with the state of ``node``, which needs partition ``index`` next.

    ``size_bytes``: size of the result of ``snapshot()``. Up to ``INLINE_STATE_BYTES``, the state is ``inline`` in a
    control message. A larger state is the payload of a bulk message.
    """

    index: Index
    state_version: Index
    size_bytes: Index
    digest: Annotated[str, msgspec.Meta(max_length=128)]
    inline: Annotated[bytes, msgspec.Meta(max_length=INLINE_STATE_BYTES)] | None = None


class StateRequest(RunMessage, frozen=True):
    """Request for the state of ``node``, which has not come.

    With ``heir``, that operator takes the state over. Without ``heir``, ``node`` starts with the state, a replica.
    """

    node: Name
    heir: Annotated[str, msgspec.Meta(max_length=128)] = ""
