"""Subscription of an application to a node of another client's run (``Client.subscribe``), and tickets of runs."""

from __future__ import annotations

import base64
import binascii
import itertools
import secrets
from typing import NoReturn

import msgspec

from thalweg.middleware.client.flow.stream import ClientServices, Stream, T
from thalweg.middleware.errors import UsageError, shown
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m

_numbers = itertools.count(1 + secrets.randbelow(2**40))  # an earlier process of this client's name had other numbers


class Ticket(msgspec.Struct, frozen=True, array_like=True):
    """Reference to a run: the run's id, and the client that began the run."""

    run: m.Name
    owner: m.Peer


def ticket_of(run: str, owner: m.Peer) -> str:
    """Return the ticket of a run as a text that can be copied and can stand in a URL."""
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(Ticket(run, owner))).decode().rstrip("=")


def read_ticket(text: object) -> Ticket:
    """Return the ticket that a text encodes. Raise UsageError if the text is no ticket."""
    try:
        word = str(text).strip()
        return msgspec.msgpack.decode(base64.urlsafe_b64decode(word + "=" * (-len(word) % 4)), type=Ticket)
    except (binascii.Error, ValueError, RecursionError):
        raise UsageError(
            f"{shown(text)} is not the ticket of a run; give the text that its client has as run.ticket"
        ) from None


class Subscription(Stream[T]):
    """Partitions of ``node`` of another client's run, to iterate over as over a run: each partition once, in order.

    The first partition is ``first_index``. ``detach`` or ``close`` leaves. The subscription ends with the node's
    stream. If the run's client ends the run before, is lost, or withdraws the permission, iteration raises RunError. If
    the application takes no partitions, the subscription holds up the run for ``guest_s`` of the run's hosts, and is
    dismissed then.
    """

    _first = -1

    def __init__(
        self, home: ClientServices, ticket: Ticket, node: str, *, strict: bool = False, nothing: bool = False
    ) -> None:
        super().__init__(home, ticket.run, (node,), strict=strict, nothing=nothing)
        self.node, self.number, self._owner = node, next(_numbers), ticket.owner.name
        self._sink = ""  # the name in the run
        self._came = False  # whether a partition has come

    def begin(self, owner: m.Peer) -> None:
        """Request the partitions from the run's client at ``owner``, once this client can receive the answers."""
        self._home.tell(e.SubscribeRequested(self._run_id, self.number, self.node, owner))

    @property
    def _what(self) -> str:
        return f"the subscription to {self.node!r} of run {self.id}"

    def _why_still(self, sink: str) -> str:
        if self._came:
            return ""
        return f"no partition comes before client {self._owner!r}, which began the run, takes partitions from it"

    def take(self, command: e.Command) -> None:
        """Handle a command of the core about the run, in any thread."""
        with self._news:
            match command:
                case e.QueryStarted(query=number, first_index=first, names=names) if number == self.number:
                    self._first, self._sink = first, names[self.node]
                    self._demand(command)  # at once, before the application takes a partition
                    self._wake()
                case e.Deliver(sink=sink) if sink == self._sink:
                    delivery = msgspec.structs.replace(command, sink=self.node)
                    self._came = True
                    if self._over:
                        self._pass(delivery)
                    else:
                        self._arrived(delivery)
                case e.Fail(query=number) if number in (None, self.number) and not self._over:
                    self._arrived(command)

    def _demand(self, taken: e.Command) -> None:
        self._home.tell(e.NextRequested(self._run_id, self._sink))

    def _left(self, query: int) -> None:
        self._home.tell(e.UnsubscribeRequested(self._run_id, self.number))


def refuse_own(name: str) -> NoReturn:
    raise UsageError(
        f"client {name!r} began that run itself, or has the same name as the client that did; attach a query to the"
        " run, or give this client a name of its own"
    )
