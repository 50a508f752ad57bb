"""ZeroMQ shell: sockets, timers and threads around one pure ``HostCore``.

The core makes every decision. The shell has only bytes, clocks and threads. Rules:

- R1: One thread is on duty (``standby_loop``). It takes one message at a time from each router, passes it to the core,
  and carries out the commands of the core. Control is read before bulk, so a control message waits for one chunk at
  most.
- R2: The thread on duty makes calls of nodes that have proved quick. Workers make the remaining calls.
- R3: No defect ends a host that is needed by further runs, and neither does a lack of memory. If the core raises over
  an event, or the execution of a command raises, the run concerned is closed. The defect is recorded with its event,
  and logged. The remaining commands of the event are still carried out, as alarms need their timers, and further runs
  their messages. Only broken sockets, or a request to end the process (KeyboardInterrupt, SystemExit), end the host.
- R4: A router's descriptor reports an arrival once. Therefore a router is read until it has no message. It is read anew
  after an answer was sent through it (``stirred``), and by a thread that takes the duty over.
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import zmq
from msgspec import UNSET, UnsetType
from zmq.backend import zmq_poll

from thalweg.middleware.core.host import HostCore
from thalweg.middleware.errors import ProtocolError, UsageError, expect, in_seconds, one_line
from thalweg.middleware.grants import Grants, own_packages
from thalweg.middleware.loading import registered
from thalweg.middleware.logbook import Logbook
from thalweg.middleware.platform.processes import resident_bytes
from thalweg.middleware.platform.waiting import READABLE, Bell, new_poller
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import frames
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.limits import CoreConfig
from thalweg.middleware.protocol.run_id import NO_RUN, RunId
from thalweg.middleware.shell import descriptors
from thalweg.middleware.shell.awake import SLACK_S, STALE_S, WOKE_S, Awake
from thalweg.middleware.shell.bounds import EARLY_S
from thalweg.middleware.shell.bulk import Bulk
from thalweg.middleware.shell.recorder import Recorder
from thalweg.middleware.shell.rejections import Rejections
from thalweg.middleware.shell.security import Keys
from thalweg.middleware.shell.sockets import ANSWERS, Listening, Sockets
from thalweg.middleware.shell.standby_loop import StandbyLoop
from thalweg.middleware.shell.workers import Call, Slot, Task, Workers

HOUSEKEEPING_S = 5.0
ANSWERS_S = 0.2  # between two reads of answers on dealers; the messages are repeated every half second at most
TAKE_OVER_S = 0.02  # after a longer call of a quick node, its thread loses the duty
INCOMING = int(zmq.POLLIN)
BEYOND_REPAIR = frozenset({zmq.ETERM, zmq.ENOTSOCK})  # errors of broken sockets: nothing is left to serve


# messages that only the client of a run may send
LED = m.Install | m.Remove | m.AddMember | m.InstallSubscriber


class ShellConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Configuration of one host process."""

    name: str
    listen: str = "tcp://127.0.0.1:*"
    advertise: str | None = None  # the address that peers dial, if it differs from that of ``listen``
    bulk_port: int | None = None  # port for partitions; by default the port above that of ``listen``
    time_scale: float = 1.0
    allow: dict[str, tuple[str, ...]] = msgspec.field(default_factory=own_packages)  # allowed packages, by client
    data_roots: dict[str, tuple[str, ...]] = {}  # folders that sources may read, by client
    records: str | None = None
    core: CoreConfig = CoreConfig()
    insecure: bool = False
    networks: dict[str, str] = {}  # further networks of the host, with its endpoint for bulk in each
    speaks: m.Speaks = frames.SPEAKS  # versions of the protocol
    of_application: bool = False  # whether this is the host of a ``Client``
    process: str = ""  # description of the process for other hosts (``Peer.process``)

    def __post_init__(self) -> None:
        name = self.name
        expect(name, str, "the name of a host is a text")
        if "/" in name or not name.isprintable() or not 1 <= len(name.encode()) <= 128:
            raise UsageError(f"{name!r} is no name of a host; use 1 to 128 bytes of printable text without '/'")
        expect(self.time_scale, int | float, "the time scale is a number")
        if not 0 < self.time_scale < math.inf:
            raise UsageError(f"the time scale is {self.time_scale!r}; give a positive number")


