"""Help pages: one layout for every verb and group, from tables and docstrings that agree."""

from __future__ import annotations

import inspect
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from command_lines import parse, verbs

from thalweg.experiments.cli import verbs as top
from thalweg.experiments.cli.main import invoke
from thalweg.experiments.cli.pages import Entry, Page, Panel, fold_command, group_names, render, split_docstring
from thalweg.experiments.cli.testbed import app as testbed
from thalweg.experiments.command import options_of
from thalweg.experiments.run_config import RunConfig

HEAVY = {"numpy", "zmq", "pyarrow", "scipy", "matplotlib", "networkx", "pyspark", "pydantic"}

ROOT = Path(__file__).parents[3]
COMMANDS = dict(verbs())
PATHS = [*COMMANDS, ("host", "drain")]


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("FORCE_COLOR", "THALWEG_TRACES"):
        monkeypatch.delenv(name, raising=False)


def page(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return the page that ``thalweg WORDS`` prints."""
    assert invoke([*words]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    return output.out


def commands(text: str) -> list[str]:
    """Return the commands of a page's examples, each as one line."""
    joined = re.sub(r" \\\n\s+", " ", text)
    return re.findall(r"^ {5}(thalweg .*)$", joined, re.MULTILINE)


@pytest.mark.parametrize("words", PATHS, ids=lambda words: " ".join(words) or "thalweg")
def test_every_page_has_the_same_layout(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    short, whole = (page(capsys, *words, option) for option in ("--help", "--help-all"))
    assert page(capsys, *words, "-h") == short
    assert short.startswith(f"\n Usage: {' '.join(['thalweg', *words])} [OPTIONS]")
    for text in (short, whole):
        lines = text.splitlines()
        assert max(map(len, lines)) <= 80
        assert not re.search(r"<(str|int|bool|float|path|list)|range|TEXT", text)
        assert "│ -h, --help" in text
        assert "╭─ Options ─" in text
    has_more = re.search("│ --help-all +Show all options", short) is not None
    assert (whole != short) == has_more
    assert (f"`{'thalweg ' + ' '.join(words)} --help-all`".strip("`") in short.splitlines()[-1]) == has_more
    for line in commands(short):
        parse(shlex.split(line)[1:])
    assert commands(short), "the page has no example"


def test_the_page_of_run_has_common_options_first_and_the_rest_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    short, whole = page(capsys, "run", "-h"), page(capsys, "run", "--help-all")
    panels = re.findall("╭─ (.*?) ─", short)
    assert panels == ["Workload", "Network", "Placement", "Faults", "Simulation (--testbed sim)", "Options"]
    assert short.count("\n") <= 130
    for name, (_, option) in options_of(RunConfig).items():
        entry = re.compile(f"│ {option.named(name)}[ ,]")
        assert entry.search(whole)
        assert bool(entry.search(short)) == option.common, option
    placement = whole[whole.index("╭─ Placement") : whole.index("╭─ Faults")]
    assert re.findall(r"^│ (--\w+)", placement, re.MULTILINE)[:3] == ["--placement", "--cost", "--period"]
    rare = sum(not option.common for _, option in options_of(RunConfig).values())
    assert short.rstrip().endswith(f"{rare} more options of this verb: thalweg run --help-all")


def test_tables_of_verbs_repeat_the_first_lines_of_docstrings() -> None:
    for group, table in (((), top.VERBS), (("testbed",), testbed.VERBS)):
        for name, verb in table.items():
            command = COMMANDS[*group, name]
            assert verb.short == inspect.cleandoc(command.help).partition("\n")[0], name


def test_the_summary_of_every_verb_is_a_single_line() -> None:
    for words, command in COMMANDS.items():
        first = inspect.cleandoc(command.help).split("\n\n")[0]
        assert "\n" not in first and first.endswith("."), words


def test_values_of_options_have_a_name() -> None:
    for words, command in COMMANDS.items():
        for option in command.params:
            if not getattr(option, "is_flag", False):
                assert option.metavar, f"{' '.join(words)} {option.name}"


@pytest.mark.parametrize("line", ["--help", "-h", "--version", "-V", "testbed --help", "host --help", ""])
def test_help_and_version_import_no_heavy_module(line: str) -> None:
    code = "import sys; from thalweg.experiments.cli.main import invoke; status = invoke(sys.argv[1:])"
    heavy = HEAVY - {"numpy", "zmq"} if line == "host --help" else HEAVY  # the daemon's own options need them
    code += f"; print(status, {heavy!r} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code, *line.split()], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == ("2 set()" if line == "" else "0 set()")


def test_the_version_has_a_short_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert page(capsys, "-V") == page(capsys, "--version")


def test_help_after_a_command_is_the_page_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert "╭─ Up and down" in page(capsys, "testbed", "-h")
    assert "Usage: thalweg testbed up" in page(capsys, "testbed", "up", "-h")
    assert "Usage: thalweg testbed exec" in page(capsys, "testbed", "exec", "-h")
    assert "Usage: thalweg run" in page(capsys, "run", "--servers", "x", "-h")
    assert invoke(["testbed", "exec", "h1", "--", "program", "-h"]) == 2
    assert "no testbed is up" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("thalweg tr", ["traces"]),
        ("thalweg testbed rest", ["restore"]),
        ("thalweg run --help-", ["--help-all"]),
        ("thalweg run --placement cost-space-l", ["cost-space-local"]),
        ("thalweg run --kernel u", ["uml"]),
        ("thalweg place --planner od", ["odp"]),
    ],
)
def test_a_shell_completes_verbs_options_and_names(
    words: str, offered: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environment = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1), "_THALWEG_COMPLETE": "complete_bash"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert invoke([]) == 0
    assert capsys.readouterr().out.split() == offered


