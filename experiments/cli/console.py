"""Output of the verbs: tables and lines, JSON as the last line, progress on a terminal, and reasons of a failure.

Answers go to standard output. Progress, notes for readers of JSON, and reasons go to standard error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, TypeVar

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from thalweg.experiments.command import Tell

FILE_WIDTH = 140  # columns of output to a file or a pipe
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")]
_Item = TypeVar("_Item")


def output() -> Console:
    """Return the console of standard output. Without a terminal, the console is wide enough for tables."""
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = FILE_WIDTH
    return console


def new_table(first: str, *others: str, left: Collection[str] = (), title: str = "") -> Table:
    """Return an empty table. ``first`` and the columns in ``left`` begin on the left, figures end on the right."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, caption_justify="left")
    if title:
        table.title, table.title_justify = Text(title, "bold"), "left"
    table.add_column(first, overflow="fold")
    for name in others:
        table.add_column(name, justify="left" if name in left else "right", no_wrap=name not in left, overflow="fold")
    return table


def print_json(answer: Any) -> None:
    """Print an object as JSON on one line. NaN and infinity become null."""
    print(msgspec.json.encode(answer).decode())


def say(as_json: bool, answer: Any, text: str) -> None:
    """Print ``answer`` as JSON, or ``text`` for people."""
    print_json(answer) if as_json else print(text)


def end(wrong: Iterable[str]) -> None:
    """Print each line to standard error as the reason of a failure. If there is a line, exit with status 1."""
    lines = list(wrong)
    sys.stdout.flush()
    for line in lines:
        print(f"thalweg: {line}", file=sys.stderr)
    if lines:
        raise typer.Exit(1)


@contextmanager
def progress() -> Iterator[Tell]:
    """Show a progress bar on a terminal, and yield the function that updates the bar. Show nothing elsewhere."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description:28}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total or None)


@contextmanager
def spinner(what: str) -> Iterator[Callable[[str], None]]:
    """Show a spinner on a terminal, and yield the function that changes its text. Show nothing elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: None
        return
    with console.status(what) as status:
        yield status.update


def followed(items: Sequence[_Item], what: str, *, quiet: bool) -> Iterator[_Item]:
    """Yield the items. On a terminal a bar shows the progress, unless ``quiet``."""
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=quiet or not console.is_terminal) as bar:
        yield from bar.track(items, description=what)
