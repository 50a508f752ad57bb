"""Line numbers of paths in TOML, compared with the result of tomllib."""

from __future__ import annotations

import tomllib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from thalweg.emulation.scenarios.toml import Path, line_of

TEXT = '''# a comment = [1]
name = "a # b [c]"   # not = a key
"odd key".sub = 'x'
many = """
first = 1
"quoted"
"""
hosts = [
  "a",  # one, two
  { name = "b", tags = ["x",
    "y"] },
]
when = 1979-05-27 07:32:00
number = -1.5e3

[links]
rate = "10mbit"
[[link]]
from = "a"
to = ["b", "c"]
[[link]]
both = true
  [link.more]
  deep.er = [[1, 2], [3]]
'''


def paths(value: Any, path: Path = ()) -> set[Path]:
    """Return every path of a value that tomllib has read."""
    items: list[tuple[str | int, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    return {path}.union(*(paths(part, (*path, key)) for key, part in items))


def test_line_of_finds_the_line_of_every_path() -> None:
    for path, line in {
        ("name",): 2,
        ("odd key", "sub"): 3,
        ("many",): 4,
        ("hosts",): 8,
        ("hosts", 0): 9,
        ("hosts", 1, "tags"): 10,
        ("hosts", 1, "tags", 1): 11,
        ("when",): 13,
        ("links",): 16,
        ("links", "rate"): 17,
        ("link", 0): 18,
        ("link", 0, "to", 1): 20,
        ("link", 1): 21,
        ("link", 1, "both"): 22,
        ("link", 1, "more", "deep", "er", 1, 0): 24,
    }.items():
        assert line_of(TEXT, path) == line, path
    assert line_of(TEXT, ("link", 0, "rate")) == 18  # what is not there: where it would be
    assert line_of(TEXT, ("nothing",)) == 1
    assert line_of(TEXT, ("number", 3)) == line_of(TEXT, ("number", "a")) == 14


WORDS = st.text(st.sampled_from("ab#[]{}=,.'\"\\ \n"), max_size=6)
VALUES = st.recursive(
    WORDS | st.integers(-5, 5) | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)


def written(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{escaped}"'
    if isinstance(value, list):
        return "[\n" + "".join(f"{written(item)},  # ]\n" for item in value) + "]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{written(key)} = {written(item)}" for key, item in value.items()) + " }"
    return str(value)


@given(st.dictionaries(WORDS, VALUES, max_size=4), st.dictionaries(WORDS, VALUES, max_size=3), st.data())
def test_line_of_finds_paths_in_generated_toml(
    top: dict[str, Any], inside: dict[str, Any], data: st.DataObject
) -> None:
    text = "".join(f"{written(key)} = {written(value)}\n" for key, value in top.items())
    if "t" not in top:
        text += "\n[[t]]\n" + "".join(f"{written(key)} = {written(value)}\n" for key, value in inside.items())
    tree = tomllib.loads(text)
    path = data.draw(st.sampled_from(sorted(paths(tree), key=repr)))
    line, value = text.split("\n")[line_of(text, path) - 1], tree
    for key in path:
        value = value[key]
    if path in ((), ("t",), ("t", 0)):
        return
    begins = written(path[-1] if isinstance(path[-1], str) else value).split("\n")[0]
    assert line.startswith(begins) if len(path) == 1 or isinstance(path[-1], int) else begins in line
