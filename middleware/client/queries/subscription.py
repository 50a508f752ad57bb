"""What an application takes of another client's run: the partitions of one node, by ``Client.subscribe``."""

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

_numbers = itertools.count(1 + secrets.randbelow(2**40))  # not those of a process that had this client's name before


class Ticket(msgspec.Struct, frozen=True, array_like=True):
    """What names a run wherever it is said: its id, and the client that began it."""

    run: m.Name
    owner: m.Peer


def ticket_of(run: str, owner: m.Peer) -> str:
    """A ticket as a word that can be copied, and stands in a URL."""
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(Ticket(run, owner))).decode().rstrip("=")


def read_ticket(text: object) -> Ticket:
    """The ticket that a word is; UsageError for one that is none."""
    try:
        word = str(text).strip()
        return msgspec.msgpack.decode(base64.urlsafe_b64decode(word + "=" * (-len(word) % 4)), type=Ticket)
    except (binascii.Error, ValueError, RecursionError):
        raise UsageError(f"{shown(text)} is not the ticket of a run; give what its client has as run.ticket") from None


class Subscription(Stream[T]):
    """The partitions of ``node`` of another client's run, to iterate over as over a run: each once, in order.

    They begin with ``first_index``; ``detach`` or ``close`` leaves. It ends with the node's stream; where it ends
    before that, as the run's client ends the run, or is gone, or does not let this one subscribe any more, that is a
    RunError. One that nobody takes from holds up the run for ``guest_s`` of its hosts, and is dismissed then.
    """

    _first = -1

    def __init__(
        self, home: ClientServices, ticket: Ticket, node: str, *, strict: bool = False, nothing: bool = False
    ) -> None:
        super().__init__(home, ticket.run, (node,), strict=strict, nothing=nothing)
        self.node, self.number, self._owner = node, next(_numbers), ticket.owner.name
        self._sink = ""  # as it is called in the run
        self._came = False  # anything

    def begin(self, owner: m.Peer) -> None:
        """Ask for it, now that what comes of that can be heard."""
        self._home.tell(e.SubscribeRequested(self._run_id, self.number, self.node, owner))

    @property
    def _what(self) -> str:
        return f"the subscription to {self.node!r} of run {self.id}"

    def _why_still(self, sink: str) -> str:
        if self._came:
            return ""
        return f"does client {self._owner!r}, which began the run, take from it meanwhile? Nothing comes before"

    def take(self, command: e.Command) -> None:
        """A command about the run; any thread."""
        with self._news:
            match command:
                case e.QueryStarted(query=number, first_index=first, names=names) if number == self.number:
                    self._first, self._sink = first, names[self.node]
                    self._demand(command)  # at once: nobody waits for it to be taken
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
        f"client {name!r} began that run itself, or has the name of who did; attach a query to the run, or give this"
        " client a name of its own"
    )
