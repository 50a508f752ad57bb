"""Host process: ``thalweg host``, also started by local clusters and testbeds.

The process prints one line of JSON when it listens (``{"host": …, "control": …, "bulk": …}``). It runs until SIGINT or
SIGTERM. After SIGTERM its operators move away first, unless an operator can be on no other host. A second SIGTERM ends
the process at once. The exit status is 0. With ``--with-parent`` the process also ends when its standard input is
closed. If the parent was killed, the process removes the folder that the parent cannot remove any more. After an error,
the process says why in one line and ends with exit status 1, so that a supervisor starts it again. The status is 2 if
the request itself is impossible.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import msgspec
import zmq

from thalweg.middleware.errors import ThalwegError, UsageError, one_line
from thalweg.middleware.grants import read_packages, read_roots
from thalweg.middleware.network.figures import read_capacity
from thalweg.middleware.network.forecasting import FORECASTERS
from thalweg.middleware.platform.processes import raise_descriptor_limit
from thalweg.middleware.platform.python import append_folders
from thalweg.middleware.platform.waiting import signal_pipe, takes_more
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import frames
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.limits import CoreConfig, MonitorConfig
from thalweg.middleware.shell.arguments import Arguments, number_of
from thalweg.middleware.shell.endpoints import is_ipv6, read_networks, resolve_endpoint
from thalweg.middleware.shell.memory import keep_freed
from thalweg.middleware.shell.security import Keys, secure_dealer
from thalweg.middleware.shell.shell import Shell, ShellConfig
from thalweg.middleware.shell.sockets import new_identity

LEVELS = ("debug", "info", "warning", "error")
LOG_LINE = "%(asctime)s.%(msecs)03d %(levelname)s {host}: %(message)s"
LOG_TIME = "%Y-%m-%dT%H:%M:%S"
ENLIST_S = 2.0  # between two announcements of a host to a client


def parser() -> Arguments:
    """Return the parser of the options of a host process."""
    arguments = Arguments(
        prog="thalweg host",
        description="Run a host that takes part in dataflows until it is told to stop. It prints one line of JSON when"
        " it listens. On SIGTERM its operators move away first.",
        epilog="""Example: thalweg host --listen tcp://192.0.2.7:7800 --keys h1.key_secret

        Without certificates, on one machine: thalweg host --name h1 --insecure

        End a host when its operators have moved away: thalweg host drain h1 --at tcp://192.0.2.7:7800
        --keys alice.key_secret""",
    )
    _add_network(arguments.add_argument_group("Network"))
    _add_security(arguments.add_argument_group("Keys"))
    _add_limits(arguments.add_argument_group("Code and limits"))
    _add_measurement(arguments.add_argument_group("Measurement"))
    _add_supervision(arguments.add_argument_group("Supervision"))
    arguments.names["forecaster"] = FORECASTERS
    return arguments


def _add_network(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--name", help="Name of the host in placements. By default: that of its certificate.")
    group.add_argument(
        "--listen",
        default="tcp://127.0.0.1:7800",
        metavar="ENDPOINT",
        help="Control endpoint. Partitions arrive on the next port. On one machine also ipc:///FOLDER/NAME.",
    )
    group.add_argument(
        "--bulk-port",
        type=number_of(int),
        metavar="PORT",
        help="Port that partitions arrive on. By default: the one above that of --listen. 0: any free one.",
    )
    group.add_argument(
        "--advertise", metavar="ADDRESS", help="Address that peers dial, where it is not the one of --listen."
    )
    group.add_argument(
        "--network",
        action="append",
        default=[],
        metavar="NAME=ENDPOINT",
        help="Further network of this host, with its endpoint for partitions there: fast=tcp://192.0.2.7:*",
    )
    group.add_argument(
        "--join",
        metavar="ENDPOINT",
        help="Announce this host every few seconds to a client that listens there and accepts new hosts:"
        " Client(joins=True).",
    )
    group.add_argument("--client", default="client", metavar="NAME", help="Name of that client in its certificate.")


def _add_security(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--keys", type=Path, metavar="FILE", help="Secret certificate of the host, made by `thalweg keys new`."
    )
    group.add_argument(
        "--members",
        type=Path,
        metavar="DIR",
        help="Folder of the public certificates of all members. By default: members, beside --keys.",
    )
    group.add_argument("--insecure", action="store_true", help="Listen over TCP without keys.")


def _add_limits(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="[CLIENT=]PACKAGE",
        help="Let dataflows of all clients, or of one, name code of this package.",
    )
    group.add_argument(
        "--data-root",
        action="append",
        default=[],
        metavar="[CLIENT=]FOLDER",
        help="Let sources of all clients, or of one, read files of this folder.",
    )
    group.add_argument(
        "--max-operators",
        type=number_of(int),
        default=CoreConfig().max_operators,
        metavar="N",
        help="Largest number of operators here, of all runs together. No more move to this host.",
    )
    group.add_argument(
        "--limit",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="Another limit of this host: max_partition_bytes=1000000. docs/reference/limits.md lists all limits.",
    )
    group.add_argument(
        "--capacity",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="What planners are told of this host: speed=2 (times a usual processor), cores=4 (calls at once),"
        " memory_bytes, bandwidth_bps. Join several with commas.",
    )


def _add_measurement(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--records", metavar="FILE", help="Append the event log to this file, as JSON Lines.")
    group.add_argument(
        "--log-level",
        choices=LEVELS,
        default="warning",
        help="Least level of the log lines on standard error, each with its time, level and host.",
    )
    group.add_argument(
        "--forecaster",
        default=MonitorConfig().forecaster,
        metavar="NAME",
        help="Method that estimates a link's rate from measurements.",
    )
    group.add_argument(
        "--time-scale", type=number_of(float), default=1.0, metavar="N", help="Emulated seconds per wall-clock second."
    )


def _add_supervision(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--protocol", default="", help=argparse.SUPPRESS)  # versions, as 8-9, for tests of upgrades
    group.add_argument("--with-parent", action="store_true", help="Stop when standard input is closed.")
    group.add_argument(
        "--parents-folder",
        metavar="DIR",
        help="Folder to remove, with everything in it, after the end of standard input stopped this host.",
    )


def main(argv: list[str] | None = None) -> int:
    """Run a host process. Return the exit status."""
    try:
        return _serve(argv)
    except ThalwegError:
        raise
    except Exception as error:  # any error: the supervisor of this host sees the end and the reason
        _complain(f"{type(error).__name__}: {one_line(error)}")
        return 1


def _complain(what: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # nobody reads it, or an operator has closed it; the status remains
        print(f"thalweg host: {what}", file=sys.stderr, flush=True)


class _Lines(logging.StreamHandler[TextIO]):
    """Handler that writes log lines of a host to standard error, without delaying or ending the host.

    A line is left out if the lines before are not read, or standard error is closed.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line if there is room."""
        with contextlib.suppress(OSError, ValueError):  # the stream has no descriptor
            if not takes_more(self.stream.fileno()):
                return
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Continue without the line."""


