"""Messages with operators' states, and requests for them (``core.states``)."""

from __future__ import annotations

from typing import Annotated

import msgspec

from thalweg.middleware.protocol.fields import Index, Name, NodeMessage, RunMessage

INLINE_STATE_BYTES = 16_384  # a state up to this travels as control, ahead of all bulk


class StateMessage(NodeMessage, frozen=True):
    """Base of messages with the state of ``node``, which needs partition ``index`` next.

    The result of ``snapshot()`` has ``size_bytes``. Up to ``INLINE_STATE_BYTES`` it is ``inline`` in a control message,
    else it is the payload of a bulk message.
    """

    index: Index
    state_version: Index
    size_bytes: Index
    digest: Annotated[str, msgspec.Meta(max_length=128)]
    inline: Annotated[bytes, msgspec.Meta(max_length=INLINE_STATE_BYTES)] | None = None


class StateRequest(RunMessage, frozen=True):
    """Request for the state of ``node``, which has not come. With ``heir``, that operator takes it over.

    Without ``heir``, ``node`` itself waits for the replica with which it starts.
    """

    node: Name
    heir: Annotated[str, msgspec.Meta(max_length=128)] = ""
