"""One node of a demand-driven dataflow, as a pure state machine.

Rules (Ranganathan et al., section 2, "light-move requirement"):

R1. A node gathers its inputs for partition *i*, runs its code once, and holds the output until its consumer demands
    *i*. After the dispatch, the node gathers for *i + 1*.
R2. A demand for *i* acknowledges every earlier partition. A dispatched output is kept (``SendWindow``) until every
    consumer has acknowledged it. If a consumer demands the output again while no transfer of the output is under way,
    the output is sent again. The first repeated demand after the arrival does not count, because it was most likely
    sent before the arrival.
R3. A demand for *i* is credit for *i* alone (but see R12). Partition *i + 1* can be ready before *i* is acknowledged,
    but is dispatched only afterwards. So a node has at most one output that is dispatched and unacknowledged, and one
    output that is held. Every consumer has a name. With several consumers, every consumer must have acknowledged *i*,
    so the slowest sets the pace. ``Node.ahead`` permits a node to keep more outputs for the slowest consumer.
R4. The consumer of a sink is the application. It takes the gathered inputs at once.
R5. A node that is to leave becomes light at its next chance. The chance comes after the dispatch of an output and
    before the demands for inputs, or while the node waits for inputs. A light node only records demands, until it
    continues here or as another node elsewhere. The node leaves when every consumer has been sent the last output.
R6. A suspended source dispatches no new output. Demanded outputs are dispatched when the source resumes.
R7. Between two trees (``reshaping``), a replaced node ends with its last partition. A node with a new consumer has
    *turned* when it has dispatched its last output for the old consumer, which the host keeps as a tail (``Turned``).
    Until then, both are consumers of the node, and the new consumer may have demanded its first partition already. A
    node with new inputs gathers from the new producers after the last partition of the old tree.

R8. A node ends when one of its inputs ends. Its end names the inputs that had one more partition. The node renounces
    these inputs (``Renounce``). If every consumer of a node has renounced, the node ends as well.
R9. A consumer of another query (``query_attachment``) begins with a later partition, and takes no earlier one. It may
    demand its first partition before the node has got there. If the node has ended before, the consumer gets an end.
R10. In a later generation of a run, a node may begin with an earlier partition than its consumers, which have some of
    its outputs already. Until the node has caught up, R9 applies to the consumers.
R11. If only the nodes of lost hosts restart, the first demand of a consumer, or ``on_skip``, names the partition with
    which the consumer continues. If the partition is behind the node, the node has kept the outputs since then
    (``log``), or *lacks* the partition. If it is ahead of the node, R10 applies. A node that is *free* begins where the
    first of its consumers continues, when the partition of every consumer is known. The partition of a sink may be
    known from the start.

R12. With a *depth* of several partitions, a demand for *i* is credit for *i* to *i + depth - 1*. The node dispatches so
    far ahead of the acknowledged outputs, and keeps the outputs. An input that comes before its turn waits
    (``ReceiveWindow``). A consumer is sent every output within its credit as soon as the output is made. An output is
    sent again if the consumer repeats the demand, or if the consumer has left the host to which the output went. If a
    node leaves or turns, its last output is dispatched only after every earlier output is acknowledged.

The states and transitions are in the table of ``node_states``. A transition outside the table is a defect of the host
core, and raises. Late and repeated messages are no defects: they change nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from thalweg.middleware.core.context.machine import Machine
from thalweg.middleware.core.flow.actions import (
    LAST,
    Action,
    Ask,
    Dispatch,
    Hand,
    Lighten,
    Output,
    Renounce,
    RunCode,
    Turned,
    Verdict,
)
from thalweg.middleware.core.flow.consumer_state import ConsumerState
from thalweg.middleware.core.flow.node_states import (
    DELIVERED,
    DEMANDED,
    DISPATCHED,
    DRAINING,
    ENDED,
    EXHAUSTED,
    FINISHED,
    FROZEN,
    GATHERED,
    GATHERING,
    HOLDING,
    IDLE,
    LIGHT,
    RECALLED,
    RENOUNCED,
    REPLACED,
    RUNNING,
    THAWED,
    TRANSITIONS,
    NodeState,
)
from thalweg.middleware.core.flow.receive_window import ReceiveWindow, end_of, together
from thalweg.middleware.core.flow.send_window import SendWindow
from thalweg.middleware.dataflow import Node


@dataclass(slots=True, eq=False, repr=False)
class NodeCore(Machine):
    """State of one node. Methods that change the state return the actions of the host, in their order."""

    TABLE = TRANSITIONS

    node: Node
    limit: int | None = None  # number of partitions of the run. None: until the sources end
    window: SendWindow = field(default_factory=SendWindow)  # dispatched outputs, and the progress of every consumer
    index: int = 0  # of the next output
    state: NodeState = IDLE
    received: ReceiveWindow = field(default_factory=ReceiveWindow)  # inputs that have arrived
    output: Output | None = None
    size_bytes: int | None = None  # of the last output
    free: bool = False  # R11: the node begins where the first of its consumers continues
    leaves_after: int | None = None  # the node becomes light when it has dispatched this partition or a later one
    recalled: bool = False  # R11: the node leaves at once, when the partition of every consumer is known
    suspended: bool = False
    turns: tuple[int, str] | None = None  # R7: a partition, and the only consumer after it
    rewired: tuple[int, Node] | None = None  # R7: a partition, and the node with new inputs after it
    renounced: bool = False  # R8: the node has ended, because every consumer had renounced

    @classmethod
    def begun(
        cls, node: Node, limit: int | None, index: int, firsts: Mapping[str, int | None], *, free: bool = False
    ) -> NodeCore:
        """Return a node that begins with partition ``index``. ``firsts``: first partitions of the consumers.

        A first partition of None: the consumer announces the partition (R11). ``LAST``: the consumer takes no
        partition. With an ``index`` of ``LAST``, no consumer needs the node, and the node has ended. The application
        begins with the sink.
        """
        if index == LAST:
            window = SendWindow.of(dict.fromkeys(firsts or ("",), LAST))
            return cls(node, limit, window, state=ENDED, renounced=True)
        return cls(node, limit, SendWindow.of(firsts or {"": index}), index, free=free)

    def going_on(self, node: Node, firsts: Mapping[str, int | None]) -> NodeCore:
        """Return the node in the next generation (R11). Transfers under way are lost."""
        state = GATHERING if self.state in (DRAINING, LIGHT) else self.state
        received = self.received.going_on(node.inputs, gathers=state is GATHERING)
        return NodeCore(
            node, self.limit, self.window.going_on(firsts), self.index, state, received, self.output, self.size_bytes,
            renounced=self.renounced,
        )  # fmt: skip

    @classmethod
    def come(cls, node: Node, limit: int | None, index: int, consumers: dict[str, ConsumerState]) -> NodeCore:
        """Return a light node that has come from another host."""
        return cls(node, limit, SendWindow(consumers), index, LIGHT)

    def __repr__(self) -> str:
        asked = " ".join(f"{name} {consumer.demanded}".strip() for name, consumer in self.window.consumers.items())
        return f"<node {self.node.name} {self.state} at {self.index}, demanded {asked}>"

    @property
    def got(self) -> int:
        """First partition of which the node has consumed no input yet. Prefetched inputs do not count."""
        return self.index + (self.state in (RUNNING, HOLDING) or bool(self.received.inputs))

    def on_demand(self, index: int, again: bool = False, consumer: str = "") -> tuple[Verdict, list[Action]]:
        """Handle the demand of a consumer, and return the verdict and the actions.

        ``again``: the consumer repeats the demand, because no answer came.
        """
        window = self.window
        state = window.consumers.get(consumer)
        if state is None or index < state.demanded or index == LAST:  # R7: after the turn, the old consumer is unknown
            return "late", []  # R8: a consumer renounces by ``on_skip`` only
        if window.unheard and consumer in window.unheard:
            if not self._handle_resume(consumer, index):
                return "lacking", []
            state = window.consumers[consumer]
        if self.state is ENDED and self._has_only_the_end(state, index):
            state.demanded = index
            # R9: the node has ended before the first partition of a consumer of another query
            return "taken", [Dispatch(Output(index, end=True), consumer=consumer)]
        if index > self.index and index != state.first:
            return "ahead", []
        fresh = state.demand(index, again=again)
        window.acknowledge()
        actions: list[Action] = [*window.due(consumer)] if window.unacked else []
        if not (fresh or actions):
            return "duplicate", []
        if self.turns is not None and index == self.turns[0] < self.index:
            return "taken", [*actions, Turned()]
        if self.state is IDLE:
            return "taken", actions + self._begin()
        return "taken", actions if self.state in (GATHERING, RUNNING) else actions + self.go_on()

    def _has_only_the_end(self, consumer: ConsumerState, index: int) -> bool:
        """Return whether an ended node has only the end for the first demand of a consumer (R9).

        The application knows the end of a sink.
        """
        return self.node.kind != "sink" and 0 < index == consumer.first and self.window.output(index) is None

    def on_skip(self, index: int, consumer: str) -> tuple[bool, list[Action]]:
        """Let a consumer continue with partition ``index``, before the demand for the partition (R11).

        ``LAST``: the consumer takes no more (R8). Return whether the node can send the partition, and the actions.
        """
        window = self.window
        if index == LAST and consumer in window.consumers:
            window.unheard.discard(consumer)
            window.consumers[consumer].demanded = LAST
            return True, self._less_is_wanted()
        if consumer not in window.unheard:
            return True, []
        if not self._handle_resume(consumer, index):
            return False, []
        return True, self._go_on_heard()

    def _handle_resume(self, consumer: str, index: int) -> bool:
        """Let a consumer continue with partition ``index`` (R11). Return whether the node can send the partition."""
        window = self.window
        free = self.free and self.state is IDLE
        if not free and index < self.index and window.output(index) is None:
            return False
        window.resume(consumer, index)
        self._set_out()
        return True

    def _set_out(self) -> None:
        """Let a free node begin where the first of its consumers continues (R11).

        The node waits until the partition of every consumer is known.
        """
        first = self.window.begins_at()
        if self.free and self.state is IDLE and first is not None:
            self.index = first

    def _less_is_wanted(self) -> list[Action]:
        """Continue without a consumer that has renounced (R8) or is gone. End if every consumer has renounced."""
        self.window.acknowledge()
        if self.window.all_demanded(LAST) and self.can(RENOUNCED):
            return self._renounce()
        return self._go_on_heard()

    def _go_on_heard(self) -> list[Action]:
        """Continue, because a consumer's partition is known now, or a consumer is gone (R11).

        A free operator gathers before the first demand.
        """
        if self.state is not IDLE:
            return self.go_on()
        self._set_out()
        demanded = any(self.index <= consumer.demanded < LAST for consumer in self.window.consumers.values())
        return self._begin() if demanded or (self.free and self.node.inputs) else []

    def _ready(self) -> bool:
        """Return whether the held output may be dispatched (R3). The last one waits for every consumer (R5, R12)."""
        last, ahead = self.leaves_after, self.node.ahead
        if self.turns is not None:
            last, ahead = self.turns[0], 1
        if last is not None and self.index >= last:
            return self.window.all_demanded(self.index)
        return self.window.is_open(self.index, ahead)

    def late_consumers(self) -> list[str]:
        """Return the consumers that hold up an output which a faster consumer has demanded."""
        leaves = self.leaves_after is not None or self.turns is not None
        if self.state is not HOLDING or leaves or self.window.unheard or self._ready():
            return []
        return self.window.behind(self.index, self.node.ahead)

    def _begin(self) -> list[Action]:
        if self.free and self.window.unheard:
            return []
        if self.limit is not None and self.index >= self.limit:
            return self._end()
        if self.leaves_after is not None and self.index > self.leaves_after:
            return self._freeze()
        self.to(DEMANDED)
        return self._gather()

    def on_partition(self, producer: str, output: Output) -> tuple[Verdict, list[Action]]:
        """Handle an input from ``producer``. Return the verdict and the actions."""
        received, index = self.received, output.index
        if index == self.index and self.state is GATHERING and producer in received.asked:
            return "taken", self._gathered() if received.take(producer, output) else []
        if not self.wants(producer, index):
            return ("ahead" if index > self.index else "duplicate"), []
        received.prefetch(producer, output)
        return "taken", []

    def wants(self, producer: str, index: int) -> bool:
        """Return whether the node has demanded an input that has not arrived."""
        if index == self.index and self.state in (GATHERING, RUNNING, HOLDING):
            return producer in self.received.asked
        demanded = self.index - (self.state in (IDLE, LIGHT))  # last partition that the node has demanded
        if self.state is ENDED or not self.index <= index < demanded + self.window.depth:
            return False
        node = self.node if self.rewired is None or index <= self.rewired[0] else self.rewired[1]
        return producer in node.inputs and producer not in self.received.prefetched.get(index, ())

    def on_finished(self, output: Output) -> tuple[Verdict, list[Action]]:
        """Handle the output of the node's code. Return the verdict and the actions."""
        if self.state is not RUNNING or output.index != self.index:
            return "late", []
        return "taken", self._hold(output)

    def leave(self, after: int, *, recall: bool) -> list[Action]:
        """Become light after partition ``after`` has been dispatched.

        ``recall``: a node that gathers becomes light too. Its inputs are of use only if the node stays.
        """
        unheard = bool(self.window.unheard)
        self.leaves_after, self.recalled = after, recall and unheard
        if recall and self.state is GATHERING and self.index > after and not unheard:
            if self.window.all_demanded(self.index - 1):
                return self._freeze()
            self.received.put_back(self.index)
            self.to(RECALLED)
        return []

    def leave_heard(self) -> list[Action]:
        """Become light, if ``leave`` had to wait until the partition of every consumer was known (R11)."""
        if self.window.unheard or not self.recalled or self.leaves_after is None:
            return []
        return self.leave(self.leaves_after, recall=True)

    def stay(self) -> list[Action]:
        """Cancel ``leave``, and continue."""
        self.leaves_after, self.recalled = None, False
        if self.state is not LIGHT and self.state is not DRAINING:
            return self.go_on()  # the held output is no longer the last one, so R3 alone applies
        self.to(THAWED)
        return self._renounce() if self.window.all_demanded(LAST) else self._gather()

    def replace(self, after: int) -> list[Action]:
        """End after partition ``after``, because other nodes make the later partitions (R7)."""
        self.limit = after + 1
        if self.index > after and self.state in (IDLE, GATHERING):  # R7: the last partition of the old tree is out
            self.received.clear()
            self.to(REPLACED)
        return []

    def turn(self, after: int, to: str) -> list[Action]:
        """Turn to the new consumer ``to``, which takes the partitions after ``after`` (R7)."""
        self.turns = after, to
        self.window.consumers[to] = ConsumerState.of(after + 1)
        return [Turned()] if self.index > after and self.window.all_demanded(after) else []

    def rewire(self, after: int, node: Node) -> list[Action]:
        """Take the inputs of ``node`` after partition ``after`` (R7)."""
        self.rewired = after, node
        return self._gather() if self.index > after and self.state is GATHERING else []

    def retire(self) -> list[Action]:
        """End the node's part in the old tree. A node that has ended or not begun may still have such a part.

        Every partition of the old tree has been delivered, so the old consumer needs nothing more.
        """
        if self.rewired is not None:
            self.node, self.rewired = self.rewired[1], None
        if self.turns is None or (self.index <= self.turns[0] and self.state is not ENDED):
            return []
        self.turned()
        return self.go_on()

    def turned(self) -> SendWindow | None:
        """Turn to the new consumer now (R7). Return the window of the old consumer, for a tail.

        None: the old consumer has every output.
        """
        assert self.turns is not None
        to, self.turns = self.turns[1], None
        return self.window.split(keep=to)

    def go_on(self) -> list[Action]:
        """Dispatch the held output if permitted.

        A draining node becomes light when every consumer has been sent the last output.
        """
        if self.state is HOLDING:
            return self._dispatch() if not self.suspended and self._ready() else []
        return self._freeze() if self.state is DRAINING and self.window.all_demanded(self.index - 1) else []

    def join(self, consumers: Iterable[str], first: int) -> list[Action]:
        """Add consumers that begin with partition ``first`` (R9)."""
        self.window.consumers |= {name: ConsumerState.of(first) for name in consumers}
        return self.go_on()

    def part(self, consumers: Collection[str]) -> list[Action]:
        """Remove consumers, and continue for the remaining consumers."""
        self.window.part(consumers)
        return self._less_is_wanted()

    def begin(self) -> list[Action]:
        """Gather before the first demand. A node that has begun already is not changed."""
        over = self.limit is not None and self.index >= self.limit
        return self._begin() if self.state is IDLE and not over else []

    def suspend(self) -> int:
        """Dispatch nothing new until ``resume`` (R6). Return the last dispatched partition, or -1."""
        self.suspended = True
        return self.index - 1

    def resume(self) -> list[Action]:
        self.suspended = False
        return self.go_on()

    # ------------------------------------------------------------------------------------------------

    def _freeze(self) -> list[Action]:
        self.to(FROZEN)
        self.received.put_back(self.index)
        return [Lighten(self.index)]

    def _gather(self) -> list[Action]:
        if self.rewired is not None and self.index > self.rewired[0]:  # R7: in the new tree the node has other inputs
            self.node, self.rewired = self.rewired[1], None
        node, complete = self.node, self.received.gather(self.node.inputs, self.index)
        asks: list[Action] = [Ask(self.index)] if node.inputs else []
        return asks + self._gathered() if complete else asks

    def _gathered(self) -> list[Action]:
        node, index = self.node, self.index
        inputs, ended = self.received.complete(node.inputs)
        if node.kind == "sink":
            return self._deliver(inputs, ended)
        if ended:
            return [*self._hold(Output(index, end=end_of(node.inputs, inputs))), *self._leave_others(inputs)]
        self.to(GATHERED)
        return [RunCode(index, tuple([output.value for output in inputs]))]

    def _deliver(self, inputs: list[Output], ended: bool) -> list[Action]:
        """Give the inputs of a sink to the application at once (R4)."""
        index, producers = self.index, self.node.inputs
        self.to(DELIVERED)
        self.index += 1
        if not ended:
            return [Hand(together(index, inputs))]
        self.to(EXHAUSTED)
        end = inputs[0] if len(inputs) == 1 else Output(index, end=end_of(producers, inputs))
        return [Hand(end), *self._leave_others(inputs)]

    def _leave_others(self, inputs: list[Output]) -> list[Action]:
        """Return the renunciation of the inputs that have not ended (R8)."""
        names = [name for name, output in zip(self.node.inputs, inputs, strict=True) if not output.end]
        return [Renounce(tuple(names))] if names else []

    def _renounce(self) -> list[Action]:
        self.to(RENOUNCED)
        self.renounced = True
        self.received.clear()
        self.output = None
        return [Renounce(self.node.inputs)] if self.node.inputs else []

    def _hold(self, output: Output) -> list[Action]:
        self.to(FINISHED)
        self.output = output
        return [] if self.suspended or not self._ready() else self._dispatch()  # R3: an output waits for its demand

    def _dispatch(self) -> list[Action]:
        output = self.output
        assert output is not None
        self.size_bytes = output.size_bytes
        self.output = None
        self.index += 1
        actions: list[Action] = [*self.window.add(output)]
        if self.turns is not None and output.index == self.turns[0]:
            actions.append(Turned())
        if output.end or self.index == self.limit:
            self.to(EXHAUSTED)
            return actions
        if self.leaves_after is not None and self.index > self.leaves_after:
            return actions + self._freeze()  # R5: a light node has demanded no inputs
        self.to(DISPATCHED)
        return actions + self._gather()

    def _end(self) -> list[Action]:
        """End at the number of partitions of the run. A sink delivers the end of the stream."""
        self.to(EXHAUSTED)
        return [Hand(Output(self.index, end=True))] if self.node.kind == "sink" else []

    def validate(self) -> None:
        """Check the invariants. Raise AssertionError if an invariant is violated."""
        window, limit = self.window, self.limit
        window.validate(self.index, ended=self.state is ENDED)
        indices = range(self.index, self.index + window.depth)
        self.received.validate(self.node.inputs, indices, gathers=self.state is GATHERING)
        held = (self.output is not None) + len(window.unacked) + (self.state is RUNNING)
        # R11: with a log, older outputs are for consumers that have restarted
        behind = max(0, len(window.unacked) - 1) if window.log is not None else 0
        assert held - behind <= window.depth + self.node.ahead, f"{self!r} holds {held} outputs"
        assert len(window.unacked) <= 1 or self.state is not LIGHT, self
        assert (self.output is not None) == (self.state is HOLDING), self
        assert self.suspended or self.state is not HOLDING or not self._ready(), self
        assert not self.suspended or self.node.kind == "source", self
        assert self.leaves_after is None or self.node.kind == "operator", self
        assert limit is None or self.index <= limit, self
        assert self.turns is None or self.index <= self.turns[0] + window.depth, self
