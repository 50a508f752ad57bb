"""Presets in scenario files: figures of hosts and links, and errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from thalweg.emulation.links.shape import QUEUE, LinkShape, Queue
from thalweg.emulation.scenarios.file import Scenario, read_scenario
from thalweg.emulation.scenarios.timeline import compile_timeline
from thalweg.middleware.errors import UsageError

MBIT = 1e6


def scenario(folder: Path, text: str) -> Scenario:
    file = folder / "wan.toml"
    file.write_text(text)
    return read_scenario(file)


def test_a_host_has_the_line_of_the_preset_and_a_link_the_lines_of_both_ends(tmp_path: Path) -> None:
    parsed = scenario(tmp_path, """
        hosts = ["server", { name = "phone", preset = "4g" }, { name = "dish", preset = "starlink", up_rate = "1mbit" }]
        [links]
        rate = "100mbit"
        delay = "1ms"
    """)  # fmt: skip
    hosts, links = parsed.hosts, parsed.links
    assert (hosts["server"].preset, hosts["phone"].preset, hosts["dish"].preset) == (
        hosts["server"].up_bps,
        "4g",
        "starlink",
    )
    assert (hosts["phone"].up_bps, hosts["phone"].down_bps) == ({"net": 7.6 * MBIT}, {"net": 29.5 * MBIT})
    assert (hosts["dish"].up_bps, hosts["dish"].down_bps) == ({"net": MBIT}, {"net": 97.23 * MBIT})
    assert (hosts["phone"].up_queue, hosts["dish"].up_queue) == (Queue(0.2), QUEUE)
    assert links["server", "phone"] == LinkShape(29.5 * MBIT, 0.0105, pytest.approx(0.0049), queue=Queue(0.2))  # type: ignore[index, arg-type]
    assert links["phone", "server"].rate_bps == 7.6 * MBIT  # type: ignore[index]
    assert links["dish", "phone"].delay_s == pytest.approx(0.033)  # type: ignore[index]


@pytest.mark.parametrize("place", ['[links]\npreset = "4g"', 'preset = "4g"\n[links]'])
def test_an_explicit_figure_wins_over_a_preset_and_a_hosts_line_over_the_common_line(
    tmp_path: Path, place: str
) -> None:
    above, _, below = place.rpartition("[links]")
    hosts = 'hosts = ["a", "b", { name = "c", preset = "5g" }]\n'
    parsed = scenario(tmp_path, f'{above}{hosts}[links]{below}\ndelay = "80ms"\n')
    assert {host.preset for host in parsed.hosts.values()} == {"4g", "5g"}
    assert parsed.links["a", "b"].delay_s == 0.08  # type: ignore[index]
    assert parsed.links["a", "b"].rate_bps == 7.6 * MBIT  # type: ignore[index]
    assert parsed.links["a", "c"].delay_s == pytest.approx(0.0199)  # type: ignore[index]


def test_a_link_table_sets_the_line_of_a_host_or_the_figures_of_a_link(tmp_path: Path) -> None:
    parsed = scenario(tmp_path, """
        hosts = ["a", { name = "b", preset = "4g" }, "c"]
        time_scale = 2
        [links]
        rate = "10mbit"
        [[link]]
        host = "b"
        preset = "adsl"
        queue = "1s"
        [[link]]
        from = "a"
        to = "b"
        delay = "99ms"
        [[link]]
        from = "a"
        to = "c"
        preset = "transatlantic"
        loss = "1%"
    """)  # fmt: skip
    assert (parsed.hosts["b"].preset, parsed.hosts["b"].up_bps) == ("adsl", {"net": 460e3})
    assert parsed.links["c", "b"] == LinkShape(5.6 * MBIT, 0.025, queue=Queue(1.0))  # type: ignore[index]
    assert parsed.links["a", "b"].delay_s == 0.099  # type: ignore[index]
    assert parsed.links["a", "c"] == LinkShape(287 * MBIT, 0.0394, loss=0.01, queue=QUEUE)  # type: ignore[index]
    assert parsed.links["c", "a"] == LinkShape(10 * MBIT)  # type: ignore[index]
    asked: list[object] = []

    class Told:
        """Stand-in for a testbed that keeps all calls."""

        limited, lines = False, {}  # type: ignore[var-annotated]

        def __getattr__(self, name: str) -> object:
            return lambda *given: asked.append((name, *given))

    compile_timeline(parsed).shape_testbed(Told())  # type: ignore[arg-type]
    (_, shapes, _), (name, lines), (_, up_bps, down_bps, _) = asked  # type: ignore[misc]
    assert (name, lines) == ("set_lines", {"a": None, "b": ("adsl", Queue(0.5)), "c": None})  # of the wall
    assert (up_bps["b"], down_bps["b"]) == (920e3, 11.2 * MBIT)
    assert shapes["c", "b"].delay_s == 0.0125


def test_a_trace_replaces_the_rate_of_a_path_preset(tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text("time_s,bandwidth_bps\n0,1000000\n10,2000000\n")
    parsed = scenario(tmp_path, 'hosts = 2\n[links]\npreset = "transatlantic"\ntrace = "one.csv"\n')
    assert {shape[:2] for shape in parsed.links.values()} == {(MBIT, 0.0394)}
    assert len(parsed.traces) == 2


LINKS = '[links]\nrate = "1mbit"\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('hosts = ["a", { name = "b", preset = "4gg" }]\n', "line 1: preset: there is no preset '4gg'; did you mean"),
        ('hosts = ["a", { name = "b", preset = "transatlantic" }]\n', "line 1: preset: 'transatlantic' is a path,"),
        ('preset = "transatlantic"\nhosts = 2\n', "line 1: preset: 'transatlantic' is a path, which only links can be"),
        ("hosts = 2\n[links]\npreset = 3\n", "line 3: preset: there is no preset 3; known are"),
        (
            f'hosts = 2\n{LINKS}[[link]]\nfrom = "client"\npreset = "4g"\n',
            "line 6: preset: '4g' is the line of a host; write host",
        ),
        (
            f'hosts = 2\n{LINKS}[networks.leased]\n[[link]]\nnetwork = "leased"\nhost = "h1"\npreset = "4g"\n',
            "line 8: preset: lines are of the network 'net'",
        ),
        ('hosts = 2\n[links]\npreset = "4g"\nqueue = "long"\n', "line 4: queue: 'long' is not a queue"),
    ],
)  # fmt: skip
def test_a_wrong_or_misplaced_preset_is_refused_in_a_single_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UsageError) as error:
        scenario(tmp_path, text)
    assert says in str(error.value)
    assert "\n" not in str(error.value)
