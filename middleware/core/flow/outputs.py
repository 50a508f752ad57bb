"""How outputs of nodes here reach their consumers, on this host and on others.

Rules:

R1. Between two nodes of one host nothing is lost: an output is handed over.
R2. A partition carries what the host has to tell (``Directory.piggyback``). A commit rides on the first partitions
    after its change-over, as many as may be under way (``Install.ahead``).
R3. Consumers of a node on one host are sent a partition once: while it is under way to one of them, others there that
    demand it ride along. Their host gives what comes to all there that wait for it; who did not get it demands it again
    and is sent it for itself, as is who demands it from elsewhere by then.
R4. Of each output that is not acknowledged it is known where it went: one that went where its consumer is no longer is
    sent again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from thalweg.middleware.core.context.outbox import RunContext
from thalweg.middleware.core.flow.actions import Dispatch, Output
from thalweg.middleware.core.flow.consumer_state import ConsumerState, Sent
from thalweg.middleware.core.flow.directory import Directory
from thalweg.middleware.core.flow.entries import Expected
from thalweg.middleware.core.flow.epochs import EpochBooks
from thalweg.middleware.core.flow.newcomers import Newcomers
from thalweg.middleware.core.flow.node import NodeCore
from thalweg.middleware.core.flow.send_window import SendWindow
from thalweg.middleware.core.flow.shared_transfers import SharedTransfer, SharedTransfers
from thalweg.middleware.core.flow.tree import Tree
from thalweg.middleware.protocol import messages as m


class Outputs:
    """Sends the outputs of the run's nodes on this host.

    ``nodes``: those that are here; ``expected``: those that are to come.
    """

    __slots__ = (
        "_ahead",
        "_books",
        "_directory",
        "_expected",
        "_host",
        "_newcomers",
        "_nodes",
        "_out",
        "_shared_transfers",
        "_telling",
        "_tree",
        "_under_way",
    )

    def __init__(
        self,
        context: RunContext,
        tree: Tree,
        directory: Directory,
        books: EpochBooks,
        nodes: Mapping[str, NodeCore],
        expected: Mapping[str, Expected],
    ) -> None:
        self._out, self._host, self._ahead = context.out, context.out.host, context.install.ahead
        self._tree, self._directory, self._books = tree, directory, books
        self._telling = directory.telling(upward=False)
        self._nodes, self._expected = nodes, expected
        # created with the first that they are for
        self._newcomers: Newcomers | None = None
        self._shared_transfers: SharedTransfers | None = None
        self._under_way: Mapping[tuple[str, int, str], SharedTransfer] = {}

    @property
    def newcomers(self) -> Newcomers:
        """Operators that have come from other hosts, and have made nothing here yet."""
        if self._newcomers is None:
            self._newcomers = Newcomers(self._out)
        return self._newcomers

    @property
    def shared_transfers(self) -> SharedTransfers:
        """Transfers that several consumers on a host share."""
        if self._shared_transfers is None:
            self._shared_transfers = SharedTransfers()
            self._under_way = self._shared_transfers.under_way
        return self._shared_transfers

    def dispatch(self, node: NodeCore, action: Dispatch) -> None:
        """Send an output of a node to a consumer."""
        name, index, consumer = node.node.name, action.output.index, action.consumer
        host = ""
        if self._under_way and not action.again:
            host = self._boards(name, consumer, index)  # R3: it is under way to another consumer there
        self._was_sent(node.window, action, host or self._send(name, consumer, action.output))
        if self._newcomers is not None and name in self._newcomers.came:
            self._newcomers.record(name, index)
        if name in self._books.of:
            self._books.of[name].on_sent(index, consumer)
        if action.again:
            self._out.record("repeated", node=name, index=index)

    def send_tail(self, name: str, window: SendWindow, action: Dispatch) -> None:
        """Send the last output of a node that has left to a consumer."""
        self._was_sent(window, action, self._send(name, action.consumer, action.output))
        self._out.record("repeated", node=name, index=action.output.index)

    def _was_sent(self, window: SendWindow, action: Dispatch, to: str) -> None:
        """R4: keep where an output went."""
        consumer, index = action.consumer, action.output.index
        sent = Sent(to or self._directory.host_of(consumer, index), under_way=bool(to))
        window.consumers[consumer].sent[index] = sent

    def _boards(self, name: str, consumer: str, index: int) -> str:
        """R3: the host to which this is under way already, and to a consumer there; empty: it is not."""
        host = self._directory.host_of(consumer, index)
        return host if self.shared_transfers.board(name, index, consumer, host) else ""

    def _send(self, name: str, consumer: str, output: Output) -> str:
        """Send an output to where it is wanted; the host to which its transfer is under way now, if it is."""
        out, directory, index = self._out, self._directory, output.index
        here, to = consumer in self._nodes, self._host
        if not here:
            to = directory.host_of(consumer, index)
            if to == self._host:  # the consumer is to come here, and has not yet
                expected = self._expected.get(consumer)
                here = expected is not None and expected.takes(index)
                to = directory.locations[consumer].host
        if here or to == self._host:  # the latter by a wrong word of others: nobody takes it here
            out.hand_over(m.Partition(out.run, name, consumer, index, output.end), output.value, output.size_bytes)
            return ""
        news = directory.piggyback(to, upward=False) if self._telling or directory.changes else None
        switch, commit = directory.switch, None
        if switch is not None and 0 < index - switch.iteration <= self._ahead:
            # R2: any of the partitions under way may be the first to come after the change-over
            commit = switch.commit
            if commit.shape is not None and not commit.shape.grows and not self._tree.keeps(name):
                commit = None  # a consumer that this node has in the new tree only knows it, or it would not demand
        part = m.Partition(out.run, name, consumer, index, output.end, 0, news, commit)
        routes = directory.chosen_routes
        if routes is not None and routes.table and not output.end:
            via = routes.send(to, part, output.size_bytes)
            out.send(to, part, output.value, output.size_bytes, bulk=True, via=via)
        else:
            out.send(to, part, output.value, output.size_bytes, bulk=not output.end)
        if not output.end and name in self._tree.dataflow.several:
            self.shared_transfers.sent(part, to)
        return "" if output.end else to

    def on_demand(self, consumer: ConsumerState, demand: m.Demand, window: SendWindow) -> None:
        """R4: what has come to where the consumer was is to be sent again."""
        name, index = demand.consumer, demand.index
        if self._under_way and self.shared_transfers.alight(demand, self._directory.locations[name].host):
            # R3: the consumer has moved, and gets nothing of a transfer to its old host that it was to share
            window.on_transfer_over(index, name, arrived=False)
        for sent_index, sent in consumer.sent.items():
            wanted = sent_index >= index and not sent.under_way
            if wanted and sent.host != self._directory.host_of(name, sent_index):
                sent.due = True

    def consumers_of(self, message: m.Partition) -> list[str]:
        """The transfer of a partition is over. Return for whom it was."""
        shared = self.shared_transfers.over(message) if self._under_way else []
        return [message.consumer, *shared]

    def peer_gone(self, host: str) -> None:
        """Nothing is under way to that host any more."""
        if self._shared_transfers is not None:
            self._shared_transfers.peer_gone(host)

    def forget(self, names: Iterable[str]) -> None:
        """These nodes are not on this host any more."""
        if self._newcomers is not None:
            self._newcomers.forget(names)
