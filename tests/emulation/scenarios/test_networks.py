"""Networks of scenario files: links, prices, events and errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from thalweg.emulation.scenarios.file import Scenario, read_scenario
from thalweg.emulation.scenarios.timeline import compile_timeline
from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.tariffs import TARIFFS, Tariff
from thalweg.middleware.network.view import Link, links_between

HOSTS = 'hosts = ["client", "h1", "h2", { name = "h3", interface_rate = { net = "2mbit", leased = "6mbit" } }]\n'
HEAD = HOSTS + '[links]\nrate = "1mbit"\n[networks.leased]\n'
LEASED = '[[link]]\nnetwork = "leased"\nfrom = "h1"\nto = ["h2", "h3"]\nboth = true\nrate = "4mbit"\n'
NAMES = ("client", "h1", "h2", "h3")
OVER = {Link("h1", "h2", "leased"), Link("h2", "h1", "leased"), Link("h1", "h3", "leased"), Link("h3", "h1", "leased")}


def scenario(folder: Path, text: str) -> Scenario:
    (folder / "wan.toml").write_text(text)
    return read_scenario(folder / "wan.toml")


def test_a_dedicated_network_has_the_listed_links_and_a_public_network_has_all_links(tmp_path: Path) -> None:
    parsed = scenario(tmp_path, HEAD + LEASED)
    assert parsed.networks == {"leased": TARIFFS["dedicated"]}
    assert parsed.links.keys() == {*links_between(NAMES), *OVER}
    assert {parsed.links[link].rate_bps for link in OVER} == {4e6}
    timeline = compile_timeline(parsed).renamed({"client": "c", "h1": "x", "h2": "y", "h3": "z"})
    assert timeline.interfaces_bps == {"z": 2e6, ("z", "leased"): 6e6}
    assert Link("x", "y", "leased") in timeline.links
    assert timeline.over(()).links.keys() == {*links_between("cxyz")}
    prices = '[networks.net]\nprice_per_gb = 0.05\nsource = "a list, 2026-11"\n[networks.other]\nkind = "public"\n'
    other = '[[link]]\nnetwork = "other"\nfrom = "h1"\nto = "h2"\nrate = "3mbit"\n'
    parsed = scenario(tmp_path, HEAD + prices + LEASED + other)
    assert parsed.networks["net"] == Tariff("public", 0.05, source="a list, 2026-11")
    assert parsed.networks["other"] == TARIFFS["public"]
    public = {link: shape.rate_bps for link, shape in parsed.links.items() if link.via == "other"}
    assert public.keys() == {*links_between(NAMES, "other")}
    assert [link for link, rate_bps in public.items() if rate_bps == 3e6] == [Link("h1", "h2", "other")]


def test_events_affect_the_named_network_and_a_partition_affects_all_networks(tmp_path: Path) -> None:
    events = """
