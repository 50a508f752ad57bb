"""Code of one node, and its calls: construction, partitions, and states that are taken, restored or merged.

Rules:

- R1: Every exception of user code (SystemExit too) becomes an answer with the reason in one line, and ends no thread.
- R2: A state is restored only with its digest and the version that the code here reads.
- R3: Code begins anew in a new tree only if it is reorderable, and has no state that would be lost.
- R4: If every input of an operator is nothing, the output is nothing. The operator is not called unless it asks
  (``on_nothing``).
- R5: The watermark of a result is the earliest watermark of the inputs, unless the code sets a watermark. It is sent
  with the result.
- R6: A change of the state is taken only if the last state or change was taken for a replica. For code that reports no
  changes, the change is computed from the states (``blocks``).
- R7: The records of one stream have the same columns, on the host that makes them and on each host that gets them.
"""

from __future__ import annotations

import os
import re
import threading
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import msgspec
from msgspec import UNSET
from numpy import ndarray

from thalweg.middleware.dataflow import Node
from thalweg.middleware.errors import OperatorError, ThalwegError, one_line, printable
from thalweg.middleware.loading import METHODS, Allow, keeps_state, load_code, may_reorder
from thalweg.middleware.parcels import Parcel, is_nothing
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.run_id import RunId
from thalweg.middleware.shell.blocks import SIGN, changed, digest_after, patched
from thalweg.middleware.shell.packing import RECORDS, check_schema, marked, opened
from thalweg.middleware.shell.values import returned_by, size_of

RUNTIME = str(Path(__file__).parents[1]) + os.sep
OURS = str(Path(__file__).parents[2]) + os.sep
TRACEBACK = 6_000  # most characters of a traceback; the middle of a longer one is left out


class NodeResult(msgspec.Struct, frozen=True, gc=False):
    """Result of one call of a node's code, with its simulated duration in ``seconds``. ``end``: the stream is over.

    ``late_rows``: number of rows that were left out, as the watermark had passed them. ``left_out``: rows that could
    not be computed.
    """

    value: Any
    size_bytes: int
    seconds: float = 0.0
    end: bool = False
    late_rows: int = 0
    left_out: e.LeftOut | None = None


ENDED = NodeResult(None, 0, end=True)
NO_VALUE = "return NOTHING for an index without a value"
SEALED = re.compile("read-only|WRITEABLE")  # in errors of numpy and others about memory that cannot be written


class NodeCode(ABC):
    """Base of the code of one node on one host. The defaults are those of a node without state.

    Every method and attribute may raise exceptions of the code.
    """

    reorderable: bool = False
    keeps_state: bool = False
    waits: bool = False  # the code waits for data from outside, without a limit
    state_bytes: int | None = None  # of the last state that was taken or given
    delta_bytes: int | None = None  # of the last change that was taken
    tells = False  # whether the code reports changes (``delta``)
    marked = False  # R6: whether the last state or change was taken for a replica
    last: tuple[bytes, str] | None = (
        None  # R6: the last state that was taken for a replica, and the digest of the bytes that were sent for it
    )

    @property
    def state_version(self) -> int:
        return 1

    @abstractmethod
    def make(self, index: int, inputs: tuple[Any, ...]) -> NodeResult:
        """Return partition ``index`` of the output, from the partitions of the inputs. A source has no inputs."""

    def abandon(self) -> None:
        """Note that the answers of the code are no longer needed."""
        return

    def snapshot(self) -> bytes:
        return b""

    def restore(self, state: bytes) -> None:
        if state:
            raise OperatorError(f"there are {len(state)} bytes of state, and the code here has no restore()")

    def delta(self) -> bytes | None:
        return None

    def apply(self, delta: bytes) -> None:
        raise OperatorError(f"there are {len(delta)} bytes of changes, and the code here has no apply()")

    def merge(self, states: Sequence[bytes]) -> bytes:
        raise OperatorError("the code here has no merge()")


