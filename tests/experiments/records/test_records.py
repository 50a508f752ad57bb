from __future__ import annotations

import hashlib
import json
import math
import tomllib
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thalweg.experiments.records import records
from thalweg.experiments.records.log import gaps, read_log
from thalweg.experiments.records.records import RunInfo, load_run, save_run, to_toml, write_events
from thalweg.middleware.errors import RunError, UsageError
from thalweg.operators import sequence_digest

LINE = '{"t":1.5,"wall":2e9,"host":"h1","placement":"one-shot","kind":"x"}'

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
scalars = text | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
values = st.recursive(scalars, lambda v: st.lists(v, max_size=4) | st.dictionaries(text, v, max_size=4), max_leaves=12)


@given(st.dictionaries(text, values, max_size=6))
def test_toml_reads_back_unchanged(tree: dict[str, Any]) -> None:
    assert tomllib.loads(to_toml(tree)) == tree


def told(folder: Path) -> list[str]:
    return gaps(folder, read_log(folder, "missing"))


def test_toml_leaves_out_none_and_keeps_nan() -> None:
    assert to_toml({"a": None, "b": {"c": [{"d": None, "e": 1}]}}) == "[b]\nc = [{e = 1}]\n"
    assert math.isnan(tomllib.loads(to_toml({"a": math.nan}))["a"])


@pytest.mark.parametrize("value", [object(), 2**63, b"x", [None], "\ud800", {1: 2}])
def test_an_unwritable_value_is_refused_with_the_name_of_the_key(value: object) -> None:
    with pytest.raises(UsageError, match=r"config\.bad"):
        to_toml({"config": {"bad": value}})


def write(folder: Path, **logs: str | bytes) -> list[Path]:
    paths = []
    for name, content in logs.items():
        paths.append(folder / f"{name}.jsonl")
        paths[-1].write_bytes(content.encode() if isinstance(content, str) else content)
    return paths


def test_records_keep_fields_order_and_unknown_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "ROW_GROUP", 7)
    full = {
        "t": 1, "wall": 2.5, "host": "h1", "placement": "one-shot", "kind": "unheard of", "node": "op0",
        "peer": "h2", "index": 3, "size_bytes": 2**40, "duration_s": 0.25, "value": 1e6,
        "detail": {"digest": "ü", "list": [1, 2]},
    }  # fmt: skip
    bare = [{"t": float(i), "wall": 2.5, "host": "h2", "placement": "", "kind": "x"} for i in range(20)]
    logs = write(tmp_path, h1=json.dumps(full) + "\n", h2="\n".join(map(json.dumps, bare)))
    path = write_events(tmp_path, "r1", logs)
    assert path == tmp_path / "events.parquet"
    assert pq.read_schema(path).remove_metadata().equals(records.SCHEMA)
    assert pq.read_metadata(path).num_row_groups == 3
    first, *rest = pq.read_table(path).to_pylist()
    assert json.loads(first.pop("detail")) == full.pop("detail")
    full["t_s"], full["wall_s"] = full.pop("t"), full.pop("wall")
    assert first == full | {"run": "r1"}
    assert [row["t_s"] for row in rest] == [float(i) for i in range(20)]
    assert {row["placement"] for row in rest} == {None}
    assert told(tmp_path) == []


def test_missing_rows_are_reported_by_host_and_reason(tmp_path: Path) -> None:
    def missing(host: str, rows: int, reason: str) -> str:
        detail = {"rows": rows, "reason": reason}
        line = {"t": 0.0, "wall": 2.5, "host": host, "placement": "", "kind": "missing", "detail": detail}
        return json.dumps(line).ljust(300) + "\n"

    full = "No space left on device"
    h1 = missing("h1", 3, full) + missing("h1", 4, full) + missing("h1", 1, "File too large")
    write_events(tmp_path, "r1", write(tmp_path, h1=h1, h2=LINE + "\n", h3=missing("h3", 9, full)))
    assert told(tmp_path) == [
        "7 rows of the records are missing on host 'h1': No space left on device",
        "1 rows of the records are missing on host 'h1': File too large",
        "9 rows of the records are missing on host 'h3': No space left on device",
    ]


