"""Transfers of outputs from nodes on this host to their consumers.

Rules:

R1. If the consumer is on this host, the output is handed over within the host.
R2. A partition carries newer locations and measured links (``Directory.piggyback``). The first partitions after a
    change-over carry the commit, as many as may be under way (``Install.ahead``).
R3. If several consumers of a node are on one host, the host gets a partition once. While the transfer is under way,
    further consumers there share the transfer. If a consumer did not get the partition, the consumer demands it again,
    and gets a separate transfer.
R4. The window records the host to which an output went. If the consumer has left the host, the output is sent again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from thalweg.middleware.core.context.outbox import RunContext
from thalweg.middleware.core.flow.actions import Dispatch, Output
from thalweg.middleware.core.flow.consumer_state import ConsumerState
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
    """Sender of the outputs of a run's nodes on this host.

    ``nodes``: the nodes on this host. ``expected``: operators that are to come.
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
        # created on first use
        self._newcomers: Newcomers | None = None
        self._shared_transfers: SharedTransfers | None = None
        self._under_way: Mapping[tuple[str, int, str], SharedTransfer] = {}

    @property
    def newcomers(self) -> Newcomers:
        """Operators that came from other hosts and have dispatched no output here yet."""
        if self._newcomers is None:
            self._newcomers = Newcomers(self._out)
        return self._newcomers

    @property
    def shared_transfers(self) -> SharedTransfers:
        """Transfers to hosts with several consumers, which share a transfer."""
        if self._shared_transfers is None:
            self._shared_transfers = SharedTransfers()
            self._under_way = self._shared_transfers.under_way
        return self._shared_transfers

    def dispatch(self, node: NodeCore, action: Dispatch) -> None:
        """Send an output of a node to a consumer."""
        name, index, consumer = node.node.name, action.output.index, action.consumer
        host = ""
        if self._under_way and not action.again:
            host = self._boards(name, consumer, index)
        to = host or self._send(name, consumer, action.output)
        where = to or self._directory.host_of(consumer, index)  # R4: the consumer may leave that host
        node.window.consumers[consumer].was_sent(index, where, under_way=bool(to))
        if self._newcomers is not None and name in self._newcomers.came:
            self._newcomers.record(name, index)
        if name in self._books.of:
            self._books.of[name].on_sent(index, consumer)
        if action.again:
            self._out.record("repeated", node=name, index=index)

    def send_tail(self, name: str, window: SendWindow, action: Dispatch) -> None:
        """Send the last output of a node that has left this host."""
        consumer, index = action.consumer, action.output.index
        to = self._send(name, consumer, action.output)
        where = to or self._directory.host_of(consumer, index)
        window.consumers[consumer].was_sent(index, where, under_way=bool(to))
        self._out.record("repeated", node=name, index=index)

    def _boards(self, name: str, consumer: str, index: int) -> str:
        """Let a consumer share the transfer of a partition to the same host (R3). Return the host, or an empty text."""
        host = self._directory.host_of(consumer, index)
        return host if self.shared_transfers.board(name, index, consumer, host) else ""

    def _send(self, name: str, consumer: str, output: Output) -> str:
        """Send an output. Return the host to which a transfer is under way now, or an empty text."""
        out, directory, index = self._out, self._directory, output.index
        here, to = consumer in self._nodes, self._host
        if not here:
            to = directory.host_of(consumer, index)
            if to == self._host:  # the consumer is to come here, and has not come yet
                expected = self._expected.get(consumer)
                here = expected is not None and expected.takes(index)
                to = directory.locations[consumer].host
        if here or to == self._host:  # the second case: other hosts have sent a wrong location
            out.hand_over(m.Partition(out.run, name, consumer, index, output.end), output.value, output.size_bytes)
            return ""
        news = directory.piggyback(to, upward=False) if self._telling or directory.changes else None
        switch, commit = directory.switch, None
        if switch is not None and 0 < index - switch.iteration <= self._ahead:
            # R2: any of the partitions under way may be the first to come after the change-over
            commit = switch.commit
            if commit.shape is not None and not commit.shape.grows and not self._tree.keeps(name):
                commit = None  # the consumer is in the new tree alone, so it knows the commit
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
        """Mark outputs as due if the consumer has left the host to which they were sent (R4)."""
        name, index = demand.consumer, demand.index
        if self._under_way and self.shared_transfers.alight(demand, self._directory.locations[name].host):
            # R3: the consumer has moved, so it gets nothing from the shared transfer to its old host
            window.on_transfer_over(index, name, arrived=False)
        for sent_index, sent in consumer.sent.items():
            wanted = sent_index >= index and not sent.under_way
            if wanted and sent.host != self._directory.host_of(name, sent_index):
                sent.due = True

    def consumers_of(self, message: m.Partition) -> list[str]:
        """Return every consumer of a transfer that has ended, and forget the shared transfer."""
        shared = self.shared_transfers.over(message) if self._under_way else []
        return [message.consumer, *shared]

    def peer_gone(self, host: str) -> None:
        """Remove the shared transfers to a lost host."""
        if self._shared_transfers is not None:
            self._shared_transfers.peer_gone(host)

    def forget(self, names: Iterable[str]) -> None:
        """Remove operators that have left this host."""
        if self._newcomers is not None:
            self._newcomers.forget(names)
