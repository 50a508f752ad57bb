"""``thalweg provision``: the example, launched runs, and errors of wrong files."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from thalweg.experiments.cli.main import invoke
from thalweg.experiments.cli.provision import missed
from thalweg.experiments.problems.catalogue import read_catalogue, read_egress
from thalweg.experiments.problems.provisioning import load_provisioning
from thalweg.experiments.provisioning.answer import Answer, violations
from thalweg.experiments.provisioning.best import best
from thalweg.experiments.runs.rented import next_cheaper, write_platform
from thalweg.middleware.errors import UsageError

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "provision.toml"
SMALL = """
throughput = 2
machine_link = "8mbit"
objects = [{name = "x", bytes = 1000}, {name = "y", bytes = "4kb"}]
servers = [{name = "s", objects = ["x", "y"], network = "8mbit", link = "4mbit"}]
[[operators]]
name = "top"
inputs = ["low", "y", "y"]
work = 100
bytes = 0
[[operators]]
name = "low"
inputs = ["x"]
work = 50
bytes = 2000
[[machines]]
name = "one"
cpus = 0.5
speed = 500
network = "8mbit"
price = 2
date = 2024-06-01
source = "a list"
[[machines]]
name = "two"
cpus = 1.5
speed = 400
network = "16mbit"
price = 3.5
date = "2024-06-01"
source = "a list"
count = 1
"""


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(*edits: tuple[str, str], text: str = SMALL) -> Path:
        for old, new in edits:
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / "problem.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def provision(*options: object) -> int:
    return invoke(["provision", *map(str, options)])


def answered(capsys: pytest.CaptureFixture[str], *options: object) -> dict[str, Any]:
    assert provision(*options, "--json") == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return answer


def test_a_problem_has_the_figures_of_the_file(write: Any) -> None:
    problem = load_provisioning(write())
    instance = problem.instance
    assert (
        instance.operators == ("low", "top")
        and instance.parent.tolist() == [1, -1]
        and instance.leaves == ((0,), (1, 1))
    )
    assert instance.object_bytes.tolist() == [1000, 4096] and instance.frequency_hz.tolist() == [2, 2]
    assert instance.speed_mop_s.tolist() == [250, 600] and instance.core_mop_s.tolist() == [250, 300]
    assert instance.card_bytes_s.tolist() == [1e6, 2e6] and instance.limit.tolist() == [np.inf, 1]
    assert (instance.server_card_bytes_s.item(), instance.server_link_bytes_s.tolist()) == (1e6, [[5e5, 5e5]])
    assert problem.core_mop_s == 500 and problem.offers[0].date == "2024-06-01"


def test_the_answer_to_the_example_is_proven_and_has_dated_prices(capsys: pytest.CaptureFixture[str]) -> None:
    answer = answered(capsys, EXAMPLE, "--no-overlap")
    assert answer["proven"] and answer["cost"] == pytest.approx(answer["rent"] + answer["egress"])
    assert answer["cost"] == pytest.approx(0.03513728)
    assert [(machine["machine"], machine["region"], machine["operators"]) for machine in answer["machines"]] == [
        ("t3.small", "aws:eu-central-1", ["people", "cars", "seen"]),
        ("t3.micro", "aws:us-east-1", ["crates", "report"]),
    ]
    assert answer["prices_of"] == ["2021-08-30 AWS on demand (Linux)", "2022-11-01 egress.csv"]
    wider = answered(capsys, EXAMPLE, "--reserve", "30%")  # of which people and cars fit on no small instance
    assert wider["cost"] > 1.2 * answer["cost"] and all(machine["computes"] <= 0.7 for machine in wider["machines"])
    for heuristic in ("subtree-bottom-up", "random"):
        assert answered(capsys, EXAMPLE, "--heuristic", heuristic)["cost"] >= answer["cost"]
    assert provision(EXAMPLE) == 0
    assert "USD 0.0351 an hour (0.0344 for machines, 0.0007 for what they send)" in capsys.readouterr().out


@pytest.mark.long
def test_rented_machines_reach_the_throughput_and_the_next_cheaper_machines_do_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    launch = answered(capsys, EXAMPLE, "--launch", "sim", "--results", 20, "--out", tmp_path / "out")["launch"]
    first, second = launch["runs"]
    assert first["reached"] and first["mean_interarrival_s"] <= 1.05 * launch["wanted_s"] == 1.05
    assert not second["reached"] and second["mean_interarrival_s"] > 1.3 and second["cost"] < first["cost"]
    (own, other), (same, slower) = (run["machines"] for run in launch["runs"])
    assert own == same and (other, slower) == ("t3.micro in aws:us-east-1", "t3.nano in aws:us-east-1")
    assert provision(EXAMPLE, "--launch", "sim", "--out", tmp_path / "out") == 2  # is not empty
    alone = ["--launch", "sim", "--results", 2, "--no-cheaper", "--out", tmp_path / "alone"]
    assert provision(EXAMPLE, *alone) == 0 and "no cheaper machines" not in capsys.readouterr().out
    again = ["run", "--plan", first["plan"], "--testbed", "sim", "--images", "20", "--out", str(tmp_path / "again")]
    assert invoke([*again, "--json"]) == 0
    placement = json.loads(capsys.readouterr().out.splitlines()[-1])["placements"]["fixed"]
    assert placement["mean_interarrival_s"] == first["mean_interarrival_s"]


def test_a_missed_throughput_on_a_busy_machine_names_the_load() -> None:
    run = {"platform": "answer", "mean_interarrival_s": 1.6, "reached": False, "digest_ok": True, "load": 900.0}
    launch = {"testbed": "docker", "wanted_s": 1.0, "runs": [run]}
    (message,) = missed(launch)
    assert "1.600 s between two results, and 1.000 s are wanted; but 900 processes share this machine's" in message
    assert missed({**launch, "testbed": "sim"}) == [message[: message.index("; but")].replace("docker", "sim")]
    (wrong,) = missed({**launch, "runs": [{**run, "reached": True, "digest_ok": False, "records": "r"}]})
    assert wrong == "the answer's results are not those of a single machine; see r"


@pytest.mark.long
@pytest.mark.docker
@pytest.mark.timed
def test_a_container_with_half_a_processor_reaches_the_throughput(
    write: Any, docker_image: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = write(("work = 100", "work = 50"), ("work = 50\nbytes = 2000", "work = 35\nbytes = 2000"))
    options = ("--launch", "docker", "--image", docker_image, "--results", 8, "--no-cheaper")
    (run,) = answered(capsys, small, *options, "--out", tmp_path / "out")["launch"]["runs"]
    assert (run["machines"], run["delivered"], run["digest_ok"], run["reached"]) == (["one"], 8, True, True)


def test_a_platform_is_written_as_a_scenario_and_a_plan(write: Any, tmp_path: Path) -> None:
    problem = load_provisioning(write(("work = 100", "work = 130")))
    instance = problem.instance
    apart = Answer(np.array([0, 1]), np.array([0, 1]), np.array([[0, -1], [-1, 0]]))
    plan = tomllib.loads(write_platform(problem, apart, tmp_path / "apart").read_text())
    scenario = tomllib.loads((tmp_path / "apart" / plan["scenario"]).read_text())
    assert scenario["hosts"] == [
        {"name": "client"},
        {"name": "s", "interface_rate": 8_000_000},
        {"name": "m1", "interface_rate": 8_000_000, "cpus": 0.5, "speed": 0.5, "cores": 1},
        {"name": "m2", "interface_rate": 16_000_000, "cpus": 1.2, "speed": 0.6, "cores": 2},
    ]
    rates = {(link["from"], link["to"]): link["rate"] for link in scenario["link"]}
    common = scenario["links"]["rate"]
    assert [rates.get(link, common) for link in (("s", "m1"), ("m1", "m2"), ("m2", "client"))] == [4e6, 8e6, 16e6]
    assert plan["nodes"] == [
        {"name": "x@s", "host": "s", "bytes": 1000, "rate": 2.0, "object": "x"},
        {"name": "y@s", "host": "s", "bytes": 4096, "rate": 2.0, "object": "y"},
        {"name": "low", "host": "m1", "bytes": 2000, "inputs": ["x@s"], "compute_s": 0.1},
        {"name": "top", "host": "m2", "bytes": 0, "inputs": ["y@s", "low"], "compute_s": 0.26},
    ]
    cheaper = next_cheaper(instance, apart)
    assert cheaper is not None and cheaper.class_of.tolist() == [0, 0]
    assert next_cheaper(instance, Answer(np.array([0, 0]), np.array([0]), np.array([[0, 0]]))) is None
    odd = msgspec.structs.replace(
        problem, instance=msgspec.structs.replace(instance, frequency_hz=np.array([2.0, 1.0]))
    )
    with pytest.raises(UsageError, match="object 'y' is fetched 1 times a second, and a run fetches one for each"):
        write_platform(odd, apart, tmp_path / "odd")
    conflicting = msgspec.structs.replace(problem, instance=msgspec.structs.replace(instance, servers=("m1",)))
    with pytest.raises(UsageError, match="a run calls a host 'm1' itself"):
        write_platform(conflicting, apart, tmp_path / "taken")


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (("throughput = 2", "throughput = 0"), "throughput is 0 results a second; it must be above 0"),
        (("throughput = 2", "throughput = -1"), "throughput is -1 results a second"),
        (('inputs = ["x"]', 'inputs = ["x", "top"]'), "is on a cycle: it is made of its own results"),
        (('inputs = ["x"]', 'inputs = ["xx"]'), "operator 'low' takes unknown 'xx'; did you mean 'x'?"),
        (('["low", "y", "y"]', '["y"]'), "operators 'top', 'low' have no consumer; a tree has one root"),
        (('inputs = ["x"]', "inputs = []"), "operator 'low' has no inputs"),
        (('objects = ["x", "y"]', 'objects = ["x"]'), "object 'y', which operator 'top' needs, is on no server"),
        (('objects = ["x", "y"]', 'objects = ["x", "z"]'), "server 's' holds unknown object 'z'"),
        (('name = "low"', 'name = "y"'), "object or operator 'y' is given twice"),
        (("price = 2\n", ""), "machine 'one' has no price; give one"),
        (("price = 2\n", "price = -2\n"), "the price of machine 'one' is -2; give a number, at least 0"),
        (("price = 2\n", 'price = 2\ncurrency = "EUR"\n'), "has a price in USD, and 'one' in EUR; give all in one"),
        (("cpus = 0.5", "cpus = 0"), "the cpus of machine 'one' is 0; it must be above 0"),
        (('name = "one"\n', ""), "machine 1 has no name"),
        (('name = "two"', 'name = "one"'), "machine 'one' is given twice"),
        (("speed = 500", "sped = 500"), "machine 'one' has 'sped', which is none of its figures; did you mean 'speed'"),
        (('"8mbit"\nprice', '"8mbits"\nprice'), "the network of machine 'one': '8mbits' is not a rate"),
        (("date = 2024-06-01\n", 'date = "June"\n'), "the date of machine 'one' is 'June'; write it as 2024-06-01"),
        (('machine_link = "8mbit"', 'catalogue = "c.csv"'), "needs either a catalogue, or machines"),
        (('machine_link = "8mbit"', 'machine_lnk = "8mbit"'), "did you mean 'machine_link'?"),
        (("work = 100", "work = -1"), "work_mop of operator 'top' is -1"),
        (("work = 100", "work = 400"), "asks for 800 Mop/s at 2 results a second, 200 more than the largest machine"),
        (('link = "4mbit"', 'link = "60kbit"'), "object 'y' takes 8,192 bytes/s, 692 more than any link from one"),
        (('"8mbit", link', '"60kbit", link'), "692 more than the card of any of its servers carries (7,500) (3)"),
        (('"8mbit", link', '"70kbit", link'), "all objects together take 10,192 bytes/s, 1,442 more than all servers'"),
        (('machine_link = "8mbit"', 'egress = "none.csv"'), "none.csv cannot be read"),
        (('name = "low"', 'name = ""'), "object or operator '' has no name"),
        (("work = 100", 'work = "much"'), "Expected `float`, got `str`"),
    ],
)  # fmt: skip
def test_an_invalid_problem_is_refused_in_a_single_line(
    write: Any, edit: tuple[str, str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert provision(write(edit)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line and re.match(r"thalweg: /\S+", line)


def test_the_error_names_the_constraint_that_cannot_be_met(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    # both together are too much for a machine, and apart for their cards, at 8 and 16 kbit/s above the objects alone
    tight = write(("work = 100", "work = 250"), ("work = 50", "work = 120"), ("bytes = 2000", "bytes = 900000"))
    assert provision(tight) == 2
    assert "exchange more than any link or card (5) carries, and together ask for 740 Mop/s" in capsys.readouterr().err
    cards = (('"8mbit"\nprice', '"40kbit"\nprice'), ('"16mbit"', '"80kbit"'), ("work = 100", "work = 280"))
    assert provision(write(*cards, ("bytes = 2000", "bytes = 1200"))) == 2
    assert "no limit to the cards of machines (2)" in capsys.readouterr().err
    assert provision(write(("work = 100", "work = 160")), "--no-overlap") == 2
    reason = (
        "computes 0.533333 s on one processor at best, 0.0333333 more than there are between two results (0.5 s) (6)"
    )
    assert reason in capsys.readouterr().err
    assert provision(write(("work = 100", "work = 220")), "--reserve", "40%") == 2
    assert "the throughput, with 40% of each left free (--reserve); there would be some" in capsys.readouterr().err


def test_a_single_operator_is_solved_and_invalid_options_are_refused(
    write: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = SMALL.replace('inputs = ["low", "y", "y"]', 'inputs = ["y"]')
    alone = alone[: alone.index('[[operators]]\nname = "low"')] + alone[alone.index("[[machines]]") :]
    (machine,) = answered(capsys, write(text=alone))["machines"]
    assert (machine["machine"], machine["operators"], machine["objects"]) == ("one", ["top"], {"y": "s"})
    assert provision(write(("price = 2\n", "price = 2\ncount = 0\n"), ("count = 1", "count = 0"))) == 2
    assert "there are no machines: the count of every one is below 1\n" in capsys.readouterr().err
    for options in (["--heuristic", "subtree"], ["--time-limit", "-1"], ["--launch", "cloud"], ["--compare", "2"]):
        assert provision(write(text=alone), *options) == 2
    assert provision() == 2
    assert provision(write(text=alone), "--launch", "netns", "--out", tmp_path / "out") == 2
    assert not (tmp_path / "out").exists()
    assert "netns keeps no host to its processors; use --testbed docker or sim" in capsys.readouterr().err


def test_catalogues_and_egress_prices_are_read_and_invalid_catalogues_are_refused(tmp_path: Path) -> None:
    offers = read_catalogue(EXAMPLE.with_name("machines.csv"))
    assert len(offers) == 12 and offers[3].label == "t3.medium in aws:us-east-1" and offers[3].network == 256e6
    assert read_egress(EXAMPLE.with_name("egress.csv"))["aws:us-east-1", "aws:eu-central-1"] == 0.02
    same = tmp_path / "machines.toml"
    same.write_text(
        'date = 2024-06-01\nsource = "a"\n[[machines]]\nname = "m"\ncpus = 1\nspeed = 2\nnetwork = 8\nprice = 0'
    )
    (offer,) = read_catalogue(same)
    assert (offer.date, offer.source, offer.price, offer.currency, offer.cores) == ("2024-06-01", "a", 0, "USD", 1)
    for name, text, error in (
        ("a.csv", "name,cpus\na,1", "has no column 'price'"),
        ("b.csv", "name,price\na,1,2", "row 1 has 3 cells, and there are 2 columns"),
        (
            "c.csv",
            "name,price,cpus,speed,network,date,source\na,x,1,1,1mbit,2024-01-01,b",
            "the price of machine 'a' is 'x'",
        ),
        ("d.toml", "machines = []", "there is no machine"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(UsageError, match=re.escape(error)):
            read_catalogue(tmp_path / name)


def test_bytes_have_prices_by_region(write: Any, tmp_path: Path) -> None:
    (tmp_path / "egress.csv").write_text("src,dest,cost\nhere,there,0.5\n")
    regions = (
        ('link = "4mbit"', 'region = "here"'),
        ('machine_link = "8mbit"', 'egress = "egress.csv"\nclient = "here"'),
    )
    with pytest.raises(UsageError, match="machine 'one' has no region, by which egress has prices"):
        load_provisioning(write(*regions))
    placed = (
        *regions,
        ("price = 2\n", 'price = 2\nregion = "there"\n'),
        ("price = 3.5", 'price = 3.5\nregion = "here"'),
    )
    with pytest.raises(UsageError, match=r"egress egress\.csv has no cost from 'there' to 'here'; add a row"):
        load_provisioning(write(*placed))
    (tmp_path / "egress.csv").write_text("src,dest,cost\nhere,there,0.5\nthere,here,0.1\n")
    instance = load_provisioning(write(*placed)).instance
    assert instance.egress is not None and instance.egress.from_servers.tolist() == [[0.5, 0.0]]
    assert instance.egress.between.tolist() == [[0.0, 0.1], [0.5, 0.0]] and instance.egress.results.tolist() == [
        0.1,
        0.0,
    ]
    assert not violations(instance, best(instance).answer)
    assert load_provisioning(write(*placed)).prices_of == ("2024-06-01 a list", "undated egress.csv")
    with pytest.raises(UsageError, match="egress costs EUR, and machines USD"):
        load_provisioning(write(*placed, ("throughput = 2", 'throughput = 2\negress_currency = "EUR"')))


# --- random problems ---------------------------------------------------------------------------------------

COMPARED = ["provision", "--compare", "2", "--n", "26", "--alpha", "1.9"]


@pytest.mark.long
def test_every_method_of_renting_machines_is_compared_with_the_optimum(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke([*COMPARED, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert answer["feasible"] == answer["proven"] and answer["none"] + answer["feasible"] == answer["problems"] == 2
    methods = {row["way"]: row for row in answer["ways"]}
    assert {"random", "subtree-bottom-up", "best of the seven", "annealing", "best"} < set(methods) and len(
        methods
    ) == 10
    assert methods["best"]["optimal"] == methods["best"]["found"] == answer["feasible"]
    assert all(row["ratio"] >= 1 for row in methods.values() if row["ratio"] is not None)
    assert methods["best of the seven"]["worst"] <= methods["subtree-bottom-up"]["worst"]


def test_trees_between_clouds_are_compared_by_the_cost_of_egress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("THALWEG_TRACES", str(tmp_path))
    assert invoke(["provision", "--egress", "3"]) == 2
    assert "there is no throughput data set 'skyplane_2022-11'" in capsys.readouterr().err
    random, (grid, prices) = np.random.default_rng(1), (tmp_path / "throughput", tmp_path / "prices")
    pairs = [(a, b) for a in "abcdefghij" for b in "abcdefghij" if a != b]
    for folder, name, header, values in (
        (grid, "skyplane_2022-11", "src,dst,bandwidth_bps", random.integers(1e8, 1e10, 90)),
        (prices, "skyplane_egress", "src,dest,cost", random.choice([0.02, 0.09, 0.12], 90)),
    ):
        folder.mkdir()
        rows = (f"{source},{target},{value}" for (source, target), value in zip(pairs, values, strict=True))
        (folder / f"{name}.csv").write_text("\n".join((header, *rows)))
    assert invoke(["provision", "--egress", "3", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    trees = {row["tree"]: row for row in answer["trees"]}
    assert "2022" in answer["date"] and answer["draws"] == 3 and len(trees) == 3 + 4
    half, all_of_it = (trees[f"cheapest at {share} of thalweg's throughput"] for share in ("50%", "100%"))
    assert half["of_thalweg"] <= all_of_it["of_thalweg"] <= 1 and half["least"] >= 0.5 - 1e-5
    assert half["of_download_all"] < 1 and all_of_it["least"] > 1 - 1e-5
    assert invoke(["provision", "--compare", "1", "--alpha", "1000"]) == 2
    assert "α is 1000; give an exponent of work from 0 to 10" in capsys.readouterr().err
    assert invoke(["provision", "--egress", "3", "--compare", "2"]) == 2
    assert "in place of FILE" in capsys.readouterr().err