@given(st.integers(0, len(LINE)))
def test_the_torn_last_line_of_a_killed_host_is_left_out_and_reported(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    folder = tmp_path_factory.mktemp("torn")
    write_events(folder, "r", write(folder, h1=f"{LINE}\n{LINE[:cut]}", h2=f"{LINE}\n"))
    whole = cut == len(LINE)
    assert pq.read_metadata(folder / "events.parquet").num_rows == 2 + whole
    says = "h1.jsonl ends in half a line, which was left out; its writer was killed"
    assert told(folder) == ([] if whole or cut == 0 else [says])


@pytest.mark.parametrize(
    "garbage",
    [
        b"what",
        b"",
        b"\xff\xfe",
        b'{"t":1}',
        b'{"t":"1","wall":2,"host":"h","kind":"x"}',
        b'{"t":1,"wall":2,"host":"h","kind":"x","colour":1}',
        b'{"t":1,"wall":2,"host":"h","kind":"x","detail":[1]}',
        b'{"t":1,"wall":2,"host":"h","kind":"x","index":9223372036854775808}',
        b'{"t":1,"wall":2,"host":"' + b"h" * records.MAX_LINE_BYTES + b'","kind":"x"}',
    ],
)
def test_garbage_is_named_by_file_and_line_and_nothing_is_replaced(tmp_path: Path, garbage: bytes) -> None:
    before = write_events(tmp_path, "r", write(tmp_path, h1=LINE)).read_bytes()
    logs = write(tmp_path, h1=LINE, h2=f"{LINE}\n".encode() + garbage + f"\n{LINE}\n".encode())
    with pytest.raises(RunError, match=r"h2\.jsonl, line 2: ") as error:
        write_events(tmp_path, "r", logs)
    assert "\n" not in str(error.value)
    assert (tmp_path / "events.parquet").read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"events.parquet", "h1.jsonl", "h2.jsonl"}


def test_a_missing_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"h9\.jsonl"):
        write_events(tmp_path, "r", [tmp_path / "h9.jsonl"])
    assert list(tmp_path.iterdir()) == []


def test_run_toml_reads_back(tmp_path: Path) -> None:
    info = RunInfo(
        run='r "1"', testbed="netns", seed=-3, images=60, placements=["one-shot", "a.b"], time_scale=120.0,
        reference_digest="sha256:0", hosts=["h1"], notes=["rates only: no netem"], versions={"thalweg": "0.1.0"},
        config={"links": {"h1>h2": 1.5}, "sizes": [1, 2], "nested": [{"a": True}]},
    )  # fmt: skip
    save_run(tmp_path, info)
    write_events(tmp_path, info.run, [])
    assert load_run(tmp_path) == info
    with (tmp_path / "run.toml").open("a") as file:
        file.write('[from_a_later_version]\nkey = "value"\n')
    assert load_run(tmp_path) == info


@pytest.mark.parametrize(
    ("toml", "events", "says"),
    [
        (None, True, "is not a run folder"),
        ("run = ", True, r"run\.toml cannot be read"),
        ("run = 'r'", True, r"run\.toml is damaged: .*testbed"),
        (to_toml({"format": 2}), True, "format 2 .* upgrade"),
        (to_toml({"run": "r", "testbed": "x", "seed": 1, "images": 1, "placements": [], "time_scale": 0.0}), True,
         "time_scale must be positive"),
        (to_toml({"run": "r", "testbed": "x", "seed": 1, "images": 1, "placements": []}), False,
         r"has no events\.parquet"),
    ],
)  # fmt: skip
def test_a_folder_without_valid_run_files_is_refused(tmp_path: Path, toml: str | None, events: bool, says: str) -> None:
    if toml is not None:
        (tmp_path / "run.toml").write_text(toml)
    if events:
        write_events(tmp_path, "r", [])
    with pytest.raises(UsageError, match=says) as error:
        load_run(tmp_path)
    assert "\n" not in str(error.value)
    with pytest.raises(UsageError, match="is not a run folder"):
        load_run(tmp_path / "nowhere")


def test_the_digest_of_a_sequence_covers_the_partitions_in_order() -> None:
    whole = hashlib.sha256(b"a\nb").hexdigest()
    assert sequence_digest(["a", "b"]) == f"sha256:{whole}"
    assert sequence_digest(["b", "a"]) != f"sha256:{whole}"
