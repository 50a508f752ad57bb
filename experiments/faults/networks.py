"""Further networks that a seed draws for a trial: their links, and the routes of partitions.

A further network joins some of the hosts by rented links, whose rates change as on every link. Partitions take the
network that all hosts share, a further network, or a route over relays. If the trial has no planner that chooses
networks, the application sometimes chooses routes at random.
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
REROUTED = 0.08  # share of delivered partitions after which the application chooses other routes
RELAYED = 0.3  # share of the host pairs with routes over relays for which a choice is such a route


class Joined(msgspec.Struct, frozen=True):
    """Further networks of a trial: ``links``, ``networks`` for the planner, and the first preferences of routes."""

    links: dict[Link, LinkRate] = {}
    networks: dict[str, Network] = {}
    ways: tuple[m.RoutePreference, ...] = ()


def draw_networks(seed: int, hosts: Sequence[str], draw_link: Callable[[Random, str], LinkRate]) -> Joined:
    """Draw one or two further networks of two or more of ``hosts``. Equal seeds draw equal networks."""
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
    """Draw the routes of partitions between hosts, in order of choice and with the shared network among them.

    Pairs of hosts without a further route are left out, and some pairs with a further route.
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
    """Application that chooses routes for partitions at random while the run goes on."""

    def __init__(self, seed: int, networks: Mapping[str, Network], world: World) -> None:
        self._dice, self._networks, self._world = Random(f"{seed} rerouted"), networks, world

    def on_delivered(self) -> None:
        """Choose new routes after some of the delivered partitions."""
        if self._dice.random() < REROUTED:
            self._world.reroute(draw_ways(self._dice, self._world.names, self._networks))