class OwnCode(NodeCode):
    """Code that a node's ``Code`` names, constructed. Raises OperatorError if it cannot be constructed here."""

    def __init__(self, node: Node, allow: Allow) -> None:
        assert node.code is not None
        self.code = load_code(node.code, allow)
        self.is_source = node.kind == "source"
        wants = METHODS[node.kind]
        call = getattr(self.code, wants, None)
        if call is None:
            raise OperatorError(f"{node.code.use!r} cannot run as {node.kind}: it has no {wants}()")
        self._call: Callable[..., Any] = call
        self.reorderable = may_reorder(self.code)
        self.keeps_state = keeps_state(self.code)
        self.waits = bool(getattr(self.code, "waits", False))
        self.tells = hasattr(self.code, "delta")
        self._allow = allow
        self._heads: dict[str, bytes] = {}  # schemas of the inputs and the output

    @property
    def state_version(self) -> int:
        return int(getattr(self.code, "state_version", 1))

    def make(self, index: int, inputs: tuple[Any, ...]) -> NodeResult:
        if inputs and Parcel in map(type, inputs):
            return self._make_of_parcels(index, inputs)
        value = returned_by(self._call, (index,) if self.is_source else (inputs, index), inputs)
        if type(value) is ndarray:  # by far the most frequent
            return NodeResult(value, value.nbytes)
        if type(value) is Parcel:
            return self._made_parcel(index, value)
        if value is not None:
            return NodeResult(value, size_of(value))
        if not self.is_source:
            raise OperatorError(f"combine returned None for partition {index}; {NO_VALUE}")
        return ENDED

    def _make_of_parcels(self, index: int, inputs: tuple[Any, ...]) -> NodeResult:
        marks = [parcel.watermark_s if type(parcel) is Parcel else None for parcel in inputs]
        # R5: the earliest of the inputs' watermarks, none if an input has none
        watermark_s = None if None in marks else min(mark for mark in marks if mark is not None)
        # R4: no input has a value, so the output has none, unless the code asks to be called
        if all(map(is_nothing, inputs)) and not getattr(self.code, "on_nothing", False):
            return NodeResult(marked(inputs[0], watermark_s), 0)
        for position, parcel in enumerate(inputs):
            self._check_schema(parcel, f"input {position}", index)
        if hasattr(self.code, "watermark_s"):
            self.code.watermark_s = watermark_s
        late_rows = getattr(self.code, "late_rows", 0)
        values = [opened(parcel, self._allow) for parcel in inputs]
        value = returned_by(self._call, (values, index), inputs)
        late_rows = getattr(self.code, "late_rows", 0) - late_rows
        if value is None:
            raise OperatorError(f"combine returned None for partition {index}; {NO_VALUE}")
        if type(value) is Parcel:
            return self._made_parcel(index, value, late_rows)
        return NodeResult(value, size_of(value), late_rows=late_rows)

    def _made_parcel(self, index: int, value: Parcel, late_rows: int = 0) -> NodeResult:
        self._check_schema(value, "the output", index)
        value = marked(value, getattr(self.code, "watermark_s", None))
        return NodeResult(value, value.size_bytes, late_rows=late_rows, left_out=getattr(self.code, "left_out", None))

    def _check_schema(self, value: Any, what: str, index: int) -> None:
        """Raise OperatorError if records have other columns than the records before (R7). ``what``: input or output."""
        if type(value) is not Parcel or value.kind not in RECORDS:
            return
        before = self._heads.setdefault(what, value.head)
        if before is not value.head and before != value.head:
            check_schema(value, before, f"partition {index}, {what}")
            self._heads[what] = value.head

    def abandon(self) -> None:
        if self.waits:
            self.code.abandon()

    def snapshot(self) -> bytes:
        take = getattr(self.code, "snapshot", None)
        return b"" if take is None else _bytes_of("snapshot", take())

    def restore(self, state: bytes) -> None:
        give = getattr(self.code, "restore", None)
        if give is None:
            super().restore(state)
        else:
            give(state)

    def delta(self) -> bytes | None:
        take = getattr(self.code, "delta", None)
        changed = None if take is None else take()
        return None if changed is None else _bytes_of("delta", changed)

    def apply(self, delta: bytes) -> None:
        give = getattr(self.code, "apply", None)
        if give is None:
            super().apply(delta)
        else:
            give(delta)

    def merge(self, states: Sequence[bytes]) -> bytes:
        return _bytes_of("merge", self.code.merge(states))


def _bytes_of(method: str, state: Any) -> bytes:
    if not isinstance(state, bytes):
        raise OperatorError(f"{method}() returned {type(state).__name__}, not bytes")
    return state


