"""Foreign files are read in bounded memory and time, with the values that the standard parser gives."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from thalweg.middleware.errors import UsageError
from thalweg.middleware.files.reading import MAX_DEPTH, decode_toml, read_bounded

SOUND = [
    "\"a.b\".'c.d' . e = 1.5",
    "x = " + "[" * MAX_DEPTH + "]" * MAX_DEPTH,
    ".".join("a" * MAX_DEPTH) + " = 1",
    'x = "' + "[" * 99 + '"  # ' + "{" * 99 + "\ny = 2",
    'x = """' + '\n[{.\\"' * 99 + '"""',
    "x = '''" + '[."\n' * 99 + "'''",
    "\n".join(f"k{i} = [{i}.5, 2.5]\n[t{i}.u]" for i in range(99)),
    "when = 1979-05-27T07:32:00.999Z",
]
DEEPER = [
    "x = " + "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1),
    "\nx = " + "{a = " * (MAX_DEPTH + 1),
    ".".join('"' + "a" * 3 + '"' for _ in range(MAX_DEPTH + 2)) + " = 1",
    " . \t".join("a" * (MAX_DEPTH + 2)) + " = 1",
    "[" + ".".join("a" * (MAX_DEPTH + 2)) + "]",
    "x = '''" + "[" * 99 + "'''\ny = " + "[" * 99,
    "x = " + "9" * 5_000,
]
NONE = ['x = """' + '\\"""\n' * 200_000, "x = '''" + "'\n" * 200_000, '"' * 200_001, "'" * 200_001, "x = [", "\\" * 99]


@pytest.mark.parametrize("text", SOUND)
def test_a_file_within_the_depth_limit_is_read(text: str) -> None:
    assert decode_toml(text) == tomllib.loads(text)


@pytest.mark.parametrize("text", DEEPER)
def test_a_file_over_the_depth_limit_is_refused_with_the_line(text: str) -> None:
    with pytest.raises(ValueError, match=rf"\(at line {text.count(chr(10), 0, text.rfind('= [')) + 1}, "):
        decode_toml(text)


@pytest.mark.parametrize("text", NONE)
def test_an_unterminated_value_is_refused_with_the_position(text: str) -> None:
    with pytest.raises(ValueError, match=r"\(at "):
        decode_toml(text)


def test_a_file_over_the_size_limit_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(9))
    assert read_bounded(tmp_path / "a", 9) == bytes(9)
    with pytest.raises(UsageError, match="a has more than 8 bytes"):
        read_bounded(tmp_path / "a", 8)
    (tmp_path / "kernels").symlink_to("/proc/self/stat")  # whose size is 0
    with pytest.raises(UsageError, match="kernels has more than 1 bytes"):
        read_bounded(tmp_path / "kernels", 1)