class Shell:
    """Running host. Any thread may pass events to ``queue_event``. ``on_application`` gets news for the application.

    ``failure``: reason why the host has stopped without a request. ``on_application`` gets the reason too, as a
    ``Fail`` without a run.
    """

    # with more than 29 attributes, Python 3.11 would look up attributes in a dict, and methods anew, for every message

    def __init__(
        self,
        config: ShellConfig,
        on_application: Callable[[e.Command], None] | None = None,
        keys: Keys | None = None,
    ) -> None:
        self.config = config
        self._time_scale = config.time_scale  # factor of the times of events
        grants = Grants(config.allow, config.data_roots, config.core.max_picture_bytes, config.of_application)
        if keys is None and grants.tells_clients_apart:
            raise UsageError(
                "permissions of single clients (CLIENT=PACKAGE, CLIENT=FOLDER) need --keys: without keys, a client's"
                " name proves nothing"
            )
        descriptors.check_free(f"the host {config.name!r}", descriptors.OWN)
        listening = Listening(config.listen, config.advertise, config.networks, config.insecure, config.bulk_port)
        self._sockets = Sockets(
            config.name, listening, keys, limits=config.core, speaks=config.speaks, process=config.process
        )
        try:
            self._recorder = Recorder(config.name, Path(config.records) if config.records else None, config.time_scale)
        except BaseException:
            self._sockets.destroy(0)
            raise
        self._sockets.logbook = self.logbook
        me = msgspec.structs.replace(self._sockets.me, max_partition_bytes=config.core.max_partition_bytes)
        self.core = HostCore(me, config.core.dilated(config.time_scale), tuple(sorted(registered())), config.speaks)
        self.core.context.recording = self._recorder.active
        self._bulk = Bulk(self, self._sockets, self.core, config.core, config.time_scale)
        self._on_application = on_application or (lambda command: None)
        begun_s = time.monotonic()
        self._awake = Awake(begun_s)
        self._worked = begun_s, time.process_time()  # end of the recorded load, and the processor seconds until then
        self._timers: list[tuple[float, int, e.TimerKey]] = []
        self._timer_number = itertools.count()  # orders timers with the same time by their setting
        self._timer_at: dict[e.TimerKey, float] = {}
        self._rejections = Rejections(self._recorder, self.logbook)
        self.failure = ""
        self._broke = NO_RUN  # the run that was broken last, which is logged once
        self._inbox: deque[e.Event] = deque()
        self._bell = Bell()
        self._poller = new_poller()  # waits in one call: zmq_poll looks at each socket twice
        routers = self._sockets.control, self._sockets.bulk, *self._sockets.others.values()
        for descriptor in (self._bell.descriptor, *(router.get(zmq.FD) for router in routers)):
            self._poller.register(int(descriptor), READABLE)
        self._asleep = False
        self._stopping = False
        self._workers = Workers(self.queue_event, grants.of, config.core.max_threads, self.logbook)
        self._quick: deque[tuple[Slot, Task]] = deque()
        self._quick_call: Call | None = None  # the call under way, if it may take too long
        self._housekeeping_s = begun_s + HOUSEKEEPING_S
        self._due_s = self._housekeeping_s  # time of the next work without a message
        self._answers_s = 0.0  # time of the next read of answers
        self._turns = 0  # number of messages of each router that could have been taken
        self._sockets.watch(lambda: (self._turns, self._asleep), self._wake)
        if self._sockets.guard is not None:
            self._bulk.watch()
            self._poller.register(self._sockets.guard.news, READABLE)
        self._duty = StandbyLoop(self._loop, self._ended, f"thalweg-{config.name}", TAKE_OVER_S)

    # --- used from other threads -----------------------------------------------------------------------

    def speak(self, version: int, run: RunId | None = None) -> None:
        """Use a version of the protocol for a run, or for runs without a stated version. Any thread may call this."""
        if run is None:
            self._sockets.version = version
        else:
            self._sockets.speak(run, version)

    def queue_event(self, event: e.Event) -> None:
        """Queue an event for the core, from any thread."""
        self._inbox.append(event)
        self._wake()

    @property
    def logbook(self) -> Logbook:
        """Log records of this host."""
        return self._recorder.logbook

    @property
    def me(self) -> m.Peer:
        return self.core.me

    @property
    def frames_rejected(self) -> int:
        """Number of messages that were rejected so far."""
        return self._rejections.count

    @property
    def alive(self) -> bool:
        return not self._duty.over.is_set()

    def close(self) -> None:
        """Stop the loop, and free sockets and files. May be called again."""
        self._stopping = True
        self._wake()
        self._duty.wait(10)

    def forked(self) -> None:
        """Mark the shell as over, in a fork of the process, where none of the threads runs."""
        self._duty.over = threading.Event()
        self._duty.over.set()

    def _wake(self) -> None:
        if self._asleep:
            self._asleep = False
            try:
                self._bell.ring()
            except (BlockingIOError, OSError):
                return

    # --- the thread on duty ----------------------------------------------------------------------------

    def _ended(self, error: BaseException | None) -> None:
        """Free sockets, threads and files, as the loop is over."""
        self._stopped_of(error)
        destroy = partial(self._sockets.destroy, 200)
        for step in (self._workers.stop, self._recorder.close, self._poller.close, destroy, self._bell.close):
            try:
                step()
            except Exception as problem:  # any error: the rest is to be freed
                self._stopped_of(problem)

    def _stopped_of(self, error: BaseException | None) -> None:
        if error is None or self.failure:
            return
        self.failure = type(error).__name__  # first, before any step that takes memory
        try:
            why = f"{self.failure}: {one_line(error)}"
            self.failure = f"the host {self.config.name!r} stopped: {why}"
            self._on_application(e.Fail(NO_RUN, self.failure))
            self.logbook.write("host-stopped", self.failure, reason=why)
        except Exception:  # no report is possible, but ``failure`` is set
            return

    def _loop(self) -> bool:
        """Serve until the shell is to stop (True), or a second thread has taken the duty over (False)."""
        sockets, guard, workers = self._sockets, self._sockets.guard, self._workers
        control, bulk, poll, transfers = sockets.control, sockets.bulk, self._poller.poll, self._bulk
        rung, hush = self._bell.descriptor, self._bell.hush
        control_fd, bulk_fd = control.get(zmq.FD), bulk.get(zmq.FD)
        of_control, of_bulk = [(control, INCOMING)], [(bulk, INCOMING)]
        routers = [(name, router, router.get(zmq.FD), [(router, INCOMING)]) for name, router in sockets.others.items()]
        watched = sockets.watching.descriptors
        at_others: set[str] = set()  # networks in which a message waits
        if self._quick_call is not None and not self._quick_call.over:  # this thread took the duty over from the call
            workers.watch(self._quick_call)
        sockets.stirred = True
        at_control: Any = 0  # whether a message of the control router waits
        at_bulk: Any = 0
        awake, now = self._awake, time.monotonic()
        if now > awake.limit_s:
            self._wake_up(now)
        while not self._stopping:
            self._turns += 1
            if sockets.stirred:  # R4: a message may wait that the descriptor does not report again
                sockets.stirred, at_control, at_bulk = False, 1, 1
                at_others.update(sockets.others)
            if at_control:  # by zmq_poll, as pyzmq looks up an option's number in Python
                at_control = zmq_poll(of_control, 0)
            if at_bulk:
                at_bulk = zmq_poll(of_bulk, 0)
            self._asleep = True  # set before the check of the inbox: an event queued later rings the bell
            # read once, as a worker thread may change it meanwhile
            due_s = early_s = min(self._due_s, transfers.due_s, workers.due_s)
            if guard is not None and guard.calm and guard.glance_s < due_s:
                due_s = guard.glance_s
                early_s = due_s - EARLY_S
            # a thread that lost the duty may leave calls behind
            busy = at_control or at_bulk or self._inbox or self._quick or self._stopping or due_s <= now
            if routers:
                at_others &= {name for name, _, _, asked in routers if name in at_others and zmq_poll(asked, 0)}
                busy = busy or at_others
            if busy:
                due_s = now
            awake.limit_s = due_s + SLACK_S
            for descriptor, _ in poll(due_s - now):
                if descriptor == control_fd:
                    at_control = 1
                elif descriptor == bulk_fd:
                    at_bulk = 1
                elif descriptor == rung:
                    hush()
                elif routers and (name := next((entry[0] for entry in routers if entry[2] == descriptor), "")):
                    at_others.add(name)
                elif descriptor in watched:
                    self._handle_guest_event(descriptor)
                elif guard is not None:
                    guard.handle_events()
            self._asleep = False
            if at_control:  # R1: control comes before bulk
                try:
                    self._take_control()
                except ProtocolError as error:
                    self._rejections.add(str(error))
            if at_bulk:
                try:
                    self._take_bulk(bulk)
                except ProtocolError as error:
                    self._rejections.add(str(error))
            if at_others:
                for name in at_others:
                    try:
                        self._take_bulk(sockets.others[name], name)
                    except ProtocolError as error:
                        self._rejections.add(str(error))
            if self._quick and not self._make_quick_calls():
                return False
            while self._inbox:
                self.handle(self._inbox.popleft(), time.monotonic())
            now = time.monotonic()
            if now > awake.limit_s:
                self._wake_up(now)
            if now >= early_s:
                self._see_to_what_is_due(now)
        return True

    def _see_to_what_is_due(self, now: float) -> None:
        """Handle due work: timers, overdue calls, credits that have waited, or a check of the memory."""
        sockets, guard, workers = self._sockets, self._sockets.guard, self._workers
        if now >= self._due_s:
            sockets.stirred = True  # so a broken router is found as well
            self._do_what_is_due(now)
        if now >= workers.due_s:
            for failed in workers.overdue(now):
                self.handle(failed, now)
        if now >= self._bulk.due_s:
            self._bulk.send_credits(now)
        if guard is not None and guard.calm and now >= guard.glance_s - EARLY_S:
            guard.glance(now)

    def _make_quick_calls(self) -> bool:
        """Make the calls of quick nodes. Return False if a call was long, and the duty was taken over meanwhile."""
        duty = self._duty
        while self._quick:
            slot, command = self._quick.popleft()
            if slot.gone:
                continue
            if not duty.present:
                self._workers.submit(slot, command)
                continue
            call = None
            if slot.lane.timeout_s is not None:
                self._quick_call = call = self._workers.timed(slot, command)
            number = duty.begin()
            event = slot.make(command)
            if call is not None:
                call.over = True
            if not duty.end(number):
                if not slot.gone:
                    self.queue_event(event)
                return False
            self.handle(event, time.monotonic())
        return True

    def _take_control(self) -> None:
        received = self._sockets.take(self._sockets.control, 1)
        if received is None:
            return
        sender, identity, (frame,) = received
        now = time.monotonic()
        sockets, data = self._sockets, frame.bytes
        try:
            messages = frames.decode_all(data, sockets.speaks)
        except ProtocolError as error:
            self._undecoded(sender, data, error)
            return
        sockets.heard = data[2]
        for message in messages:
            if type(message) is m.Credit:
                self._bulk.credited(sender, message, now)
                continue
            if type(message) is not m.Demand:  # by far the most frequent
                if isinstance(message, LED):
                    sockets.check_leader(identity, frame, message)
                    sockets.speak(message.run, data[2])
                elif isinstance(message, m.ProbeRequest):
                    sockets.speak(message.run, data[2])
                elif type(message) is m.Drain or type(message) is m.Enlist:
                    self._take_word_of_hosts(sender, identity, frame, message)
                    continue
            self.handle(e.MessageReceived(sender, message), now, identity)

    def _take_word_of_hosts(self, sender: str, identity: bytes, frame: zmq.Frame, message: m.Drain | m.Enlist) -> None:
        """Handle a message about this process or the application, and about no run."""
        if isinstance(message, m.Drain):
            try:
                self._sockets.check_drain(identity, frame)
            except ProtocolError as error:
                self._sockets.answer(identity, m.Drained(str(error)))
                raise
            self._sockets.drainers[identity] = self._sockets.heard
            self.queue_event(e.DrainRequested())
        elif message.peer.name == sender:
            self._on_application(e.Enlisted(message.peer))

    def _take_answers(self, now: float) -> None:
        self._answers_s = now + ANSWERS_S
        for host, frame in self._sockets.answers():
            try:
                messages = frames.decode_all(frame, self._sockets.speaks)
            except ProtocolError as error:
                self._undecoded(host, frame, error)
                continue
            try:
                for message in messages:
                    if type(message) not in ANSWERS:
                        raise ProtocolError(f"{type(message).__name__} of {host!r}, where it is to answer")
                    if isinstance(message, m.Credit):
                        self._bulk.credited(host, message, now)
                    else:
                        self.handle(e.MessageReceived(host, message), now)
            except ProtocolError as error:
                self._rejections.add(str(error))

    def _take_bulk(self, router: zmq.Socket[bytes], via: str | UnsetType = UNSET) -> None:
        received = self._sockets.take(router, 2)
        if received is None:
            return
        sender, identity, (head, frame) = received
        try:
            chunk = frames.decode_chunk(head.bytes, self._sockets.speaks)
        except ProtocolError as error:
            self._undecoded(sender, head.bytes, error)
            return
        try:
            self._bulk.came(identity, sender, chunk, frame.buffer, time.monotonic(), via)
        except ProtocolError:
            raise
        except Exception as error:  # R3: the defect closes the run, and the host goes on
            self.break_run(chunk.message.run, chunk.message, error)

    def _undecoded(self, sender: str, frame: bytes, error: ProtocolError) -> None:
        """Count a message that does not decode, and notify the core of the run in the message."""
        kind, run = frames.subject_of(frame)
        self._rejections.add(str(error), sender, kind, run)
        self.handle(e.DecodingFailed(sender, run, kind), time.monotonic())

    # --- commands --------------------------------------------------------------------------------------

    def handle(self, event: e.Event, now: float, asker: bytes = b"") -> None:
        """Pass an event to the core, and carry out the commands. ``asker``: connection on which the event arrived."""
        awake = self._awake
        if now > awake.limit_s:
            self._wake_up(now)
        scaled = (now - awake.epoch) * self._time_scale
        try:
            commands = self.core.handle(event, scaled)
        except Exception as error:  # R3: the defect closes the run, and the host goes on
            commands = self._without_broken(event, error, scaled)
        for command in commands:
            try:
                if type(command) is e.Send:
                    if command.bulk:
                        self._bulk.send(command)
                    else:
                        self._sockets.post(command.run, command.to, command.message, asker)
                elif type(command) is e.RunOperator:
                    self._have_made(command)
                elif type(command) is e.Record:
                    self._recorder.write(command.run, command.kind, command.fields)
                elif type(command) is e.SetTimer:
                    self._set_timer(command)
                else:
                    self._rare(command)
            except Exception as error:  # R3: the other commands are still carried out
                self.break_run(getattr(command, "run", NO_RUN), command, error)

    def _without_broken(self, event: e.Event, error: Exception, scaled: float) -> list[e.Command]:
        """Return the core's commands after it raised over ``event``: the run concerned is dropped (R3)."""
        run = self.core.at_fault(event)
        reason = self._blame(run, event, error)
        if isinstance(event, e.TimerFired) and (run in self.core.runs or (run and not event.key.run)):
            self.queue_event(event)  # the timer may be of other runs, too
        sender = event.sender if isinstance(event, e.MessageReceived) else ""
        broken = e.RunBroken(run, reason, sender)
        try:
            return self.core.handle(broken, scaled)
        except Exception as another:  # R3: messages of the host to itself are of other runs, too
            if self.core.at_fault(broken) in self.core.runs:
                return self._without_broken(broken, another, scaled)
            self._blame(run, broken, another)
            return []

    def break_run(self, run: RunId, about: object, error: Exception) -> None:
        """Drop a run for an error of this shell or of the machine (R3)."""
        self.queue_event(e.RunBroken(run, self._blame(run, about, error)))

    def _blame(self, run: RunId, about: object, error: Exception) -> str:
        """Record and log an error that is no fault of the run's own code. Return the reason in one line."""
        if isinstance(error, zmq.ZMQError) and error.errno in BEYOND_REPAIR:
            raise error
        at = error.__traceback__
        while at is not None and at.tb_next is not None:
            at = at.tb_next
        where = "" if at is None else f" ({Path(at.tb_frame.f_code.co_filename).name}, line {at.tb_lineno})"
        reason = f"{type(error).__name__}: {one_line(error)}{where}"
        event = type(about).__name__
        message = getattr(about, "message", None)
        if message is not None:
            event = f"{event} {type(message).__name__}"
        self._recorder.write(run, "error", {"detail": {"reason": reason, "event": event}})
        if not run or run != self._broke:
            self._broke = run
            text = f"run {run or '(none)'} broke at {event}: {reason}"
            self.logbook.write("runtime-broke", text, run=str(run), reason=reason)
        return f"a defect of the runtime there broke the run at {event}: {reason}"

    def _have_made(self, command: Task) -> None:
        """Pass a call of an operator's code to a worker. If the call is quick, this thread makes it soon."""
        slot = self._workers.slot(command)
        if slot is None:
            return
        if slot.is_quick(command):  # R2: the call is too short for a hand-over to a worker
            self._quick.append((slot, command))
        else:
            self._workers.submit(slot, command)

    def _rare(self, command: e.Command) -> None:
        match command:
            case e.Meet(run, peers):
                self._sockets.meet(run, peers)
            case e.OpenNode():
                self._workers.open_node(command)
            case e.CloseNode():
                self._workers.close_node(command)
            case e.TakeState() | e.RestoreState() | e.MergeStates():
                self._have_made(command)
            case e.Fail(run, reason, node, host) if run:
                self.logbook.write("run-failed", reason, run=str(run), peer=host, node=node, reason=reason)
                self._on_application(command)
            case e.DrainFinished(why):
                self._sockets.answer_drainers(m.Drained(why))
                self._on_application(command)
            case e.Redial():
                self._bulk.redial(command)
            case e.Approach(run, host):
                line = self._sockets.line(run, host)
                if line is not None:
                    self._sockets.approach(line)
            case e.Watch(run, host):
                descriptor = self._sockets.watch_process(run, host)
                if descriptor is not None:
                    self._poller.register(descriptor, READABLE)
                    self._handle_guest_event(descriptor)  # connecting resets the descriptor that shows events
            case e.Unwatch(run, host):
                self._unwatch(run, host)
            case e.OpenRun():
                self._open_run(command)
            case e.CloseRun():
                self._close_run(command)
                self._on_application(command)
            case e.Forgotten(run, follows):
                self._sockets.forget(run, follows=follows)
                self._on_application(command)
            case _:
                self._on_application(command)

    def _open_run(self, command: e.OpenRun) -> None:
        """Begin a run on this host."""
        install, nodes = command.install, command.nodes
        self._bulk.run_opened(time.monotonic())
        self._recorder.open_run(install.run, install.label, install.epoch_s)
        here = ", ".join(map(repr, nodes)) or "nothing"
        text = f"run {install.run} of client {install.client!r} begins, with {here} here"
        self.logbook.write("run-begun", text, run=str(install.run), peer=install.client)
        coded = [install.dataflow.by_name[name] for name in nodes]
        self._workers.open(install.run, coded, install.call_timeout_s, install.client)
        self._record_load()

    def _close_run(self, command: e.CloseRun) -> None:
        """End a run on this host, or pass it on to the next generation."""
        run, follows = command.run, command.follows
        text = f"run {run} goes on here as {follows}" if follows else f"run {run} is over here"
        self.logbook.write("run-over", text, run=str(run))
        self._record_load()
        self._workers.pass_on(run, follows, command.kept)
        self._workers.close(run, follows=bool(follows))
        self._recorder.close_run(run)
        self._bulk.forget(run)
        self._unwatch(run)
        if run not in self.core.coordinator.led:  # the client here still has to tell every host that the run is over
            self._sockets.forget(run, follows=bool(follows))

    def _handle_guest_event(self, descriptor: int) -> None:
        """Notify the core if the process of a guest has ended."""
        gone = self._sockets.watching.handle(descriptor, self._sockets.guard)
        if gone is not None:
            self._unwatch(*gone)
            self.queue_event(e.PeerLost(*gone, "has closed its connections; its process has ended"))

    def _unwatch(self, run: RunId, host: str | None = None) -> None:
        for descriptor in self._sockets.watching.end(run, host):
            self._poller.unregister(descriptor)

    # --- what is due -----------------------------------------------------------------------------------

    def _set_timer(self, command: e.SetTimer) -> None:
        self._timer_at[command.key] = command.at_s
        heapq.heappush(self._timers, (command.at_s, next(self._timer_number), command.key))
        self._due_s = min(self._due_s, self._awake.epoch + command.at_s / self._time_scale)

    def check_by(self, at_s: float) -> None:
        """Schedule a check of the connections for bulk at the latest at this time."""
        self._due_s = min(self._due_s, at_s)

    def _do_what_is_due(self, now: float) -> None:
        if now >= self._answers_s:  # before the answered messages are repeated
            self._take_answers(now)
        suspended_s = self._awake.suspended(now)
        if suspended_s:
            self._notify_slept(suspended_s, now, "its machine was suspended")
        scaled = (now - self._awake.epoch) * self._time_scale
        while self._timers and self._timers[0][0] <= scaled:
            at, _, key = heapq.heappop(self._timers)
            if self._timer_at.get(key) == at:
                del self._timer_at[key]
                self.handle(e.TimerFired(key), now)
        if self._bulk.look_s <= now:
            self._bulk.check(now)
        if self._housekeeping_s <= now:
            self._housekeeping_s = now + HOUSEKEEPING_S
            self._keep_house(now)
        self._due_s = min(self._housekeeping_s, self._bulk.look_s)
        if self._timers:
            self._due_s = min(self._due_s, self._awake.epoch + self._timers[0][0] / self._time_scale)

    def _wake_up(self, now: float) -> None:
        """Exclude the time in which this process did not run from the times of the core, calls and transfers."""
        stopped_s = self._awake.stopped(now)
        self._workers.slept(stopped_s)
        self._bulk.slept(stopped_s)
        if stopped_s >= WOKE_S:
            self._notify_slept(stopped_s, now, "it was stopped, or something held it up")

    def _notify_slept(self, slept_s: float, now: float, why: str) -> None:
        """Notify the core and the log, and dial other hosts anew if their connections are dead by now."""
        text = f"this process did not run for {in_seconds(slept_s)} ({why}); other hosts may have given it up"
        self.logbook.write("host-slept", text, duration_s=slept_s * self._time_scale, reason=why)
        if slept_s >= STALE_S:
            self._sockets.hang_up_all()
            self._bulk.lost(now)
        self.handle(e.Woke(slept_s * self._time_scale), now)

    def _keep_house(self, now: float) -> None:
        for expired in self._sockets.check_members():
            self._expired(*expired, now)
        self._bulk.keep_house(now)
        self._sockets.hang_up_idle(now)
        self._rejections.keep_house()
        self._record_load()
        self.logbook.watch(self.core.lagging())
        self.logbook.flush()
        self._recorder.flush()

    def _expired(self, name: str, how: str, now: float) -> None:
        """Log the expiry of a certificate, and notify the core, which ends runs with the owner."""
        self.logbook.write("certificate-expired", f"{name!r} {how}", peer=name, reason=how)
        self.handle(e.CertificateExpired(name, how), now)

    def _record_load(self) -> None:
        if self._recorder.active:
            (since_s, before_s), self._worked = self._worked, (time.monotonic(), time.process_time())
            share = (self._worked[1] - before_s) / max(self._worked[0] - since_s, 1e-3)  # of one core
            self._recorder.write_to_all("host_load", {"value": share, "size_bytes": resident_bytes()})