# --- calls, and their answers -------------------------------------------------------------------------

Opener = Callable[[], NodeCode]
StateCall = e.TakeState | e.RestoreState | e.MergeStates


def open_node(opener: Opener, command: e.OpenNode) -> e.NodeOpened:
    """Construct the code of a node that may come to this host, or begin here. Return the answer to ``OpenNode``."""
    node = command.node
    try:
        code = opener()
        assert node.code is not None
        if command.fresh and not code.reorderable:  # R3: ``fresh``: the code begins anew in another tree
            raise OperatorError(f"{node.code.use!r} is not reorderable")
        if command.fresh and code.keeps_state and not command.merging:
            raise OperatorError(f"{node.code.use!r} has state, which would be lost")
    except BaseException as error:  # R1: the error is an answer, SystemExit too
        return e.NodeOpened(command.run, node.name, _reason(error))
    return e.NodeOpened(command.run, node.name)


def load(opener: Opener, command: e.OpenNode) -> e.OperatorFailed | None:
    """Construct the code of a node on this host. Return the failure, None if there is none."""
    try:
        opener()
    except BaseException as error:  # R1: the error is an answer, SystemExit too
        return e.OperatorFailed(command.run, command.node.name, _reason(error), _cause(error))
    return None


def make(code: NodeCode, command: e.RunOperator) -> NodeResult | e.OperatorFailed:
    """Run the code once. Return the result or the failure."""
    try:
        return code.make(command.index if command.stands_for is UNSET else command.stands_for, command.inputs)
    except BaseException as error:  # R1: the error is an answer, SystemExit too
        reason = _reason(error, f" at partition {command.of_stream}")
        return e.OperatorFailed(command.run, command.node, reason, _cause(error, command.of_stream))


def finished(command: e.RunOperator, made: NodeResult, duration_s: float) -> e.OperatorFinished:
    """Return the event for a call that took ``duration_s`` seconds."""
    return e.OperatorFinished(
        command.run, command.node, command.index,
        made.value, made.size_bytes, made.end, duration_s, made.late_rows or UNSET, made.left_out or UNSET,
    )  # fmt: skip


def take_or_give(opener: Opener, command: StateCall) -> e.StateTaken | e.StateRestored:
    """Take the state of the code, or give the code a state or several merged states. Return the answer."""
    return _take(opener, command) if isinstance(command, e.TakeState) else _give(opener, command)


def _take(opener: Opener, command: e.TakeState) -> e.StateTaken:
    run, node, version, where = command.run, command.node, command.version, " in snapshot()"
    try:
        code, delta, digest = opener(), None, ""
        # R6: the last state or change was taken for a replica, so a change can follow it
        if command.delta and code.marked:
            where = " in delta()"
            delta = code.delta()
        if delta is None:
            where = " in snapshot()"
            state = whole = code.snapshot()
            code.state_bytes = len(state)
            if command.delta and code.last is not None:
                delta = changed(code.last[0], state)
            if delta is not None and code.last is not None:
                state, digest = delta, digest_after(delta, code.last[1])
            digest = digest or digest_of(state)
            code.last = (whole, digest) if command.replica and not code.tells else None
        else:
            state, digest = delta, digest_of(delta)
            code.delta_bytes = len(delta)
        code.marked = command.replica
        state_version = code.state_version
        keeps = bool(state) or delta is not None or code.keeps_state or not command.replica
    except BaseException as error:  # R1: the error is an answer, SystemExit too
        return e.StateTaken(run, node, version, error=_reason(error, where), cause=_cause(error))
    return e.StateTaken(
        run, node, version, state, digest, state_version,
        keeps=UNSET if keeps else False, delta=UNSET if delta is None else True,
    )  # fmt: skip


def _give(opener: Opener, command: e.RestoreState | e.MergeStates) -> e.StateRestored:
    where = " in restore()"
    try:
        code = opener()
        if isinstance(command, e.MergeStates):
            where = " in merge()"
            for inherited in command.states:
                _check(code, inherited, "a")
            state = code.merge([bytes(inherited.state) for inherited in command.states])
        else:
            _check(code, command, "its")
            state, deltas = bytes(command.state), command.deltas
            if any(delta.digest.startswith(SIGN) for delta in deltas):
                state, deltas = patched(state, command.digest, deltas), ()
        code.restore(state)
        code.state_bytes, code.marked, code.last = len(state), False, None
        if isinstance(command, e.RestoreState):
            where = " in apply()"
            for inherited in deltas:
                _check(code, inherited, "its")
                code.apply(bytes(inherited.state))
    except BaseException as error:  # R1: the error is an answer, SystemExit too
        return e.StateRestored(command.run, command.node, command.version, _reason(error, where), _cause(error))
    return e.StateRestored(command.run, command.node, command.version)


