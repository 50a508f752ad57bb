"""Further networks that a seed draws for a trial: what they join, and over which of them partitions go.

Every further network joins some of the hosts by rented links, whose rates change as those of other links do. Partitions
take the network that all share, a further one, or a route over relays. If the trial has no planner that chooses
networks, the application chooses others now and then, at random.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from random import Random

import msgspec

from thalweg.emulation.virtual.links import LinkRate
from thalweg.emulation.virtual.world import World
from thalweg.middleware.network.networks import Network
from thalweg.middleware.network.tariffs import TARIFFS
from thalweg.middleware.network.view import NET, Link
from thalweg.middleware.protocol import messages as m

NAMES = ("fast", "far")  # of further networks, in this order
REROUTED = 0.08  # of the partitions delivered: the application then chooses other networks
RELAYED = 0.3  # of the pairs of hosts for which there are routes over relays: one is among the choices


class Joined(msgspec.Struct, frozen=True):
    """Further networks of a trial: their links, what the planner is told of them, and the first choice of ways."""

    links: dict[Link, LinkRate] = {}
    networks: dict[str, Network] = {}
    ways: tuple[m.RoutePreference, ...] = ()


def draw_networks(seed: int, hosts: Sequence[str], draw_link: Callable[[Random, str], LinkRate]) -> Joined:
    """Draw one or two further networks, each between two or more of ``hosts``; the same for the same seed."""
    dice = Random(f"{seed} networks")
    links: dict[Link, LinkRate] = {}
    networks = {NET: Network(TARIFFS["public"])}
    for name in NAMES[: dice.choice([1, 1, 2])]:
        joined = dice.sample([*hosts], dice.randint(2, len(hosts)))
        drawn = {pair: draw_link(dice, " ".join((*pair, name))) for pair in itertools.permutations(joined, 2)}
        links |= {Link(*pair, name): rates for pair, rates in drawn.items()}
        networks[name] = Network(TARIFFS["dedicated"], {pair: rates.rate_at(0.0) for pair, rates in drawn.items()})
    return Joined(links, networks, draw_ways(dice, hosts, networks))


def draw_ways(dice: Random, hosts: Sequence[str], networks: Mapping[str, Network]) -> tuple[m.RoutePreference, ...]:
    """Draw over what the partitions between two hosts go, in order of choice; the network that all share is included.

    Pairs of hosts that have no other way are left out, and some that have one.
    """
    further = [name for name in networks if name != NET]
    ways = []
    for source, target in itertools.permutations(hosts, 2):
        over: list[m.Via] = [name for name in further if networks[name].joins(source, target)]
        routes: list[m.Via] = [
            (m.LinkEnd(relay, first), m.LinkEnd(target, second))
            for relay in hosts
            for first in further
            for second in further
            if relay not in (source, target)
            and networks[first].joins(source, relay)
            and networks[second].joins(relay, target)
        ]
        if routes and dice.random() < RELAYED:
            over.append(dice.choice(routes))
        if over and dice.random() < 0.8:
            over.append(NET)
            ways.append(m.RoutePreference(source, target, tuple(dice.sample(over, len(over)))))
    return tuple(ways)


class Rerouter:
    """An application that chooses other networks for its partitions, at random, while its run goes on."""

    def __init__(self, seed: int, networks: Mapping[str, Network], world: World) -> None:
        self._dice, self._networks, self._world = Random(f"{seed} rerouted"), networks, world

    def on_delivered(self) -> None:
        """Choose other networks, or leave them, as the application has got a partition."""
        if self._dice.random() < REROUTED:
            self._world.reroute(draw_ways(self._dice, self._world.names, self._networks))
