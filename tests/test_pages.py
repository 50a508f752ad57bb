"""Commands of pages print the output that the pages show."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pages
import pictures
import pytest
from pages import PageError, Step, Written, agrees, read_page, run_page

ROOT = Path(__file__).parents[1]
TUTORIALS = sorted(page for page in (ROOT / "docs/tutorials").glob("*.md") if page.name != "index.md")
COMING_FROM = sorted((ROOT / "docs/coming-from").glob("*.md"))
ON_LINKS = {"README.md", "service-on-a-wan.md", "two-machines.md", "mininet-or-containerlab.md"}
"""Pages whose examples open emulated WANs of namespaces."""


def run_pages() -> Iterator[object]:
    """Yield the pages that are run, with marks for pages that are not run at every change."""
    for page in (ROOT / "README.md", *TUTORIALS, *COMING_FROM):
        marks = [pytest.mark.netns] if page.name in ON_LINKS else []
        if page in COMING_FROM or page.name == "two-machines.md":
            marks.append(pytest.mark.long)
        yield pytest.param(page, id=page.name, marks=marks)


@pytest.mark.pages
@pytest.mark.parametrize("page", list(run_pages()))
def test_the_commands_of_a_page_print_the_shown_output(page: Path, tmp_path: Path) -> None:
    assert run_page(page, tmp_path) >= 1


@pytest.mark.long
@pytest.mark.netns
@pytest.mark.timeout(3000)
def test_the_demo_prints_the_output_that_the_readme_shows(tmp_path: Path) -> None:
    assert run_page(ROOT / "README.md", tmp_path, long=True) == 5


def test_the_text_under_the_first_picture_has_the_figures_of_the_simulated_run(tmp_path: Path) -> None:
    story = pictures.simulate()
    pictures.draw(story, tmp_path / "moving.png")
    sentence = f"If its operators move, an image comes every {story.moving_s:.0f} s, else every {story.staying_s:.0f} s"
    for page in (ROOT / "README.md", ROOT / "docs/index.md"):
        assert sentence in page.read_text(encoding="utf-8")
    assert story.lost in story.before.values()
    assert story.lost not in story.after.values()


def test_there_are_five_tutorials() -> None:
    assert len(TUTORIALS) == 5


PAGE = """
```python title="greet.py"
import sys
print(f"Hello, {sys.argv[1]}: 3.5 s")
```
<!-- test: figures vary -->
```console
$ python greet.py you
Hello, you: 17 s
```
"""


def run_text(text: str, folder: Path) -> int:
    """Run a page of this text."""
    page = folder / "page.md"
    page.write_text(text)
    (folder / "work").mkdir()
    return run_page(page, folder / "work")


def test_figures_may_vary_where_the_page_says_so(tmp_path: Path) -> None:
    assert run_text(PAGE, tmp_path) == 1


@pytest.mark.parametrize(
    ("printed", "as_shown"),
    [
        ("h3 sent 1,204 records in -0.5 s, 1e-05 each", True),
        ("h3   sent 7 records in 12 s, 3 each", True),
        ("h4 sent 20 records in 1.5 s, 2 each", False),
        ("h31 sent 20 records in 1.5 s, 2 each", False),
        ("h3 sent many records in 1.5 s, 2 each", False),
    ],
)
def test_figures_vary_but_names_do_not(printed: str, as_shown: bool) -> None:
    step = Step("", "send", ("h3 sent 20 records in 1.5 s, 2 each",), 1, ("figures vary",))
    assert agrees(step, f"{printed}\n") is as_shown


def test_an_output_that_differs_from_the_page_is_an_error_with_the_line(tmp_path: Path) -> None:
    with pytest.raises(PageError, match=r"line 8: 'python greet.py you' printed\nHello, you: 3.5 s"):
        run_text(PAGE.replace("<!-- test: figures vary -->\n", "\n"), tmp_path)


def test_an_exit_status_that_differs_from_the_page_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PageError, match="line 2: 'false' has the exit status 1"):
        run_text("```console\n$ false\n```\n", tmp_path)


def test_a_command_that_goes_on_is_ended_at_the_end(tmp_path: Path) -> None:
    text = "<!-- test: goes on -->\n```console\n$ echo $BASHPID > number; echo up; exec sleep 1000\nup\n```\n"
    assert run_text(text, tmp_path) == 1
    number = int((tmp_path / "work/number").read_text())
    assert not Path(f"/proc/{number}").exists()


def test_a_command_ends_although_signals_are_blocked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "GRACE_S", 0.3)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        test_a_command_that_goes_on_is_ended_at_the_end(tmp_path)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_a_command_that_should_go_on_and_ends_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PageError, match="has ended with 0"):
        run_text("<!-- test: goes on -->\n```console\n$ echo down\nup\n```\n", tmp_path)


def test_commands_share_one_shell(tmp_path: Path) -> None:
    assert run_text("```console\n$ word=kept\n$ echo \\\n    $word\nkept\n```\n", tmp_path) == 2


def test_a_skip_comment_leaves_out_only_the_next_block() -> None:
    page = read_page("<!-- test: skip, too long -->\n```console\n$ one\n```\ntext\n\n```console\n$ two\n```\n")
    assert [example.command for example in page.examples if isinstance(example, Step)] == ["two"]


def test_the_title_of_a_block_is_the_name_of_the_file() -> None:
    (file,) = read_page('```toml title="a/b.toml"\nkey = 1\n```\n').examples
    assert file == Written("a/b.toml", "key = 1\n")


@pytest.mark.parametrize(
    ("shown", "output", "same"),
    [
        (["a", "…", "z"], "a\nb\nc\nz\n", True),
        (["a … z"], "a b c z\n", True),
        (["a … z"], "a b c\n", False),
        (["a", "z"], "a\nb\nz\n", False),
        (["1.5 s"], "1.6 s\n", False),
    ],
)
def test_outputs_are_compared_line_by_line(shown: list[str], output: str, same: bool) -> None:
    assert agrees(Step("", "command", tuple(shown), 1), output) is same
