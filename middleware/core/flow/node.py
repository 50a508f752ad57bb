"""One node of a demand-driven dataflow, as a pure state machine.

Rules (Ranganathan et al., section 2, "light-move requirement"):

R1. A node gathers its inputs for partition *i*, runs its code once, and holds the output until its
    consumer demands *i*. Having dispatched it, the node gathers for *i + 1*.
R2. A demand for *i* acknowledges every partition before *i*. Until then the last dispatched output is
    kept, and sent again when *i* is demanded again while no transfer of it is under way. The first demand that is
    repeated after the transfer has arrived does not count: it was most likely on its way by then.
R3. Partition *i + 1* can be ready before *i* is acknowledged, but it is dispatched only after, so a node
    never has more than one output dispatched and unacknowledged and one held. Of several consumers all must have
    acknowledged *i*: the slowest sets the pace, unless the node keeps more than one output for it (``Node.ahead``).
R4. A sink's consumer is the application, which takes what was gathered at once.
R5. A node that is to leave becomes light at its next chance: after it has dispatched an output and before it demands
    inputs, or while it waits for inputs. Light, it only takes notice of what is demanded of it, until
    it goes on (here, or as another node elsewhere). It leaves when all consumers have been sent its last output.
R6. A suspended source dispatches nothing new; what was demanded of it goes out when it resumes.
R7. Between two trees (``reshaping``): a node that is replaced ends with its last partition. One that another node
    consumes from then on has *turned* when it has dispatched its last one for the old consumer, which somebody else
    keeps (``Turned``); the new consumer may have demanded its first by then. One that gets other inputs gathers from
    them then.

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
    far ahead of what is acknowledged, and keeps that. What comes before its turn waits (``prefetched``). Of what a
    consumer may have, that is sent which has been made and was not sent; again what it demands once more, or what went
    where it is not any more. The last one before a node leaves, or turns, goes when all before it are acknowledged.

The states and what moves between them are the table of ``node_states``; anything else is a defect of the host core
and raises. Late and repeated messages are no defects: they change nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from thalweg.middleware.arithmetic import plain_sum
from thalweg.middleware.core.flow.actions import (
    LAST,
    Action,
    Ask,
    ConsumerState,
    Dispatch,
    Hand,
    Lighten,
    Output,
    Renounce,
    RunCode,
    Turned,
    Verdict,
)
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
)
from thalweg.middleware.core.flow.sending_side import SendingSide
from thalweg.middleware.dataflow import Node
from thalweg.middleware.protocol import messages as m


@dataclass(slots=True, eq=False, repr=False)
class NodeCore(SendingSide):
    """The state of one node. Every method that changes what it has in hand returns what is to be done, in order."""

    TABLE = TRANSITIONS

    inputs: dict[str, Output] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)  # producers that owe partition ``index``
    output: Output | None = None
    last: str = ""  # the producer whose input came last
    size_bytes: int | None = None  # of the last output
    recalled: bool = False  # it leaves at once, when all its consumers have been heard
    suspended: bool = False
    early: bool = False  # the consumer that it turns to has demanded its first one already
    rewired: tuple[int, Node] | None = None  # after this partition the node is that one, with other inputs
    renounced: bool = False  # it has ended as nobody wanted anything more of it
    prefetched: dict[int, dict[str, Output]] = field(default_factory=dict)  # by partition and producer, as they came

    @classmethod
    def of(cls, node: Node, limit: int | None, consumers: tuple[str, ...], index: int = 0) -> NodeCore:
        """A node that begins, with partition ``index``."""
        several = consumers if len(consumers) > 1 else ("",)
        return cls(node, limit, index=index, takers={name: ConsumerState.of(index) for name in several})

    @classmethod
    def resumed(cls, node: Node, limit: int | None, index: int, firsts: Mapping[str, int]) -> NodeCore:
        """A node that begins with partition ``index`` what has been begun before; its consumers' first ones.

        With ``LAST`` nobody wants anything more of it, or of it by that consumer.
        """
        if index == LAST:
            return cls(
                node, limit, ENDED, takers={name: ConsumerState(LAST) for name in firsts or ("",)}, renounced=True
            )
        if len({*firsts.values(), index}) == 1:
            return cls.of(node, limit, tuple(firsts), index)
        return cls(node, limit, index=index, takers={name: ConsumerState.of(first) for name, first in firsts.items()})

    @classmethod
    def anew(cls, node: Node, limit: int | None, start: m.Start, firsts: Mapping[str, int | None]) -> NodeCore:
        """R11: a node that begins where ``start`` says, or, if that says so, where its consumers go on.

        ``firsts``: what its consumers want next, None where that is not known.
        """
        if start.index == LAST:
            return cls.resumed(node, limit, LAST, dict.fromkeys(firsts, LAST))
        takers, unheard = _unheard(firsts)
        return cls(node, limit, index=start.index, takers=takers, unheard=unheard, free=start.free)

    def going_on(self, node: Node, firsts: Mapping[str, int | None]) -> NodeCore:
        """R11: this one, as it is, in the next generation; what was on its way to it, or from it, is lost."""
        outputs = self.kept if self.log is None or not self.log.outputs else [*self.log.outputs]
        older, last = (outputs[:-1], outputs[-1]) if outputs else ([], None)
        state = GATHERING if self.state in (DRAINING, LIGHT) else self.state
        asked = {name for name in node.inputs if name not in self.inputs} if state is GATHERING else set()
        takers, unheard = _unheard(firsts)
        return NodeCore(
            node, self.limit, state, self.index, takers, retained=last, older=older, log=self.log, unheard=unheard,
            depth=self.depth, inputs=self.inputs, asked=asked, output=self.output, last=self.last,
            size_bytes=self.size_bytes, renounced=self.renounced,
        )  # fmt: skip

    @classmethod
    def come(cls, node: Node, limit: int | None, index: int, takers: dict[str, ConsumerState]) -> NodeCore:
        """A node that has just come from another host, light."""
        return cls(node, limit, LIGHT, index, takers)

    def __repr__(self) -> str:
        asked = " ".join(f"{name} {taker.demanded}".strip() for name, taker in self.takers.items())
        return f"<node {self.node.name} {self.state} at {self.index}, demanded {asked}>"

    @property
    def got(self) -> int:
        """All partitions before this one it has got of some producer."""
        return self.index + (self.state in (RUNNING, HOLDING) or bool(self.inputs))

    def on_demand(self, index: int, again: bool = False, consumer: str = "") -> tuple[Verdict, list[Action]]:
        """A consumer (or for a sink, the application) demands partition ``index``; ``again``: as no answer came."""
        taker = self.taker or self.takers[consumer]
        if self.unheard and (name := consumer if consumer in self.takers else "") in self.unheard:
            if not self._handle_resume(taker, name, index):
                return "lacking", []
            taker = self.taker or taker
        ended = self.state is ENDED and self.node.kind != "sink"  # whose application has been told
        if ended and 0 < index == taker.first and self.sent_to(taker, index) is None:
            taker.demanded = max(taker.demanded, index)
            # R9: the node has ended before the first partition of a consumer of another query
            return "taken", [Dispatch(Output(index, end=True), consumer=consumer)]
        if self.turns_after is not None and index == self.turns_after + 1:
            # R7: the new consumer demands its first partition before the node has turned
            verdict: Verdict = "duplicate" if self.early else "taken"
            self.early = True
            return verdict, []
        if index > self.index:
            if index == taker.first and self.taker is None:
                return self._demanded_early(taker, consumer)
            return "ahead", []
        if self.depth > 1:
            return self._credited(taker, index, again, consumer)
        if index < self.index:
            output = self.sent_to(taker, index)
            if output is None or index != output.index or taker.demanded > index:
                return "late", []
            if taker.demanded < index and self.taker is None:
                return "taken", self._demanded(taker, consumer, index)
            if taker.sending:
                return "duplicate", []  # R2: a transfer of the output is under way
            if again and taker.landed == index:
                taker.landed = -1
                return "duplicate", []
            return "taken", [Dispatch(output, True, consumer)]
        if index == taker.demanded:
            return "duplicate", []
        if self.taker is None:
            if taker.demanded == LAST:
                return "late", []  # R8: the consumer wants nothing more
            return "taken", self._demanded(taker, consumer, index)
        taker.demanded = index
        taker.sending = False
        self.retained = None  # R2: the demand acknowledges all partitions before
        if self.state is IDLE:
            return "taken", self._begin()
        if self.state is HOLDING and not self.suspended:  # R6: a suspended source dispatches when it resumes
            return "taken", self._dispatch()
        return "taken", []

    def on_skip(self, index: int, consumer: str) -> tuple[bool, list[Action]]:
        """R11: a consumer goes on with partition ``index``, without demanding it yet. ``LAST``: it takes no more (R8).

        Return whether this node has what it goes on with, and what is to be done.
        """
        if index == LAST:
            self.unheard.discard(consumer if consumer in self.takers else "")
            return True, self._renounced(self.taker_of(consumer))
        taker = self.takers.get(consumer)
        if taker is None or consumer not in self.unheard:
            return True, []
        if not self._handle_resume(taker, consumer, index):
            return False, []
        return True, self._go_on_heard() if self.taker is None else []

    def _go_on_heard(self) -> list[Action]:
        """R11: less is waited for than before; a free operator gathers at once, as others wait for its word."""
        if self.state is not IDLE:
            return self._go_on()
        if self.free:
            self._set_out()
        if self.free and self.node.inputs and not self.unheard:
            self.to(DEMANDED)
            return self._gather()
        return self._begin() if any(self.index <= taker.demanded < LAST for taker in self.takers.values()) else []

    def _demanded(self, taker: ConsumerState, consumer: str, index: int) -> list[Action]:
        """One of several consumers wants what it has not been sent yet."""
        taker.demanded, taker.sending = index, False
        output = self.sent_to(taker, index) if index < self.index else None
        self._let_go()  # R2: the demand acknowledges all partitions before
        if len(self.takers) == 1 and not self.unheard:
            self._catch_up()
        actions: list[Action] = [] if output is None else [Dispatch(output, consumer=consumer)]
        return actions + (self._begin() if self.state is IDLE else self._go_on())

    def _credited(self, taker: ConsumerState, index: int, again: bool, consumer: str) -> tuple[Verdict, list[Action]]:
        """R12: a consumer may have ``depth`` partitions from ``index`` on."""
        if index < taker.demanded:
            return "late", []
        fresh = index > taker.demanded
        if again or not fresh:
            # R2: a partition is sent again unless its transfer is under way or has only just ended
            taker.miss(index, again=again)
        taker.demanded = index
        self._let_go()
        if self.taker is None and len(self.takers) == 1 and not self.unheard:
            self._catch_up()
        actions: list[Action] = [
            Dispatch(output, output.index in taker.sent, consumer if self.taker is None else "")
            for output in self.kept
            if index <= output.index < index + self.depth and taker.is_due(output.index)
        ]
        if not (fresh or actions):
            return "duplicate", []
        if self.turns_after is not None and index == self.turns_after < self.index:
            return "taken", actions + self._turn()
        return "taken", actions + (self._begin() if self.state is IDLE else self._go_on())

    def _demanded_early(self, taker: ConsumerState, consumer: str) -> tuple[Verdict, list[Action]]:
        """R9: what is to come yet."""
        if taker.demanded >= taker.first:
            return "duplicate", []
        taker.demanded = taker.first
        return "taken", self._begin() if self.state is IDLE else self._go_on()

    def _go_on(self) -> list[Action]:
        """One of several consumers has got something."""
        if self.state is HOLDING and not self.suspended and self._ready():
            return self._dispatch()
        return self._freeze() if self.state is DRAINING and self._all(self.index - 1) else []

    def _begin(self) -> list[Action]:
        if self.free and self.unheard:
            return []
        if self.limit is not None and self.index >= self.limit:
            return self._end()
        if self.leaves_after is not None and self.index > self.leaves_after:
            return self._freeze()
        self.to(DEMANDED)
        return self._gather()

    def on_partition(self, producer: str, output: Output) -> tuple[Verdict, list[Action]]:
        """``producer`` delivered a partition."""
        if producer not in self.asked or output.index != self.index or self.state is not GATHERING:
            if self.depth > 1 and self.wants(producer, output.index):
                self.prefetched.setdefault(output.index, {})[producer] = output
                return "taken", []
            return ("ahead" if output.index > self.index else "duplicate"), []
        self.asked.discard(producer)
        self.inputs[producer] = output
        self.last = producer
        return "taken", self._gathered() if not self.asked else []

    def wants(self, producer: str, index: int) -> bool:
        """Whether this node is to get that partition, and has not."""
        if index == self.index and self.state in (GATHERING, RUNNING, HOLDING):
            return producer in self.asked
        if self.state is ENDED or not self.index <= index < self.index + self.depth or self.depth == 1:
            return False
        node = self.node if self.rewired is None or index <= self.rewired[0] else self.rewired[1]
        return producer in node.inputs and producer not in self.prefetched.get(index, ())

    def on_finished(self, output: Output) -> tuple[Verdict, list[Action]]:
        """The node's code returned."""
        if self.state is not RUNNING or output.index != self.index:
            return "late", []
        return "taken", self._hold(output)

    def leave(self, after: int, *, recall: bool) -> list[Action]:
        """Become light once partition ``after`` has been dispatched, at the next chance.

        ``recall``: also where inputs are demanded. What has come of them is let go: the producers have it still.
        """
        self.leaves_after, self.recalled = after, recall and bool(self.unheard)
        if recall and self.state is GATHERING and self.index > after and not self.unheard:
            if self.depth > 1 and self.inputs:
                self.prefetched[self.index] = self.inputs
            self.inputs = {}
            if (self.taker is not None and self.depth == 1) or self._all(self.index - 1):
                return self._freeze()
            self.asked = set()
            self.to(RECALLED)
        return []

    def leave_heard(self) -> list[Action]:
        """R11: what ``leave`` could not recall while some consumer had not said where it goes on."""
        if self.unheard or not self.recalled or self.leaves_after is None:
            return []
        return self.leave(self.leaves_after, recall=True)

    def stay(self) -> list[Action]:
        """Go on, if it was light; it leaves no more."""
        self.leaves_after, self.recalled = None, False
        if self.state is not LIGHT and self.state is not DRAINING:
            return (
                self._go_on() if self.taker is None or self.depth > 1 else []
            )  # what was held for all to want it may go to some
        self.to(THAWED)
        return self._renounce() if self._all(LAST) else self._gather()

    def replace(self, after: int) -> list[Action]:
        """Dispatch nothing after partition ``after``: other nodes do. Nobody can have sent inputs for more."""
        self.limit = after + 1
        if self.index > after and self.state in (IDLE, GATHERING):  # R7: the last partition of the old tree is out
            self.asked, self.inputs, self.prefetched = set(), {}, {}
            self.to(REPLACED)
        return []

    def turn(self, after: int) -> list[Action]:
        """What comes after partition ``after`` is for another consumer, whose demands alone count for it."""
        self.turns_after = after
        return self._turn() if self.index > after and (self.depth == 1 or self._all(after)) else []

    def rewire(self, after: int, node: Node) -> list[Action]:
        """After partition ``after`` be ``node``: the same, but for its inputs."""
        self.rewired = after, node
        if self.index <= after or self.state is not GATHERING:
            return []
        self.inputs = {}
        return self._gather()

    def retire(self) -> list[Action]:
        """The old tree is gone: also for a node that has not gathered since, as it has ended or not begun.

        All that came through it has been delivered: what the old consumer may have said of that, and got lost, as well.
        """
        if self.rewired is not None:
            self.node, self.rewired = self.rewired[1], None
        if self.turns_after is None or self.index <= self.turns_after:
            return []
        self._turn()
        self.older = []
        self.release()
        return self.go_on_turned()

    def go_on_turned(self) -> list[Action]:
        """Somebody else keeps what the old consumer may still want: R12, the new one may have what is held."""
        return self._go_on() if self.depth > 1 else []

    def join(self, consumers: Iterable[str], first: int, only: str) -> list[Action]:
        """R9: there are more consumers, from partition ``first`` on; ``only``: who was the only one, if there was."""
        if self.taker is not None:
            self.takers, self.taker = {only: self.taker}, None
        self.takers |= {name: ConsumerState.of(first) for name in consumers}
        return self._go_on()

    def part(self, consumers: Collection[str]) -> list[Action]:
        """These are no consumers any more; there are others."""
        self.takers = {name: taker for name, taker in self.takers.items() if name not in consumers}
        self._let_go()
        if self._all(LAST) and (self.state, RENOUNCED) in TRANSITIONS:
            return self._renounce()
        if not self.unheard.isdisjoint(consumers):
            self.unheard.difference_update(consumers)
            return self._go_on_heard()
        return self._go_on()

    def begin(self) -> list[Action]:
        """Gather at once, demanded or not (a node that has just appeared, or begins anew)."""
        if self.state is not IDLE or (self.limit is not None and self.index >= self.limit):
            return []
        if self.free and self.unheard:
            return []
        self.to(DEMANDED)
        return self._gather()

    def suspend(self) -> int:
        """Dispatch nothing new until ``resume``; the last partition that was dispatched, -1 for none."""
        self.suspended = True
        return self.index - 1

    def resume(self) -> list[Action]:
        self.suspended = False
        if self.taker is None or self.depth > 1:
            return self._go_on()
        return self._dispatch() if self.state is HOLDING and self.taker.demanded == self.index else []

    # ------------------------------------------------------------------------------------------------

    def _freeze(self) -> list[Action]:
        self.to(FROZEN)
        self.asked = set()
        return [Lighten(self.index)]

    def _turn(self) -> list[Action]:
        after, self.turns_after = self.turns_after, None
        assert after is not None
        assert self.taker is not None
        self.taker.demanded = after + 1 if self.early else after
        if self.depth > 1:
            self.taker.first = after + 1  # which it may not have demanded: it has no credit yet
        self.early = False
        return [Turned()]

    def _gather(self) -> list[Action]:
        if self.rewired is not None and self.index > self.rewired[0]:  # R7: in the new tree the node has other inputs
            self.node, self.rewired = self.rewired[1], None
        self.asked = set(self.node.inputs)
        if not self.asked:
            return self._gathered()
        if self.prefetched:  # R12: inputs that came before their turn are taken
            for name, output in self.prefetched.pop(self.index, {}).items():
                if name in self.asked:
                    self.asked.discard(name)
                    self.inputs[name], self.last = output, name
        return [Ask(self.index)] if self.asked else [Ask(self.index), *self._gathered()]

    def _gathered(self) -> list[Action]:
        if not self.node.inputs:
            self.to(GATHERED)
            return [RunCode(self.index, ())]
        inputs = [self.inputs[name] for name in self.node.inputs]
        ended = [output for output in inputs if output.end]
        self.inputs = {}
        if self.node.kind == "sink":
            self.to(DELIVERED)
            handed = inputs[0] if len(inputs) == 1 else self._together(inputs, bool(ended))
            self.index += 1
            if not ended:
                return [Hand(handed)]  # R4: the application takes the partition at once
            self.to(EXHAUSTED)
            return [Hand(handed), *self._leave_others(inputs)]
        if ended:
            return [*self._hold(Output(self.index, end=self._end_of(inputs))), *self._leave_others(inputs)]
        self.to(GATHERED)
        return [RunCode(self.index, tuple([output.value for output in inputs]))]

    def _together(self, inputs: list[Output], over: bool) -> Output:
        """What a sink of several inputs is given: a tuple of them, in their order."""
        if over:
            return Output(self.index, end=self._end_of(inputs))
        sizes = tuple([output.size_bytes for output in inputs])
        return Output(self.index, tuple([output.value for output in inputs]), plain_sum(sizes), sizes=sizes)

    def _leave_others(self, inputs: list[Output]) -> list[Action]:
        """R8: of those that have not ended nothing is wanted any more."""
        names = [name for name, output in zip(self.node.inputs, inputs, strict=True) if not output.end]
        return [Renounce(tuple(names))] if names else []

    def _renounced(self, taker: ConsumerState) -> list[Action]:
        """R8: send a consumer nothing more, as it has all that it wants."""
        if taker.demanded == LAST:
            return []
        taker.demanded, taker.sending = LAST, False
        self._let_go()
        if self._all(LAST) and (self.state, RENOUNCED) in TRANSITIONS:
            return self._renounce()
        # R11: a free node begins once all consumers are heard
        heard = self.free and self.state is IDLE and not self.unheard
        return self._go_on_heard() if heard else self._go_on()

    def _renounce(self) -> list[Action]:
        self.to(RENOUNCED)
        self.renounced = True
        self.asked, self.inputs, self.output, self.prefetched = set(), {}, None, {}
        return [Renounce(self.node.inputs)] if self.node.inputs else []

    def _end_of(self, inputs: list[Output]) -> m.End:
        """R8: the end of this node's stream, where some or all of its inputs' have ended."""
        remaining: list[str] = []
        for name, output in zip(self.node.inputs, inputs, strict=True):
            if not output.end:
                remaining.append(name)
            elif isinstance(output.end, tuple):
                remaining += output.end
        return tuple(dict.fromkeys(remaining)) or True

    def _hold(self, output: Output) -> list[Action]:
        self.to(FINISHED)
        self.output = output
        taker = self.taker
        ready = self._ready() if taker is None or self.depth > 1 else taker.demanded == self.index
        return self._dispatch() if ready and not self.suspended else []  # R3: an output waits for its demand

    def _dispatch(self) -> list[Action]:
        output = self.output
        assert output is not None
        self.size_bytes = output.size_bytes
        self.output = None
        if self.log is not None:
            self.log.add(output)
        if self.retained is not None:
            if self.taker is None or self.depth > 1:
                self._let_go()  # R9: no consumer is to get these outputs
            if self.retained is not None:
                self.older.append(self.retained)
        self.retained = output
        self.index += 1
        actions: list[Action] = [Dispatch(output)]
        if self.taker is None or self.depth > 1:
            to = [name for name, taker in self.takers.items() if self._may_have(taker, output.index)]
            actions = [Dispatch(output, consumer=name) for name in to]
            if output.end:  # R9: a consumer whose first partition is later is sent an end as well
                early = [(name, taker.first) for name, taker in self.takers.items() if taker.demanded == taker.first]
                late = [(name, first) for name, first in early if first > output.index]
                actions += [Dispatch(Output(first, end=True), consumer=name) for name, first in late]
            if len(self.takers) == 1 and not self.unheard:
                self._catch_up()
        if output.index == self.turns_after:
            actions += self._turn()
        if output.end or self.index == self.limit:
            self.to(EXHAUSTED)
            return actions
        if self.leaves_after is not None and self.index > self.leaves_after:
            return actions + self._freeze()  # R5: a light node has demanded no inputs
        self.to(DISPATCHED)
        return actions + self._gather()

    def _end(self) -> list[Action]:
        """A sink whose run has its number of partitions delivers the end of the stream."""
        self.to(EXHAUSTED)
        return [Hand(Output(self.index, end=True))] if self.node.kind == "sink" else []

    def validate(self) -> None:
        """The invariants; AssertionError tells which does not hold."""
        super(NodeCore, self).validate()
        held = (self.output is not None) + len(self.kept) + (self.state is RUNNING)
        # R11: with a log, older outputs are for consumers that began anew
        behind = len(self.older) if self.log is not None else 0
        most = self.depth + (1 if self.taker is not None else self.node.ahead)
        assert held - behind <= most, f"{self!r} holds {held} outputs"
        assert not (self.older and self.state is LIGHT), self
        assert (self.output is not None) == (self.state is HOLDING), self
        deep = self.depth > 1
        ready = self._ready() if self.taker is None or deep else self.taker.demanded == self.index
        assert not (ready and self.state is HOLDING and not self.suspended), self
        assert not self.suspended or self.node.kind == "source", self
        assert self.leaves_after is None or self.node.kind == "operator", self
        assert self.asked.isdisjoint(self.inputs), self
        if self.state is GATHERING:
            assert self.asked | set(self.inputs) == set(self.node.inputs), self
        else:
            assert not self.asked, self
            assert not self.inputs, self
        assert self.limit is None or self.index <= self.limit, self
        assert self.turns_after is None or self.index <= self.turns_after or deep, self
        assert self.prefetched.keys() <= set(range(self.index, self.index + (self.depth if deep else 0))), self
        assert not self.early or self.turns_after is not None, self


def _unheard(firsts: Mapping[str, int | None]) -> tuple[dict[str, ConsumerState], set[str]]:
    """R11: what is known of consumers, and of which it is not yet."""
    takers = {name: ConsumerState() if first is None else ConsumerState.of(first) for name, first in firsts.items()}
    return takers, {name for name, first in firsts.items() if first is None}