def test_a_shell_completes_verbs_without_importing_heavy_modules() -> None:
    code = "import sys; from thalweg.experiments.cli.main import invoke; status = invoke([])"
    code += f"; print(status, {HEAVY!r} & {{*sys.modules}})"
    environment = {"COMP_WORDS": "thalweg ", "COMP_CWORD": "1", "_THALWEG_COMPLETE": "complete_bash"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [*top.VERBS, "0", "set()"]


@pytest.mark.parametrize("words", ["run", "place", "keys new", "traces generate", "testbed plan"])
def test_examples_of_help_pages_work(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run the examples that need neither root nor results of other examples."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    tried = 0
    for line in commands(page(capsys, *words.split(), "-h")):
        if words != "run" or "--testbed sim" in line:
            tried += 1
            assert invoke(shlex.split(line)[1:]) == 0, capsys.readouterr().err
    capsys.readouterr()
    assert tried


# --- pages --------------------------------------------------------------------------------------------


def test_a_docstring_is_split_into_paragraphs_and_examples() -> None:
    text = """Do it.

    All of it,
    at once.

    Example: thalweg do it

    In a hurry: thalweg do it
    --now
    """
    paragraphs, examples = split_docstring(inspect.cleandoc(text))
    assert paragraphs == ["Do it.", "All of it, at once."]
    assert examples == [("", "thalweg do it"), ("In a hurry", "thalweg do it --now")]


def test_commands_are_broken_before_options() -> None:
    command = 'thalweg run --servers 8 --option objective=\'{"a": 1, "b": 2}\' --out runs/a'
    lines = fold_command(command, 30)
    assert lines == [
        "thalweg run --servers 8 \\",
        '  --option objective=\'{"a": 1, "b": 2}\' \\',
        "  --out runs/a",
    ]
    assert shlex.split("\n".join(lines).replace("\\\n", "")) == shlex.split(command)


def test_names_with_the_same_meaning_are_grouped() -> None:
    names = {"a": "stays", "b": "moves", "c": "stays", "d": ""}
    assert group_names(names) == [("a, c", "stays"), ("b", "moves"), ("d", "")]


def test_an_entry_has_lists_and_remarks_below_the_text() -> None:
    entries = [
        Entry(
            "--way NAME", "Way to go.", ["default: left"], {"left": "by the river", "right": ""}, "package.module:Way"
        ),
        Entry("--a-name-that-is-too-long-for-its-column N", "Number."),
        Entry("--now", "Go at once.", ["env: NOW"]),
    ]
    text = render(Page("go [OPTIONS]", ["Go."], [], [Panel("Options", entries)], "See `go --help-all`"))
    assert [line.rstrip() for line in text.splitlines()] == [
        "",
        " Usage: go [OPTIONS]",
        "",
        " Go.",
        "",
        f"╭─ Options {'─' * 68}╮",
        *(
            f"│ {line:76} │"
            for line in (
                "--way NAME  Way to go.",
                "            - left: by the river",
                "            - right",
                "            - package.module:Way: your own",
                "            [default: left]",
                "--a-name-that-is-too-long-for-its-column N",
                "            Number.",
                "--now       Go at once. [env: NOW]",
            )
        ),
        f"╰{'─' * 78}╯",
        " See go --help-all",
    ]


def test_a_wide_terminal_does_not_make_long_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert max(map(len, page(capsys, "run", "-h").splitlines())) == 100


def test_a_page_has_colours_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    example = Page("go [OPTIONS]", [], [], [Panel("Options", [Entry("--now", "Go at once.")])])
    assert "\x1b[" not in render(example)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    (line,) = (line for line in render(example).splitlines() if "--now" in line)
    assert "\x1b[1;36m--now\x1b[0m  Go at once." in line