def log_lines(host: str, level: str) -> None:
    """Make every logger of the process write lines to standard error, from this level on."""
    lines = _Lines(sys.stderr)
    lines.setFormatter(logging.Formatter(LOG_LINE.format(host=host.replace("%", "%%")), LOG_TIME))
    logging.basicConfig(level=level.upper(), handlers=[lines], force=True)


def _serve(argv: list[str] | None) -> int:
    _fill_streams()
    options = parser().parse_args(argv)
    keys = None if options.keys is None else Keys.load(options.keys, options.members, "host")
    if not options.name and keys is None:
        parser().error("--name is required")
    config = _config(options, keys)
    raise_descriptor_limit()  # a peer needs eight
    stop, orphaned = threading.Event(), threading.Event()
    asked = threading.Event()  # to stop when the host is empty
    shells: list[Shell] = []

    def on_terminate(*_: object) -> None:
        if asked.is_set() or not shells:
            stop.set()
        else:
            asked.set()
            shells[0].queue_event(e.DrainRequested())

    wake, woken = signal_pipe()
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)  # a thread that waits for a lock sleeps through signals
    signal.signal(signal.SIGINT, lambda *_: stop.set())
    signal.signal(signal.SIGTERM, on_terminate)

    def stop_now() -> None:
        stop.set()
        with contextlib.suppress(BlockingIOError):
            os.write(woken, b"x")

    def on_application(command: e.Command) -> None:
        if isinstance(command, e.Fail) and not command.run:  # logged already
            stop_now()
        elif isinstance(command, e.DrainFinished) and (asked.is_set() or not command.why):
            if command.why:  # a supervisor that sends SIGTERM expects an end
                text = f"the host ends before its nodes have moved away: {command.why}"
                shells[0].logbook.write("host-stays", text, reason=command.why)
            stop_now()

    log_lines(config.name, options.log_level)
    try:
        shell = Shell(config, on_application, keys)
    except ThalwegError:
        if stop.is_set():  # the process that ends the host has removed its folder
            return 0
        raise
    shells.append(shell)
    if options.join:
        client = (options.join, options.client)
        threading.Thread(
            target=_enlist, args=(stop, shell.me, config.speaks[0], *client, keys), name="thalweg-join", daemon=True
        ).start()
    ready = {"host": shell.me.name, "control": shell.me.control, "bulk": shell.me.bulk, "pid": os.getpid()}
    print(msgspec.json.encode(ready).decode(), flush=True)
    parent = _leave_streams()
    if options.with_parent:
        threading.Thread(
            target=_watch_parent, args=(parent, stop_now, orphaned), name="thalweg-parent", daemon=True
        ).start()
    keep_freed()
    gc.collect()
    gc.freeze()  # imported objects stay: later collections skip them
    while not stop.is_set():
        os.read(wake, 512)
    return _end(shell, options.parents_folder if orphaned.is_set() else "")


