"""Supervisor: the process that holds a testbed. Run as ``python -P -m thalweg.emulation.server.begin``.

The supervisor starts in namespaces of its own (process numbers, network, mounts), and is process 1 of the processes
that it starts. When the supervisor ends, the kernel ends every process in the namespaces. The protocol is JSON lines
over Unix sockets:

    launcher → supervisor   {"id": 7, "op": "spawn", …}          descriptors travel beside the line, "fds" counts them
    supervisor → launcher   {"id": 7, "result": {…}}  or  {"id": 7, "error": "…", "kind": "usage"}
    supervisor → launcher   {"exit": {"pid": 12, "status": -15}}, to the connection that spawned it

States:   attached --detach--> detached;  attached --connection closed--> ended;  either --down, SIGTERM--> ended
If a connection closes, its spawned processes get SIGHUP. Launched processes continue. The supervisor has one thread.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import math
import os
import selectors
import signal
import socket
import subprocess
import termios
import time
from base64 import b64encode
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from thalweg.emulation.kernel.folders import within
from thalweg.emulation.kernel.names import end_name, named
from thalweg.emulation.kernel.netlink import NetlinkError
from thalweg.emulation.kernel.world import World
from thalweg.emulation.links.shape import MAX_RATE_BPS, UNRATED_BPS, LinkShape, outside
from thalweg.emulation.links.units import MANAGED
from thalweg.emulation.recording.recorder import Recorder, Snapshot, children_cpu_s
from thalweg.emulation.supervisor import requests
from thalweg.emulation.supervisor.connection import Connection, EndlessLineError
from thalweg.emulation.supervisor.parts import Parts
from thalweg.emulation.supervisor.player import Player, read_changes
from thalweg.emulation.supervisor.processes import KEPT, drain, ended_children, signal_pipe
from thalweg.emulation.supervisor.requests import Request
from thalweg.emulation.supervisor.sampler import Sampler
from thalweg.middleware.errors import CapabilityError, TestbedError, ThalwegError, UsageError, one_line
from thalweg.middleware.network.view import Cable, Link, as_link, cable_of

LONGEST_S = 3600.0  # longest wait. The limit of select is 24 days
PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 15, 36
Answer = dict[str, Any]
_HEAD = msgspec.json.Decoder(requests.Head)


R = TypeVar("R", bound=Request)


class Call(NamedTuple, Generic[R]):
    """Request with its connection and its descriptors. The descriptors are closed after the answer."""

    request: R
    connection: Connection
    descriptors: tuple[int, ...]


class Supervisor:
    """State of a testbed, and the event loop that answers requests about it."""

    def __init__(self, control: socket.socket, listener: socket.socket | None, run_id: str = "") -> None:
        self._run_id, self._owns_containers = run_id, False
        self._selector = selectors.DefaultSelector()
        self._connections = set[Connection]()
        self._children: dict[int, tuple[subprocess.Popen[bytes], str, Connection | None]] = {}
        self._terminals: dict[int, int] = {}  # controlling terminals by the number of the child
        self._launched: list[requests.LaunchedProcess] = []
        self._logs: str | None = None  # set when the supervisor is detached
        self._world: World | None = None
        self._lines: dict[Cable, str] = {}  # presets of the access lines of hosts
        self._player: Player | None = None
        self._refusal = ""  # why the replay has stopped by itself
        self._parts: dict[tuple[Connection, str], Parts] = {}  # parts of divided requests that are not complete
        self._samplers: dict[Connection, Sampler] = {}  # one per connection, so that samplings are independent
        self._recorder = Recorder()
        self._snapshots: dict[Connection, Snapshot] = {}  # records of which parts are still to be sent
        self._ending = False
        self._owner: Connection | None = Connection(control)
        self._admit(self._owner)
        if listener is not None:
            self._selector.register(listener, selectors.EVENT_READ, partial(self._accept, listener))
        self._wake = signal_pipe()
        self._selector.register(self._wake, selectors.EVENT_READ, partial(drain, self._wake))
        signal.signal(signal.SIGTERM, self._end)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        for unused_signal in (signal.SIGINT, signal.SIGHUP):  # SIG_IGN is not used, as children would inherit it
            signal.signal(unused_signal, lambda *_: None)

    def _end(self, *_: object) -> None:
        self._ending = True

    def serve(self) -> None:
        """Run the event loop until the supervisor is to end."""
        while not self._ending:
            change_s = self._player.next_due_s() if self._player is not None else None
            samples_s = (sampler.next_s for sampler in self._samplers.values())
            for key, _ in self._selector.select(due_in_s(change_s, self._recorder.next_s, *samples_s)):
                key.data()
            self._reap()
            if self._player is not None:
                self._advance(self._player)
            for sampler in self._samplers.values():
                if sampler.next_s <= time.monotonic():
                    self._sample(sampler)
            self._recorder.read_due()

    def _advance(self, player: Player) -> None:
        """Apply due changes of the replay. An error ends the replay, not the testbed, and later requests report it."""
        self._recorder.begin("play", events=player.events)
        try:
            player.advance()
        except Exception as error:
            player.stop()
            cause = "the kernel refused a change of a link" if isinstance(error, NetlinkError) else "it failed"
            self._refusal = f"the replay has stopped: {cause} ({_said(error)})"
        if not player.running:
            self._recorder.stop("play", self._refusal)

    @staticmethod
    def _sample(sampler: Sampler) -> None:
        """Take a sample. An error ends the sampling, not the testbed, and later requests report it."""
        try:
            sampler.sample()
        except Exception as error:
            sampler.next_s, sampler.refusal = float("inf"), f"the sampling of links has stopped ({_said(error)})"

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):  # the other side has given up, or too many files are open
            self._admit(Connection(listener.accept()[0]))

    def _admit(self, connection: Connection) -> None:
        self._connections.add(connection)
        self._selector.register(connection.socket, selectors.EVENT_READ, partial(self._hear, connection))

    def _hear(self, connection: Connection) -> None:
        try:
            lines = connection.read()
        except EndlessLineError as error:
            text = f"{error}; the connection is closed"
            self._tell(connection, {"id": 0, "error": text, "kind": "testbed"})
            lines = None
        if lines is None:
            self._drop(connection)
            return
        for line in lines:
            self._answer(connection, line)

    def _drop(self, connection: Connection) -> None:
        self._selector.unregister(connection.socket)
        self._connections.discard(connection)
        self._samplers.pop(connection, None)
        self._snapshots.pop(connection, None)
        for subject in ("replay", "changes"):
            self._parts.pop((connection, subject), None)
        connection.close()
        if connection is self._owner:
            self._ending = True
        for child, _, parent in self._children.values():
            if parent is connection:
                with suppress(OSError):
                    self._signal(child, signal.SIGHUP)

    def _answer(self, connection: Connection, line: bytes) -> None:
        received: tuple[int, ...] = ()
        send: tuple[int, ...] = ()
        number = op = None
        try:
            try:
                head = _HEAD.decode(line)
                number, op = head.id, head.op
                received = connection.claim(head.fds)
            except Exception:
                connection.forget_descriptors()  # their owners are unknown
                raise
            if op not in requests.KINDS:
                raise TestbedError(f"the testbed's supervisor does not know {op!r}; it is of another version")
            request = msgspec.json.decode(line, type=requests.KINDS[op])
            result = getattr(self, f"do_{op}")(Call(request, connection, received)) or {}
            send = result.pop("send_fds", ())
            self._tell(connection, {"id": number, "result": result, "fds": len(send)}, send)
        except ThalwegError as error:
            kind = next(name for name, error_class in requests.ERRORS.items() if isinstance(error, error_class))
            self._tell(connection, {"id": number, "error": str(error), "kind": kind})
        except OSError as error:
            self._tell(connection, {"id": number, "error": error.strerror or str(error), "kind": "testbed"})
        except Exception as error:  # a malformed request must not end the testbed
            text = f"bad request {op!r}: {_said(error)}"
            self._tell(connection, {"id": number, "error": text, "kind": "testbed"})
        finally:
            for descriptor in (*received, *send):
                with suppress(OSError):  # a handler has closed it
                    os.close(descriptor)

    @staticmethod
    def _tell(connection: Connection, answer: Answer, descriptors: tuple[int, ...] = ()) -> None:
        connection.send(json.dumps(answer).encode(), descriptors)

    # --- requests -------------------------------------------------------------------------------------

    def do_build(self, call: Call[requests.Build]) -> Answer:
        from thalweg.emulation.kernel.namespaces import NamespaceWorld  # only some testbeds need its library

        asked = call.request
        try:
            self._world = NamespaceWorld(
                asked.hosts, asked.prefix_length, asked.layer, asked.networks,
                ipv6=asked.ipv6, control_band=asked.control_band, private=asked.private,
            )  # fmt: skip
        except NetlinkError as error:
            part = "second interfaces, of networks besides the common one" if asked.networks else "its hosts' links"
            raise TestbedError(f"the kernel refused the testbed {part}: {error.strerror}") from None
        self._recorder.watch(self._world)
        return {"unnamed": self._world.unnamed}

    def do_attach(self, call: Call[requests.Attach]) -> None:
        from thalweg.emulation.containers.world import ContainerWorld  # only testbeds of containers need it

        asked = call.request
        self._world = ContainerWorld(
            asked.hosts, asked.prefix_length, asked.layer, run_id=self._run_id, control_band=asked.control_band
        )
        self._recorder.watch(self._world)

    def do_own_containers(self, _: Call[requests.OwnContainers]) -> None:
        self._owns_containers = True

    def do_probe(self, _: Call[requests.Probe]) -> Answer:
        from thalweg.emulation.kernel.namespaces import probe_kernel

        return dict(probe_kernel())

    def do_detach(self, call: Call[requests.Detach]) -> None:
        self._owner, self._logs = None, call.request.logs
        ctypes.CDLL(None).prctl(PR_SET_NAME, KEPT.encode(), 0, 0, 0)

    def do_status(self, call: Call[requests.Status]) -> Answer:
        world, player = self._world, self._player
        links = {} if world is None else world.links
        of, strangers = call.request.of, call.request.strangers
        chosen = links if of is None else [link for link in map(as_link, of) if link in links]
        return {
            "links": len(links),
            "processes": [{"pid": pid, "host": host} for pid, (_, host, _) in self._children.items()],
            "shapes": [[link, links[link].shape] for link in chosen],
            **self._hosts_status(),
            **({"lines": named(self._lines)} if self._lines else {}),
            "strangers": named(world.strangers()) if world is not None and strangers else {},
            "replaying": bool(player and player.running),
            "cpu_s": time.process_time(),
            **({"private": world.private} if world is not None and world.private else {}),
            "refusal": "; ".join(filter(None, self._refusals())),
            "replay_delays": player is not None and player.delays,
            **({"replay": player.statistics()} if player is not None else {}),
        }

    def _hosts_status(self) -> Answer:
        """Return the addresses and rates of hosts, and the hosts without a carrier."""
        world = self._world
        if world is None:
            return {"ipv6": {}, "up_bps": {}, "down_bps": {}, "unplugged": []}
        return {
            "ipv6": {end.name: end.ip6 for end in world.hosts.values() if end.ip6},
            "up_bps": named(world.up_bps),
            "down_bps": named(world.down_bps),
            "unplugged": sorted(map(end_name, world.unplugged)),
        }

    def _refusals(self) -> list[str]:
        return [self._refusal, self._recorder.refusal, *(sampler.refusal for sampler in self._samplers.values())]

    def do_down(self, _: Call[requests.Down]) -> None:
        self._ending = True

    def do_shape(self, call: Call[requests.ShapeLinks]) -> None:
        asked = [(as_link(link), shape) for link, shape in call.request.links]
        for link, shape in asked:
            if wrong := shape.objection():
                raise UsageError(f"link {link.text}: {wrong}")
        self._shape(asked, "shape")

    def do_alter(self, call: Call[requests.AlterLinks]) -> None:
        world, figures, shapes = self._need_world(), call.request.figures.set(), []
        followed = self._player.links if self._player is not None and self._player.running else frozenset()
        for link in map(as_link, call.request.links):
            where = f"link {link.text}"
            known = world.links.get(link)
            if known is None and not figures.keys() & {"rate_bps", "cut"}:
                raise UsageError(f"{where} has no rate yet; give it one too")
            if "rate_bps" in figures and link in followed:
                raise UsageError(f"{where} follows a scenario or trace; first stop the play (testbed play --stop)")
            own = LinkShape(UNRATED_BPS) if known is None else known.base if link in followed else known.shape
            shape = own._replace(**figures)
            if wrong := shape.objection():
                raise UsageError(f"{where}: {wrong}")
            shapes.append((link, shape))
        by = "set" if figures.keys() != {"cut"} else "cut" if figures["cut"] else "restore"
        self._shape(shapes, by)
        if followed and self._player is not None:
            self._player.again({link for link, _ in shapes})

    def _shape(self, shapes: list[tuple[Link, LinkShape]], by: str) -> None:
        world = self._need_world()
        if any(shape.needs_netem for _, shape in shapes) and not world.netem_works:
            raise CapabilityError(
                "this kernel has no netem, so links cannot have delay, jitter or loss: ask for rates only (--no-delay),"
                " use a netns testbed on a kernel of its own (--kernel uml), or load sch_netem (see thalweg doctor)"
            )
        disciplines = {shape.queue.discipline for _, shape in shapes if shape.queue is not None}
        if missing := next((kind for kind in MANAGED if kind in disciplines and not world.manages(kind)), None):
            raise CapabilityError(
                f"this kernel has no {missing}: give the queue a length, use a netns testbed on a kernel of its own"
                f" (--kernel uml), or load sch_{missing} (see thalweg doctor)"
            )
        self._refuse_mtu(shape for _, shape in shapes)
        self._refuse_crowded(shapes)
        self._recorder.begin(by, [link for link, _ in shapes])
        try:
            world.shape(shapes)
        except NetlinkError as error:
            raise TestbedError(f"the kernel refused a link's shape: {error.strerror}") from None

    def _refuse_mtu(self, shapes: Iterable[LinkShape]) -> None:
        if any(shape.path_mtu for shape in shapes) and not self._need_world().compares_lengths:
            raise CapabilityError(
                "this kernel has no filters by length, which the mtu of a link takes: load cls_bpf (modprobe cls_bpf),"
                " or use a netns testbed on a kernel of its own (--kernel uml)"
            )

    def _refuse_crowded(self, shapes: list[tuple[Link, LinkShape]]) -> None:
        if crowded := self._need_world().crowded(shapes):
            raise CapabilityError(
                f"link {crowded[0].text}: this kernel duplicates packets only on a host's one link with netem;"
                " leave out duplicate, or delay, jitter and loss on the host's other links"
            )

    def do_set_lines(self, call: Call[requests.SetLines]) -> None:
        world = self._need_world()
        for host, line in call.request.lines.items():
            cable = cable_of(host, call.request.via)
            self._lines.pop(cable, None)
            world.up_queues.pop(cable, None)
            if line is not None:
                self._lines[cable], world.up_queues[cable] = line.preset, line.queue

    def do_limit_hosts(self, call: Call[requests.LimitHosts]) -> None:
        asked, via = call.request, call.request.via
        for host, bps in (*asked.up_bps.items(), *asked.down_bps.items()):
            if bps is not None and not 0 <= bps <= MAX_RATE_BPS:
                raise UsageError(f"the rate of all that {host} sends or receives: {outside(bps)}; lower it")
        up_bps, down_bps = ({cable_of(host, via): bps for host, bps in rates.items()}
                            for rates in (asked.up_bps, asked.down_bps))  # fmt: skip
        for cable, queue in self._need_world().up_queues.items():
            if (bps := up_bps.get(cable)) is not None and (wrong := LinkShape(bps, queue=queue).objection()):
                raise UsageError(f"all that {end_name(cable)} sends: {wrong}")
        world = self._need_world()
        record = self._recorder.host_changes(world.up_bps, world.down_bps)
        try:
            world.limit_hosts(up_bps, down_bps)
        except NetlinkError as error:
            why = f"the kernel refused the rate of all that a host sends or receives: {error.strerror}"
            if any(bps is not None for bps in up_bps.values()):
                why += "; what a host sends takes the modules ifb, sch_ingress and act_mirred (see thalweg doctor)"
            raise CapabilityError(why) from None
        finally:
            record()

    def do_set_carrier(self, call: Call[requests.SetCarrier]) -> None:
        world, asked = self._need_world(), call.request
        world.set_carrier({cable_of(host, asked.via): asked.up for host in asked.hosts})

    def do_reset(self, call: Call[requests.Reset]) -> Answer:
        links = [*map(as_link, call.request.links)]
        try:
            count = self._need_world().reset(links)
        except NetlinkError as error:
            raise CapabilityError(
                f"this kernel cannot end connections: {error.strerror}; it takes CONFIG_INET_DIAG_DESTROY and the"
                " module tcp_diag"
            ) from None
        self._recorder.reset(links, count)
        return {"reset": count}

    def do_replay(self, call: Call[requests.Replay]) -> None:
        parts = self._parts.pop((call.connection, "replay"), None) or Parts()
        parts.add_schedules(call.request.schedules)
        if call.request.more:
            self._parts[call.connection, "replay"] = parts
            return
        player = Player(self._need_world(), parts.schedules())
        for link, shape in player.shapes():
            if wrong := shape.objection():
                raise UsageError(f"link {link.text}, as its schedule changes it: {wrong}")
        if self._player is not None:
            self._recorder.begin("play")
            self._player.lift()
            self._recorder.stop("play")
        self._player, self._refusal = player, ""

    def do_replay_change(self, call: Call[requests.ReplayChange]) -> None:
        parts = self._parts.pop((call.connection, "changes"), None) or Parts()
        parts.add_changes(call.request.effects, call.request.rows)
        if call.request.more:
            self._parts[call.connection, "changes"] = parts
            return
        player, effects = self._need_player(), parts.effects
        if any(effect.needs_netem for effect in effects) and not self._need_world().netem_works:
            raise CapabilityError(
                "this kernel has no netem, so events and traces cannot give links delay, jitter or loss: leave rates"
                " and outages (--no-delay), use a netns testbed on a kernel of its own (--kernel uml), or load"
                " sch_netem"
            )
        changes = read_changes(bytes(parts.rows), effects)
        shapes = player.shapes(changes)
        self._refuse_mtu(shape for _, shape in shapes)
        for link, shape in shapes:
            if wrong := shape.objection():
                raise UsageError(f"link {link.text}, as an event changes it: {wrong}")
        self._refuse_crowded(shapes)
        player.change(changes)

    def do_replay_carriers(self, call: Call[requests.ReplayCarriers]) -> None:
        known, changes = self._need_world().ends, []
        for at_s, host, via, up in call.request.changes:
            if (cable := cable_of(host, via)) not in known:
                raise UsageError(f"there is no host {host!r} in the network {via!r}")
            changes.append((at_s, cable, up))
        self._need_player().change_carriers(changes)

    def do_replay_start(self, _: Call[requests.ReplayStart]) -> Answer:
        self._refusal, player = "", self._need_player()
        self._recorder.begin("play", events=player.events)
        began_s = player.start()
        self._recorder.go_on("play")
        return {"t0_s": began_s}

    def do_replay_stop(self, _: Call[requests.ReplayStop]) -> None:
        self._need_player().stop()
        self._recorder.stop("play")

    def do_replay_statistics(self, _: Call[requests.ReplayStatistics]) -> Answer:
        if self._refusal:
            raise TestbedError(self._refusal)
        return dict(self._need_player().statistics())

    def do_sample_start(self, call: Call[requests.SampleStart]) -> None:
        self._samplers[call.connection] = Sampler(self._need_world(), call.request.interval_s)

    def do_sample_stop(self, call: Call[requests.SampleStop]) -> None:
        sampler = self._samplers.get(call.connection)
        if sampler is not None and not sampler.refusal:
            self._sample(sampler)
            sampler.next_s = float("inf")

    def do_samples(self, call: Call[requests.Samples]) -> Answer:
        sampler = self._samplers.get(call.connection)
        rows = sampler.take() if sampler is not None else b""
        if sampler is not None and sampler.refusal and not rows:
            raise TestbedError(sampler.refusal)
        return {"rows": b64encode(rows).decode()}

    def do_record(self, call: Call[requests.Record]) -> Answer:
        part, connection = call.request.part, call.connection
        if part == 0:
            self._snapshots[connection] = self._recorder.snapshot()
        elif connection not in self._snapshots:
            raise UsageError(f"part {part} of the record was asked for before part 0, or after the last one")
        snapshot = self._snapshots[connection]
        if part + 1 >= snapshot.parts:
            del self._snapshots[connection]
        data = b64encode(snapshot.part(part)).decode()
        return {"parts": snapshot.parts, "head_bytes": snapshot.head_bytes, "data": data}

    def do_prove(self, call: Call[requests.Prove]) -> Answer:
        if self._player is not None and self._player.running:
            raise UsageError("links cannot be proven while a replay changes them; stop the replay first")
        from thalweg.emulation.proofs.rate import measure  # only proofs of links need it

        asked, waited_for = call.request, call.connection
        unplugged = self._need_world().unplugged
        if lost := next((end for link in map(as_link, asked.links) for end in link.ends if end in unplugged), None):
            name = end_name(lost)
            raise UsageError(f"{name} has no carrier, so its links carry nothing; set its carrier up first")

        def go_on() -> None:
            if self._ending or waited_for.hung_up():
                raise TestbedError("interrupted")

        self._recorder.begin("verify")
        self._recorder.go_on("verify")
        try:
            proofs = measure(
                self._need_world(), map(as_link, asked.links), asked.seconds, go_on,
                flows=asked.flows, every_kind=asked.every_kind,
            )  # fmt: skip
        finally:
            self._recorder.stop("verify")
        return {"proofs": msgspec.to_builtins(proofs)}

    def do_spawn(self, call: Call[requests.Spawn]) -> Answer:
        child = self._begin(call.request, call.descriptors, call.request.terminal)
        self._children[child.pid] = (child, call.request.host, call.connection)
        self._recorder.start(child.pid, call.request.host, call.request.argv)
        # by the descriptor the launcher translates the number into its own namespace
        handle = (os.pidfd_open(child.pid),) if self._world is not None else ()
        return {"pid": child.pid, "send_fds": handle}

    def do_launch(self, call: Call[requests.Launch]) -> Answer:
        asked = call.request
        if self._logs is None:
            raise UsageError("a testbed that ends with its launcher keeps no logs; use one that stays up")
        os.makedirs(self._logs, mode=0o700, exist_ok=True)
        file = os.path.join(self._logs, f"{len(self._launched) + 1}.log")
        with open(os.devnull) as null, open(file, "wb") as log:
            child = self._begin(asked, (null.fileno(), log.fileno(), log.fileno()))
        self._children[child.pid] = (child, asked.host, None)
        self._recorder.start(child.pid, asked.host, asked.argv, file)
        self._launched.append(requests.LaunchedProcess(child.pid, asked.host, asked.argv, file))
        return {"pid": child.pid}

    def do_launched(self, _: Call[requests.Launched]) -> Answer:
        return {"launched": msgspec.to_builtins(self._launched)}

    def _begin(
        self,
        asked: requests.Spawn | requests.Launch,
        streams: tuple[int, ...],
        terminal: tuple[int, int] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a process on its host, with the given standard streams. Raise UsageError if that is impossible."""
        stdin, stdout, stderr = streams
        if terminal is not None:
            termios.tcsetwinsize(stdin, terminal)
        inside: AbstractContextManager[None] = nullcontext()
        if self._world is not None:
            own_folders = isinstance(asked, requests.Launch) or asked.own_folders
            inside = self._world.at_home(asked.host) if own_folders else self._world.inside(asked.host)
        try:
            with inside:
                child = subprocess.Popen(
                    asked.argv,
                    stdin=stdin,
                    stdout=stdout,
                    stderr=stderr,
                    env=asked.env,
                    cwd=asked.cwd,
                    start_new_session=True,
                    preexec_fn=None if terminal is None else _take_terminal,
                )
        except OSError as error:
            where = f" in {asked.cwd}" if error.filename == asked.cwd else ""
            private = self._world.private if self._world is not None else ()
            own = next((folder for folder in private if where and within(asked.cwd, folder)), None)
            why = f"{error.strerror}, as the host has its own {own}" if own else error.strerror
            raise UsageError(f"cannot run {asked.argv[0]!r} on {asked.host!r}{where}: {why}") from None
        if terminal is not None:
            self._terminals[child.pid] = os.dup(stdin)
        return child

    def do_resize(self, call: Call[requests.Resize]) -> None:
        if call.request.pid in self._terminals:
            termios.tcsetwinsize(self._terminals[call.request.pid], call.request.size)

    def do_signal(self, call: Call[requests.Signal]) -> None:
        if call.request.pid in self._children:
            self._signal(self._children[call.request.pid][0], call.request.signal)

    def _need_world(self) -> World:
        if self._world is None:
            raise UsageError("this testbed has no links; use the netns testbed for shaping")
        return self._world

    def _need_player(self) -> Player:
        if self._player is None:
            raise UsageError("no replay is loaded; call replay() first")
        return self._player

    # --- processes ------------------------------------------------------------------------------------

    @staticmethod
    def _signal(child: subprocess.Popen[bytes], number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(child.pid, number)

    def _reap(self) -> None:
        """Report ended children to their connections. Wait for adopted orphans."""
        for pid in ended_children():
            known = self._children.pop(pid, None)
            if known is None:
                os.waitpid(pid, 0)
                continue
            child, _, connection = known
            before_s = children_cpu_s()
            status = child.wait()
            self._recorder.end(pid, status, children_cpu_s() - before_s)
            if (terminal := self._terminals.pop(pid, None)) is not None:
                os.close(terminal)
            if connection is not None and connection in self._connections:
                self._tell(connection, {"exit": {"pid": pid, "status": status}})
            for launched in self._launched if connection is None else ():
                if launched.pid == pid and launched.status is None:
                    launched.status = status

    def end(self) -> None:
        """Remove owned containers and kill running processes.

        As process 1 of a namespace, the supervisor leaves its processes to the kernel, which kills them when it ends.
        """
        if self._owns_containers:
            from thalweg.emulation.containers import engine

            with suppress(ThalwegError):  # a lost engine runs no containers. `down` removes the rest
                engine.remove(self._run_id)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if os.getpid() == 1:
            return
        import psutil  # slow to import. A child may have left its session

        while left := psutil.Process().children(recursive=True):
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(left, timeout=1)


def due_in_s(*moments: float | None) -> float | None:
    """Return the seconds until the earliest of the moments, at most ``LONGEST_S``. None: there is no moment."""
    known = [moment for moment in moments if moment is not None and moment < math.inf]
    return min(max(0.0, min(known) - time.monotonic()), LONGEST_S) if known else None


def _take_terminal() -> None:
    """Make the input the controlling terminal of a process that is starting in a session of its own."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _said(error: Exception) -> str:
    """Return the text of an error, on one line."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else f"{type(error).__name__} {error}"
    return one_line(text)


def _inherited(descriptor: str) -> socket.socket:
    sock = socket.socket(fileno=int(descriptor))
    sock.set_inheritable(False)
    return sock


def main(run_id: str, launcher: str, listener: str = "") -> None:
    """Hold testbed ``run_id`` until the end.

    ``launcher``: descriptor of the launcher's connection. ``listener``: descriptor of a listening socket, or empty.
    """
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # orphans become children, and can be ended
    control = _inherited(launcher)
    supervisor = Supervisor(control, _inherited(listener) if listener else None, run_id)
    Connection(control).send(json.dumps({"hello": {"pid": os.getpid()}}).encode())
    try:
        supervisor.serve()
    finally:
        supervisor.end()