def _check(code: NodeCode, came: e.RestoreState | e.Inherited, whose: str) -> None:
    if digest_of(came.state) != came.digest:
        raise OperatorError(f"the {len(came.state)} bytes that came do not have the state's digest")
    if came.state_version != code.state_version:
        why = f"{whose} state is of version {came.state_version}; the code here reads {code.state_version}"
        raise OperatorError(why)


def digest_of(state: bytes) -> str:
    """Return the digest by which a damaged state is detected: CRC-32, as for files in archives.

    The sender sends state and digest, so no stronger digest would help against a host that lies.
    """
    return f"{zlib.crc32(state):08x}"


def _reason(error: BaseException, where: str = "") -> str:
    """Return the error in one line. Errors of Thalweg are returned without the class."""
    if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
        raise error  # the user wants the process to stop
    if isinstance(error, ThalwegError):
        return one_line(error)
    text = one_line(error)
    if isinstance(error, ValueError | TypeError) and SEALED.search(text):
        text += "; inputs and returned values are read-only: work on a copy"
    return f"{type(error).__name__}{where}: {text}"


def _cause(error: BaseException, index: int | None = None) -> m.Cause:
    """Return the exception of user code, with the lines of that code in the traceback.

    If the runtime itself has found the fault, there are no lines.
    """
    if isinstance(error, ThalwegError) and error.__context__ is not None and not _theirs(error.__traceback__):
        error = error.__context__  # the error of the loader hides the cause, which is its context
    frames = _theirs(error.__traceback__)
    if isinstance(error, ThalwegError) and all(frame.f_code.co_filename.startswith(OURS) for frame, _ in frames):
        frames = []  # an operator of Thalweg has raised the error
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return m.Cause(index, one_line(name)[:256], _lines(error, frames))


def _theirs(raised: TracebackType | None) -> list[tuple[FrameType, int]]:
    """Return the frames and lines of user code in a traceback, outermost first."""
    frames = []
    while raised is not None:
        if not raised.tb_frame.f_code.co_filename.startswith((RUNTIME, "<frozen importlib")):
            frames.append((raised.tb_frame, raised.tb_lineno))
        raised = raised.tb_next
    return frames


def _lines(error: BaseException, frames: list[tuple[FrameType, int]]) -> str:
    if not frames:
        return ""
    import traceback  # only failures need it, and a host starts sooner without

    try:
        report = traceback.TracebackException(type(error), error, None, compact=True)
        report.stack = traceback.StackSummary.extract(iter(frames))
        lines = "".join(report.format()).strip()
    except BaseException as failed:  # the error's class, or the loader of its source, is user code
        return f"a traceback that cannot be shown: {type(failed).__name__}"
    if len(lines) > TRACEBACK:
        lines = f"{lines[: TRACEBACK // 3]}\n…\n{lines[-2 * TRACEBACK // 3 :]}"
    return printable(lines)


def name_of(command: e.RunOperator | StateCall) -> str:
    """Return the name of a call for the error of a call that takes too long."""
    if isinstance(command, e.RunOperator):
        return f"{'combine' if command.inputs else 'produce'}() of partition {command.of_stream}"
    if isinstance(command, e.TakeState) and command.delta:
        return "delta() or snapshot()"
    return {e.TakeState: "snapshot()", e.RestoreState: "restore()", e.MergeStates: "merge()"}[type(command)]


def overdue(run: RunId, node: str, index: int | None, what: str) -> e.OperatorFailed:
    """Return the failure of a call that took too long or was never begun. ``index``: partition of the call, if any."""
    return e.OperatorFailed(run, node, what, m.Cause(index, "TimeoutError"))


def not_within(limit_s: float) -> str:
    return f"has not returned within {limit_s:g} s (call_timeout_s)"
