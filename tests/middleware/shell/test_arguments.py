from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.forecasting import FORECASTERS
from thalweg.middleware.shell import daemon
from thalweg.middleware.shell.arguments import Arguments, number_of


@pytest.fixture
def parser() -> Arguments:
    made = Arguments("program", "Do it.", "")
    made.add_argument("name", metavar="NAME")
    made.add_argument("--count", type=number_of(int), default=1)
    made.add_argument("--share", type=number_of(float))
    made.add_argument("--file", type=Path)
    return made


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("a --count x", "--count is 'x'; give a whole number; see program --help"),
        ("a --count 1.5", "--count is '1.5'; give a whole number; see program --help"),
        ("a --share much", "--share is 'much'; give a number; see program --help"),
        ("a --file", "argument --file: expected one argument; see program --help"),
        ("", "the following arguments are required: NAME; see program --help"),
        ("a b\nc", "unrecognized arguments: b c; see program --help"),
    ],
)
def test_a_command_line_that_cannot_be_parsed_raises_a_single_line_error(
    parser: Arguments, line: str, says: str
) -> None:
    words = line.split(" ") if line else []
    with pytest.raises(UsageError) as caught:
        parser.parse_args(words)
    assert str(caught.value) == says


def test_numbers_on_a_command_line_are_parsed(parser: Arguments) -> None:
    options = parser.parse_args(["a", "--count", "3", "--share", "0.5"])
    assert (options.name, options.count, options.share) == ("a", 3, 0.5)


def test_the_options_of_a_host_name_the_registered_forecasters() -> None:
    assert [*daemon.parser().names["forecaster"]] == [*FORECASTERS]


def test_a_host_process_refuses_an_invalid_option_with_a_single_line() -> None:
    command = [sys.executable, "-m", "thalweg.middleware.shell.daemon", "--max-operators", "many"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    said = "thalweg host: --max-operators is 'many'; give a whole number; see thalweg host --help\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)