[[event]]
kind = "outage"
at = 10
host = "h1"
[[event]]
kind = "outage"
at = 20
host = "h2"
network = "leased"
[[event]]
kind = "change"
at = 30
from = "h1"
to = "h2"
network = "*"
factor = 0.5
[[event]]
kind = "partition"
at = 40
groups = [["h1"], ["h2", "h3"]]
[[event]]
kind = "churn"
at = 50
mean_up = 5
mean_down = 5
hosts = "h3"
network = "leased"
"""
    events_of_file = scenario(tmp_path, HEAD + LEASED + events).events
    assert {*events_of_file[0].links} == {link for link in links_between(NAMES) if "h1" in link}
    assert {*events_of_file[1].links} == {Link("h1", "h2", "leased"), Link("h2", "h1", "leased")}
    assert events_of_file[1].who == "all links of h2 over leased"
    assert events_of_file[2].links == (Link("h1", "h2"), Link("h1", "h2", "leased"))
    assert {*events_of_file[3].links} == OVER | {Link("h1", "h2"), Link("h2", "h1"), Link("h1", "h3"), Link("h3", "h1")}
    assert {*events_of_file[4].links} == {Link("h1", "h3", "leased"), Link("h3", "h1", "leased")}


def test_a_limit_in_a_network_applies_only_to_hosts_of_the_network(tmp_path: Path) -> None:
    """A limit for all hosts holds for the hosts of the network. A limit for a host outside the network is refused."""
    common = 'interface_rate = { net = "3mbit", leased = "5mbit" }\n'
    parsed = scenario(tmp_path, common + HEAD + LEASED)
    limits = {name: host.interfaces_bps for name, host in parsed.hosts.items()}
    assert limits == {
        "client": {"net": 3e6},
        "h1": {"net": 3e6, "leased": 5e6},
        "h2": {"net": 3e6, "leased": 5e6},
        "h3": {"net": 2e6, "leased": 6e6},
    }
    text = HEAD + LEASED.replace('["h2", "h3"]', '"h2"')
    with pytest.raises(
        UsageError, match=r"host 'h3' has no link in network 'leased'; give it a .*, or leave leased out"
    ):
        scenario(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        (
            LEASED.replace("leased", "leesed"),
            6,
            "network: there is no 'leesed'; did you mean 'leased'",
        ),
        (LEASED.replace('rate = "4mbit"\n', 'delay = "1ms"\n'), 5, "link h1 → h2 over leased has no rate"),
        (LEASED + LEASED, 11, "link h1 → h2 over leased stands there twice"),
        (LEASED.replace("both = true\n", ""), 5, "link h1 → h2 over leased has no way back"),
        ('[networks.fast]\nkind = "rented"\n', 6, "there is no 'rented'"),
        ("[networks.fast]\nprice_per_gb = -1\n", 6, "price_per_gb: -1 is not a price"),
        ("[networks.fast]\nprice_per_gb = nan\n", 6, "nan is not a price"),
        ('[networks.fast]\nsource = "x"\n', 6, "source says where prices are from"),
        ('[networks.fast]\nkind = "public"\nprice_per_hour = 1\n', 7, "no link is rented"),
        ('[networks.net]\nkind = "dedicated"\n', 6, "'net' joins all hosts, so it is public"),
        ('[networks."a b"]\n', 5, "network name 'a b'"),
        ("[networks.fast]\nprice = 1\n", 6, r"\[networks.fast\] has no key 'price'"),
        ("".join(f"[networks.n{i}]\n" for i in range(7)), 4, "8 networks; a testbed has at most 7"),
        (LEASED + '[[event]]\nkind = "outage"\nat = 1\nhost = "client"\nnetwork = "leased"\n', 15, "no such link"),
        (LEASED + '[[event]]\nkind = "outage"\nat = 1\nhost = "client"\nnetwork = "x"\n', 15, "there is no 'x'"),
        (LEASED + '[[event]]\nkind = "crash"\nat = 1\nhost = "h1"\nnetwork = "leased"\n', 15, "leave network out"),
        (LEASED + "[networks.fast]\n", 11, "network 'fast' has no links"),
        (
            LEASED + f"[networks.fast]\nprice_per_gb = 1{'0' * 400}\n",
            12,
            "price_per_gb: a number .* hundreds of digits",
        ),
        (LEASED + f"[[link]]\nhost = '*'\ndelay = 1{'0' * 400}\n", 13, "delay: a number .* hundreds of digits"),
    ],
)
def test_an_error_is_a_single_line_with_the_line_number(tmp_path: Path, text: str, line: int, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        scenario(tmp_path, HEAD + text)
    assert str(caught.value).startswith(f"{tmp_path / 'wan.toml'}, line {line}: ")
    assert "\n" not in str(caught.value)


def test_an_interface_rate_of_an_unknown_network_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="line 1: interface_rate: there is no network 'leesed'"):
        scenario(tmp_path, HEAD.replace("leased =", "leesed =") + LEASED)