def _end(shell: Shell, parents_folder: str) -> int:
    """End the host, and remove the folder of a parent that is gone. Return the exit status."""
    shell.close()
    if parents_folder:
        shutil.rmtree(parents_folder, ignore_errors=True)  # the other hosts remove it as well
    if shell.alive:
        _complain(f"the host {shell.me.name!r} did not stop: something holds up its thread")
    return 1 if shell.failure or shell.alive else 0


def _config(options: argparse.Namespace, keys: Keys | None) -> ShellConfig:
    """Return the host's configuration. Raises UsageError for an invalid option."""
    if options.max_operators < 0:
        raise UsageError(
            f"--max-operators is {options.max_operators}; give how many operators may run here, at least 0"
        )
    limits = CoreConfig(
        max_operators=options.max_operators,
        monitor=MonitorConfig(forecaster=options.forecaster),
        capacity=read_capacity(options.capacity),
    )
    return ShellConfig(
        name=options.name or (keys.own.name if keys else ""),
        listen=options.listen,
        advertise=options.advertise,
        bulk_port=options.bulk_port,
        time_scale=options.time_scale,
        allow=read_packages(options.allow),
        data_roots=read_roots(options.data_root),
        records=options.records,
        insecure=options.insecure,
        networks=read_networks(options.network),
        speaks=_read_versions(options.protocol),
        core=limits.limited(options.limit),
    )


def _read_versions(text: str) -> m.Speaks:
    oldest, _, newest = text.partition("-")
    try:
        return (int(oldest), int(newest or oldest)) if text else frames.SPEAKS
    except ValueError:
        raise UsageError(f"--protocol {text!r} is not OLDEST-NEWEST, as 8-9") from None


def _enlist(stop: threading.Event, me: m.Peer, version: int, endpoint: str, client: str, keys: Keys | None) -> None:
    """Announce this host to a client every ``ENLIST_S`` until ``stop``, as a restarted client must hear of it too.

    ``version``: the oldest version of this host, as the client's versions are unknown.
    """
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.ROUTING_ID, new_identity(me.name))
    socket.setsockopt(zmq.SNDHWM, 1)
    try:
        secure_dealer(socket, keys, client)
        endpoint = resolve_endpoint(endpoint)
        socket.setsockopt(zmq.IPV6, is_ipv6(endpoint))
        socket.connect(endpoint)
    except (UsageError, zmq.ZMQError) as error:
        _complain(f"--join {endpoint}: {one_line(error)}")
        context.destroy(linger=0)
        return
    stopped = False
    while not stopped:
        with contextlib.suppress(zmq.Again):
            socket.send(frames.encode(m.Enlist(me), version), zmq.DONTWAIT)
        stopped = stop.wait(ENLIST_S)
    context.destroy(linger=0)


def _fill_streams() -> None:
    """Open closed standard streams as empty streams, before a log or a socket gets their numbers."""
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(opened, True)
    os.close(opened)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:  # it was closed when Python began
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def _leave_streams() -> int:
    """Return standard input as a descriptor that operators do not know. Redirect the standard streams of operators.

    Operators get an empty standard input, and their output goes to standard error. The process that started this host
    reads only one line of output, so operators that print more would hang. The pipe of that line stays open, as a
    reader takes its end for the end of the host.
    """
    parent = os.dup(0)
    os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return parent


def _watch_parent(parent: int, stop: Callable[[], None], orphaned: threading.Event) -> None:
    """Wait until the other end of the former standard input is gone. Then stop the host as orphaned."""
    while os.read(parent, 4096):
        continue
    orphaned.set()
    stop()


def run() -> None:
    """Run ``python -P -m thalweg.middleware.shell.daemon``."""
    append_folders()
    try:
        status = main()
    except ThalwegError as error:
        _complain(str(error))
        status = 2
    with contextlib.suppress(OSError, ValueError):  # as in ``_complain``
        sys.stdout.flush()
    os._exit(status) if threading.active_count() > 1 else sys.exit(status)


if __name__ == "__main__":
    run()
