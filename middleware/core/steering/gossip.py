"""What hosts of a run find out and tell each other beside the flow, where its planner asks for it (``Install.news``).

Rules:

R1. Every ``sound_interval_s`` a host sounds another (``soundings``) and tells it what it knows of its own links: the
    client every second time, as it is the client that plans, and all others in turn.
R2. Hosts begin at different times, so that none is sounded by all at once.
"""

from __future__ import annotations

from thalweg.middleware.core.flow.directory import Directory
from thalweg.middleware.core.outbox import Setting, Timer
from thalweg.middleware.core.shared import Shared


class Gossip:
    """A host's part in one run."""

    def __init__(self, setting: Setting, shared: Shared, directory: Directory) -> None:
        self._out, self._client = setting.out, setting.install.client
        news = setting.install.news
        self.needs = frozenset(news) if isinstance(news, tuple) else frozenset()
        self._soundings, self._directory = shared.soundings, directory
        self._interval_s = shared.monitor.config.sound_interval_s
        self._turn = 0

    def begin(self) -> None:
        """The run begins here."""
        if self.needs:
            hosts = sorted(self._directory.hosts)
            share = (hosts.index(self._out.host) + 1) / len(hosts)
            self._out.wake(Timer.SOUND, self._out.now + self._interval_s * share)  # R2

    def on_timer(self) -> None:
        """It is time to sound the next one."""
        others = sorted(self._directory.hosts - {self._out.host})
        if others:
            turn, self._turn = self._turn, self._turn + 1
            host = others[turn // (2 if self._client in others else 1) % len(others)]
            if turn % 2 == 0 and self._client in others:  # R1
                host = self._client
            self._soundings.sound(self._out.run, host, telling=True)
        self._out.wake(Timer.SOUND, self._out.now + self._interval_s)
