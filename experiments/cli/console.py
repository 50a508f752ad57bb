"""What verbs print: tables and lines, JSON as the last line, progress on a terminal, and what went wrong.

Answers go to standard output. Progress, notes for people who read JSON, and reasons go to standard error.
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

FILE_WIDTH = 140  # columns of what goes to a file or a pipe
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")]
_Item = TypeVar("_Item")


def output() -> Console:
    """Standard output; wide enough for tables where it is no terminal."""
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = FILE_WIDTH
    return console


def new_table(first: str, *others: str, left: Collection[str] = (), title: str = "") -> Table:
    """An empty table: ``first`` and the columns in ``left`` begin on the left, figures end on the right."""
    made = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, caption_justify="left")
    if title:
        made.title, made.title_justify = Text(title, "bold"), "left"
    made.add_column(first, overflow="fold")
    for name in others:
        made.add_column(name, justify="left" if name in left else "right", no_wrap=name not in left, overflow="fold")
    return made


def print_json(answer: Any) -> None:
    """One JSON object on one line; nan and infinity become null."""
    print(msgspec.json.encode(answer).decode())


def say(as_json: bool, answer: Any, text: str) -> None:
    """The answer for machines, or the same for people."""
    print_json(answer) if as_json else print(text)


def end(wrong: Iterable[str]) -> None:
    """Say what went wrong, if anything, and leave the verb with exit status 1 then."""
    lines = list(wrong)
    sys.stdout.flush()
    for line in lines:
        print(f"thalweg: {line}", file=sys.stderr)
    if lines:
        raise typer.Exit(1)


@contextmanager
def progress() -> Iterator[Tell]:
    """A progress bar on a terminal; nothing elsewhere."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description:28}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total or None)


@contextmanager
def spinner(what: str) -> Iterator[Callable[[str], None]]:
    """A spinner on a terminal, and what changes its text; nothing elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: None
        return
    with console.status(what) as status:
        yield status.update


def followed(items: Sequence[_Item], what: str, *, quiet: bool) -> Iterator[_Item]:
    """The items, with a bar on a terminal while they last, unless it is to be ``quiet``."""
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=quiet or not console.is_terminal) as bar:
        yield from bar.track(items, description=what)
