"""A host hears every event it is told, whatever else wakes it at that moment."""

from __future__ import annotations

import threading

from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.shell.shell import Shell, ShellConfig

ROUNDS = 3000


def test_no_event_waits_for_the_next_timer() -> None:
    """Several threads tell one event at a time; each must be heard long before housekeeping would find it."""
    heard = {name: threading.Event() for name in ("a", "b", "c")}

    def on_application(command: e.Command) -> None:
        if isinstance(command, e.Report):
            heard[command.source].set()

    shell = Shell(ShellConfig(name="h1"), on_application)
    late: list[str] = []

    def tell(name: str) -> None:
        message = m.ProbeResult("r", m.Estimate(name, "h1", 1, 0, 1, 0))
        for _ in range(ROUNDS):
            heard[name].clear()
            shell.tell(e.MessageReceived("peer", message))
            if not heard[name].wait(3):
                late.append(name)
                return

    threads = [threading.Thread(target=tell, args=(name,)) for name in heard]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shell.close()
    assert late == []
