"""The client's part of the core: a run is installed on every host it needs, watched, and removed.

Rules:

- ``Install`` goes to every host and is repeated until answered; when all that hold a node have answered, the
  run is ready and the application may demand its first partition. The others may have operators moved to them.
- A host that was restarted before it heard of the run answers with who it is now, and is asked again until the run is
  ready. Later the one before it may have had its part, unheard of, and so it is lost, as one that had its part is.
- Any message from a host is a sign of life, but until it has installed the run only ``Installed`` is; ``Ping`` asks the
  others for one. A host silent for ``liveness_s``, or one that says it does not know the run (it was restarted), is
  lost. If it holds a node, the run ends with one line that names the host and what it holds; otherwise the others
  are told with every ping, and the run goes on without it. What they know to be there nevertheless, they tell.
- ``Remove`` is repeated until answered, ``REMOVE_TRIES`` times at most (a host that never hears of it drops the run
  itself when its lease is over).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m

if TYPE_CHECKING:
    from thalweg.middleware.core.host import HostCore

REMOVE_TRIES = 5


class _Led:
    """A run this host coordinates."""

    def __init__(self, install: m.Install, remote: set[str], needed: set[str], now: float) -> None:
        self.install = install
        self.remote = remote
        self.needed = needed  # before the run is ready
        self.installing = set(remote)
        self.removing: set[str] = set()
        self.gone: dict[str, str] = {}  # host -> how it was lost
        self.tries = 0
        self.failed = False
        self.heard_s = dict.fromkeys(remote, now)


class Coordinator:
    """State of the runs that this host's application asked for."""

    def __init__(self, core: HostCore) -> None:
        self.core = core
        self.led: dict[str, _Led] = {}

    def start(self, event: e.RunRequested) -> None:
        core, install = self.core, event.install
        run = core.open(install)
        run.free, run.merging = event.free, event.merging
        known, since_s = dict(event.known), -math.inf
        if install.afresh:
            since_s = core.now
            known = {link: msgspec.structs.replace(each, measured_at_s=since_s) for link, each in known.items()}
        core.steering.open(install.run, event.adaptation, known, since_s=since_s)
        remote = run.hosts - {core.host}
        needed = {location.host for location in install.locations} - {core.host}
        self.led[install.run] = led = _Led(install, remote, needed, core.now)
        for host in sorted(remote):
            core.send(install.run, host, install)
        if not needed:
            self._ready(led)
        self._arm(led, f"install {install.run}", core.config.retry_s)
        self._arm(led, f"ping {install.run}", core.config.ping_s)

    def stop(self, run_id: str) -> None:
        led = self.led.get(run_id)
        if led is None or led.removing:
            return
        self.core.close(run_id)
        led.installing.clear()
        led.removing = set(led.remote)
        self._remove(led)

    def heard(self, host: str) -> None:
        for led in self.led.values():
            if host in led.heard_s and host not in led.installing:
                led.heard_s[host] = self.core.now

    def on_installed(self, sender: str, message: m.Installed) -> None:
        led = self.led.get(message.run)
        if led is None or sender not in led.installing:
            return
        if message.error:
            self._lost(led, sender, f"cannot take part: {message.error}")
            return
        led.installing.discard(sender)
        led.heard_s[sender] = self.core.now
        if sender in led.needed:
            led.needed.discard(sender)
            if not led.needed and not led.failed:
                self._ready(led)

    def on_pong(self, sender: str, message: m.Pong) -> None:
        led = self.led.get(message.run)
        if led is None or message.known or led.removing or sender not in led.remote - led.installing:
            return
        self._lost(led, sender, "no longer knows the run; was it restarted?")

    def on_welcome(self, sender: str, message: m.Welcome) -> None:
        """A host was sent an ``Install`` for what it was before it was restarted."""
        for led in list(self.led.values()):
            peer = next((peer for peer in led.install.peers if peer.name == sender), None)
            if peer is None or peer.instance == message.instance or led.removing:
                continue
            if sender in led.installing and led.needed:  # nothing can have moved to the one before it
                now = msgspec.structs.replace(peer, instance=message.instance)
                peers = tuple(now if each is peer else each for each in led.install.peers)
                led.install = msgspec.structs.replace(led.install, peers=peers)
                self.core.send(led.install.run, sender, led.install)
            elif sender in led.remote:
                self._lost(led, sender, "was restarted")

    def on_removed(self, sender: str, message: m.Removed) -> None:
        led = self.led.get(message.run)
        if led is not None and sender in led.removing:
            led.removing.discard(sender)
            if not led.removing:
                self._forget(led)

    def on_placed(self, run_id: str, location: m.Location) -> None:
        """An operator has moved; if to a host that was lost since, it is lost with it."""
        led = self.led.get(run_id)
        if led is not None and location.host in led.gone:
            how = led.gone[location.host]
            self._fail(led, f"host {location.host!r}, which holds {location.node}, {how}")

    def on_failed(self, sender: str, message: m.Failed) -> None:
        led = self.led.get(message.run)
        if led is not None:
            self._fail(led, f"node {message.node!r} on host {sender!r}: {message.reason}")

    def on_peer_lost(self, run_id: str, peer: str) -> None:
        led = self.led.get(run_id)
        if led is not None and peer in led.remote:
            self._lost(led, peer, "went away")

    def on_timer(self, what: str, run_id: str) -> None:
        led = self.led.get(run_id)
        if led is None:
            return
        config = self.core.config
        if what == "install" and led.installing:
            for host in sorted(led.installing):
                self.core.send(run_id, host, led.install)
            self._arm(led, f"install {run_id}", config.retry_max_s / 4)
        elif what == "remove" and led.removing:
            self._remove(led)
        elif what == "ping" and not led.removing and not led.failed:
            for host in sorted(led.remote):
                if self.core.now - led.heard_s[host] > config.liveness_s:
                    how = "did not install the run within" if host in led.installing else "has been silent for"
                    self._lost(led, host, f"{how} {config.liveness_s:g} s")
                    if led.failed:
                        return
                elif host not in led.installing:
                    self.core.send(run_id, host, m.Ping(run_id))
                    self._tell_lost(led, host)
            self._arm(led, f"ping {run_id}", config.ping_s)

    def _remove(self, led: _Led) -> None:
        run_id = led.install.run
        led.tries += 1
        if not led.removing or led.tries > REMOVE_TRIES:
            self._forget(led)
            return
        for host in sorted(led.removing):
            self.core.send(run_id, host, m.Remove(run_id))
        self._arm(led, f"remove {run_id}", self.core.config.retry_s)

    def _forget(self, led: _Led) -> None:
        del self.led[led.install.run]
        self.core.emit(e.Forgotten(led.install.run))

    def _arm(self, led: _Led, key: str, after_s: float) -> None:
        self.core.emit(e.SetTimer(key, self.core.now + after_s))

    def _ready(self, led: _Led) -> None:
        self.core.emit(e.Ready(led.install.run))
        self.core.steering.on_ready(led.install.run)

    def _lost(self, led: _Led, host: str, how: str) -> None:
        """A host is gone for good: the end of the run if it holds something, else only of its part in it."""
        run = self.core.runs.get(led.install.run)
        if run is None:
            return
        held = [entry.node for entry in run.locations.values() if entry.host == host]
        if held:
            self._fail(led, f"host {host!r}, which holds {', '.join(held)}, {how}")
            return
        led.remote.discard(host)
        led.installing.discard(host)
        led.gone[host] = how
        self.core.record(run.id, "fault", peer=host, detail={"what": f"{how}; the run goes on without it"})
        for other in sorted(led.remote):
            self._tell_lost(led, other)
        self.core.lose(run, host)

    def _tell_lost(self, led: _Led, other: str) -> None:
        """Repeated with every ping: any of these may get lost, and there is no answer to it."""
        run = self.core.runs.get(led.install.run)
        if run is None:
            return
        moved = tuple(run.locations[name] for name in run.changed)
        for host in led.gone:
            self.core.send(run.id, other, m.Lost(run.id, host, moved))

    def _fail(self, led: _Led, reason: str) -> None:
        if not led.failed:
            led.failed = True
            self.core.emit(e.Fail(led.install.run, reason))
