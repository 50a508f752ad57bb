"""Crashes, restarts and drains of hosts' processes in virtual time, as on testbeds (``runs.processes``)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from thalweg.emulation.scenarios.events import Deed
from thalweg.emulation.virtual.faults import Crash, FaultPlan
from thalweg.emulation.virtual.faulty import FaultyWorld
from thalweg.emulation.virtual.world import VirtualHost, World
from thalweg.middleware.protocol import events as e

AT_FIRST_S = 1e-6  # after the request for the run


class BefallenWorld(FaultyWorld):
    """World in which ``deeds`` happen to hosts.

    The client learns of losses and joins at once, as if it started the hosts.

    ``told`` is called after each deed.
    """

    patience_s = math.inf

    def __init__(self, *args: Any, deeds: Sequence[Deed], told: Callable[[Deed, float], None], **more: Any) -> None:
        hosts, links, code, config = args
        super().__init__(hosts, links, code, FaultPlan(0, ()), config, **more)
        self._told = told
        for deed in deeds:
            if deed.kind == "join":
                self._schedule(AT_FIRST_S, self._kill, (deed.host, "is not there yet"))
            self._schedule(deed.at_s, self._do, deed)

    def _is_over(self) -> bool:
        return World._is_over(self)

    def _beyond(self) -> bool:
        return False  # the run has no time limit

    def _do(self, deed: Deed) -> None:
        if deed.kind == "crash":
            self._kill((deed.host, "was killed"))
        elif deed.kind == "drain":
            self._handle(self.hosts[deed.host], e.DrainRequested())
        elif deed.host in self.down:
            self._restart(deed.host)
            self._handle(self.hosts[self.client], e.PeerJoined(self.run_id, self.hosts[deed.host].core.me))
        self._told(deed, self.now)

    def _kill(self, told: tuple[str, str]) -> None:
        host, how = told
        self._crash(Crash(host, self.now))
        self._handle(self.hosts[self.client], e.PeerLost(self.run_id, host, how))

    def _rare(self, host: VirtualHost, command: e.Command) -> None:
        if isinstance(command, e.DrainFinished) and not command.why:
            self._schedule(self.now, self._kill, (host.name, "was drained"))
        else:
            super()._rare(host, command)
