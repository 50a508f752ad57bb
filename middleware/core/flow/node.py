"""One node of a demand-driven dataflow, as a pure state machine.

Rules (Ranganathan et al., section 2, "light-move requirement"):

R1. A node gathers its inputs for partition *i*, runs its code once, and holds the output until its
    consumer demands *i*. Having dispatched it, the node gathers for *i + 1*.
R2. A demand for *i* acknowledges every partition before *i*. Until all consumers have done so, a dispatched output is
    kept (``SendWindow``), and sent again when a consumer demands it again while no transfer of it is under way. The
    first demand that is repeated after the transfer has arrived does not count: it was most likely on its way by then.
R3. A demand for *i* is credit for *i* alone (but see R12). Partition *i + 1* can be ready before *i* is acknowledged,
    but it is dispatched only after, so a node never has more than one output dispatched and unacknowledged and one
    held. Each consumer has a name. Of several all must have acknowledged *i*: the slowest sets the pace, unless the
    node keeps more than one output for it (``Node.ahead``).
R4. A sink's consumer is the application, which takes what was gathered at once.
R5. A node that is to leave becomes light at its next chance: after it has dispatched an output and before it demands
    inputs, or while it waits for inputs. Light, it only takes notice of what is demanded of it, until
    it goes on (here, or as another node elsewhere). It leaves when all consumers have been sent its last output.
R6. A suspended source dispatches nothing new; what was demanded of it goes out when it resumes.
R7. Between two trees (``reshaping``): a node that is replaced ends with its last partition. One that another node
    consumes from then on has *turned* when it has dispatched its last one for the old consumer, which somebody else
    keeps (``Turned``). Meanwhile both are its consumers, and the new one may have demanded its first by then. One that
    gets other inputs gathers from them then.

R8. A node ends when one of its inputs does, and says which of the others had a partition more. Of these it wants
    nothing any more (``Renounce``). A node of which nobody wants anything any more ends as well.
R9. A consumer of another query (``query_attachment``) comes later than the others: partitions before its first one are
    none of its concern. The first may be demanded before this node has come so far; of a node that has ended it is an
    end.
R10. In a later generation of a run a node may begin before its consumers do, as these have partitions of it that are
    made again: until it is as far, its consumers are as those of R9.
R11. Where the nodes of lost hosts alone begin anew, a consumer's first demand, or ``on_skip``, says where that
    goes on: behind this node, which then has kept what it has dispatched since (``log``), or *lacks* it; or ahead of
    it, as in R10. A node that is *free* begins where the first of its consumers goes on, when it has heard of all. Of a
    consumer that is a sink it is known where.

R12. With a *depth* of several partitions a demand for *i* is credit for *i* to *i + depth - 1*: the node dispatches so
    far ahead of what is acknowledged, and keeps that. An input that comes before its turn waits (``ReceiveWindow``). Of
    what a consumer may have, that is sent which has been made and was not sent; again what it demands once more, or
    what went where it is not any more. The last one before a node leaves, or turns, goes when all before it are
    acknowledged.

The states and what moves between them are the table of ``node_states``; anything else is a defect of the host core
and raises. Late and repeated messages are no defects: they change nothing.
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
    limit: int | None = None  # how many partitions the run has, None: until the sources end
    window: SendWindow = field(default_factory=SendWindow)  # what was dispatched, and who has what of it
    index: int = 0  # of the next output
    state: NodeState = IDLE
    received: ReceiveWindow = field(default_factory=ReceiveWindow)  # what has come of its inputs
    output: Output | None = None
    size_bytes: int | None = None  # of the last output
    free: bool = False  # R11: the node begins where the first of its consumers goes on
    leaves_after: int | None = None  # it becomes light when it has dispatched this, or a later one
    recalled: bool = False  # it leaves at once, when all its consumers have been heard
    suspended: bool = False
    turns: tuple[int, str] | None = None  # R7: what comes after this partition is for that consumer alone
    rewired: tuple[int, Node] | None = None  # after this partition the node is that one, with other inputs
    renounced: bool = False  # it has ended as nobody wanted anything more of it

    @classmethod
    def begun(
        cls, node: Node, limit: int | None, index: int, firsts: Mapping[str, int | None], *, free: bool = False
    ) -> NodeCore:
        """Return a node that begins with partition ``index``, and whose consumers begin with these partitions.

        None: a consumer says itself where it goes on (R11). With ``LAST`` nobody wants anything more of the node, or
        that consumer wants nothing more of it. The application begins where its sink does.
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
        """Partition before which the node has consumed every input of some producer."""
        return self.index + (self.state in (RUNNING, HOLDING) or bool(self.received.inputs))

    def on_demand(self, index: int, again: bool = False, consumer: str = "") -> tuple[Verdict, list[Action]]:
        """Handle the demand of a consumer. ``again``: the consumer repeats the demand, as no answer came."""
        window = self.window
        state = window.consumers.get(consumer)
        if state is None or index < state.demanded or index == LAST:  # R7: the first from before the node turned
            return "late", []  # R8: a consumer renounces by ``on_skip``
        if window.unheard and consumer in window.unheard:
            if not self._handle_resume(consumer, index):
                return "lacking", []
            state = window.consumers[consumer]
        ended = self.state is ENDED and self.node.kind != "sink"  # whose application has been told
        if ended and 0 < index == state.first and window.output(index) is None:
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
        return "taken", actions + (self._begin() if self.state is IDLE else self.go_on())

    def on_skip(self, index: int, consumer: str) -> tuple[bool, list[Action]]:
        """Let a consumer go on with partition ``index``, before it demands that (R11). ``LAST``: it takes no more (R8).

        Return whether the node can send the partition, and the actions.
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
        """Let a consumer go on with partition ``index`` (R11). Return whether the node can send that partition."""
        window = self.window
        free = self.free and self.state is IDLE
        if not free and index < self.index and window.output(index) is None:
            return False
        window.resume(consumer, index)
        self._set_out()
        return True

    def _set_out(self) -> None:
        """Let a free node begin where the first of its consumers goes on, if all have been heard (R11)."""
        first = self.window.begins_at()
        if self.free and self.state is IDLE and first is not None:
            self.index = first

    def _less_is_wanted(self) -> list[Action]:
        """Go on without a consumer that has renounced (R8) or is gone."""
        self.window.acknowledge()
        if self.window.all_demanded(LAST) and self.can(RENOUNCED):
            return self._renounce()
        return self._go_on_heard()

    def _go_on_heard(self) -> list[Action]:
        """Go on with fewer consumers to wait for (R11). A free operator gathers at once."""
        if self.state is not IDLE:
            return self.go_on()
        self._set_out()
        demanded = any(self.index <= consumer.demanded < LAST for consumer in self.window.consumers.values())
        return self._begin() if demanded or (self.free and self.node.inputs) else []

    def _ready(self) -> bool:
        """Return whether the held output may be dispatched (R3). The last one waits for all consumers (R5, R12)."""
        last, ahead = self.leaves_after, self.node.ahead
        if self.turns is not None:
            last, ahead = self.turns[0], 1
        if last is not None and self.index >= last:
            return self.window.all_demanded(self.index)
        return self.window.is_open(self.index, ahead)

    def late_consumers(self) -> list[str]:
        """Return the consumers that hold up an output which another consumer has demanded."""
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
        """Handle an input from ``producer``."""
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
        """Handle the output of the node's code."""
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
        """Become light, if ``leave`` had to wait for a consumer that was unheard (R11)."""
        if self.window.unheard or not self.recalled or self.leaves_after is None:
            return []
        return self.leave(self.leaves_after, recall=True)

    def stay(self) -> list[Action]:
        """Leave no longer. Go on, if the node is light."""
        self.leaves_after, self.recalled = None, False
        if self.state is not LIGHT and self.state is not DRAINING:
            return self.go_on()  # the held output needs the demand of one consumer only
        self.to(THAWED)
        return self._renounce() if self.window.all_demanded(LAST) else self._gather()

    def replace(self, after: int) -> list[Action]:
        """End after partition ``after``, as other nodes make the later ones (R7)."""
        self.limit = after + 1
        if self.index > after and self.state in (IDLE, GATHERING):  # R7: the last partition of the old tree is out
            self.received.clear()
            self.to(REPLACED)
        return []

    def turn(self, after: int, to: str) -> list[Action]:
        """Have another consumer, ``to``, take the partitions after ``after`` (R7)."""
        self.turns = after, to
        self.window.consumers[to] = ConsumerState.of(after + 1)
        return [Turned()] if self.index > after and self.window.all_demanded(after) else []

    def rewire(self, after: int, node: Node) -> list[Action]:
        """Take the inputs of ``node`` after partition ``after`` (R7)."""
        self.rewired = after, node
        return self._gather() if self.index > after and self.state is GATHERING else []

    def retire(self) -> list[Action]:
        """End the part of the old tree. A node may still be in it, as it has ended or not begun.

        Every partition of the old tree has been delivered, so the old consumer needs nothing more.
        """
        if self.rewired is not None:
            self.node, self.rewired = self.rewired[1], None
        if self.turns is None or (self.index <= self.turns[0] and self.state is not ENDED):
            return []
        self.turned()
        return self.go_on()

    def turned(self) -> SendWindow | None:
        """Turn to the new consumer (R7). Return the window of the old consumer for a tail. None: it has all."""
        assert self.turns is not None
        to, self.turns = self.turns[1], None
        return self.window.split(keep=to)

    def go_on(self) -> list[Action]:
        """Dispatch the held output if it may go. Become light if the node is to leave and all outputs are sent."""
        if self.state is HOLDING:
            return self._dispatch() if not self.suspended and self._ready() else []
        return self._freeze() if self.state is DRAINING and self.window.all_demanded(self.index - 1) else []

    def join(self, consumers: Iterable[str], first: int) -> list[Action]:
        """Add consumers that begin with partition ``first`` (R9)."""
        self.window.consumers |= {name: ConsumerState.of(first) for name in consumers}
        return self.go_on()

    def part(self, consumers: Collection[str]) -> list[Action]:
        """Remove consumers. Others stay."""
        self.window.part(consumers)
        return self._less_is_wanted()

    def begin(self) -> list[Action]:
        """Gather before the first demand, as a new node does."""
        over = self.limit is not None and self.index >= self.limit
        return self._begin() if self.state is IDLE and not over else []

    def suspend(self) -> int:
        """Dispatch nothing new until ``resume``. Return the last dispatched partition, or -1."""
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
        inputs = self.received.complete(node.inputs)
        ended = [output for output in inputs if output.end]
        if node.kind == "sink":
            return self._deliver(inputs, bool(ended))
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
        return self.go_on()  # R3: an output waits for its demand

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
        """Check the invariants. Raise AssertionError for one that does not hold."""
        window, limit = self.window, self.limit
        window.validate(self.index, ended=self.state is ENDED)
        indices = range(self.index, self.index + window.depth)
        self.received.validate(self.node.inputs, indices, gathers=self.state is GATHERING)
        held = (self.output is not None) + len(window.unacked) + (self.state is RUNNING)
        # R11: with a log, older outputs are for consumers that began anew
        behind = max(0, len(window.unacked) - 1) if window.log is not None else 0
        assert held - behind <= window.depth + self.node.ahead, f"{self!r} holds {held} outputs"
        assert len(window.unacked) <= 1 or self.state is not LIGHT, self
        assert (self.output is not None) == (self.state is HOLDING), self
        assert self.suspended or self.state is not HOLDING or not self._ready(), self
        assert not self.suspended or self.node.kind == "source", self
        assert self.leaves_after is None or self.node.kind == "operator", self
        assert limit is None or self.index <= limit, self
        assert self.turns is None or self.index <= self.turns[0] + window.depth, self
