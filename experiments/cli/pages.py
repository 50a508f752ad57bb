"""Help pages: one layout for verbs, groups and the host daemon, printed as panels of at most ``WIDTH`` columns.

Rules:

- A page has a usage line, paragraphs, examples, panels of entries, and a closing line.
- An entry has a name, a text, lists of registered names, and remarks such as the default.
- A paragraph of the form ``Caption: thalweg …`` is an example. Its command is shown on lines that a shell reads.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from rich.box import ROUNDED
from rich.console import Console, Group
from rich.panel import Panel as Box
from rich.text import Text

from thalweg.middleware.shell.arguments import Arguments

HELP = ("-h", "--help")
EVERYTHING = "--help-all"
HELP_TEXT = "Show this page and exit."
EVERYTHING_TEXT = "Show all options and exit."
WIDTH = 100  # columns at most: longer lines are hard to read
NAMES = 26  # columns of the names of entries at most; a longer name stands on a line of its own
EXAMPLE = re.compile(r"(?P<caption>[^:]+): (?P<command>thalweg( .*)?)", re.DOTALL)
_OPTION = r"(?<![\w-])--?[a-zA-Z][\w-]*"


class Entry(NamedTuple):
    """Option, argument or command on a help page.

    ``names`` are the registered names that an option takes, each with its meaning. ``own`` is the form of a name of the
    user's own code.
    """

    name: str
    text: str
    remarks: Sequence[str] = ()
    names: Mapping[str, str] = {}
    own: str = ""


class Panel(NamedTuple):
    """Entries under one title."""

    title: str
    entries: Sequence[Entry]


class Example(NamedTuple):
    """Command line with a caption, which may be empty."""

    caption: str
    command: str


class Page(NamedTuple):
    """Content of a help page, in the order in which it is printed."""

    usage: str
    paragraphs: Sequence[str]
    examples: Sequence[Example]
    panels: Sequence[Panel]
    closing: str = ""


def split_docstring(text: str) -> tuple[list[str], list[Example]]:
    """Return the paragraphs and the examples of a docstring."""
    paragraphs, examples = [], []
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        words = " ".join(paragraph.split())
        if match := EXAMPLE.fullmatch(words):
            caption = match["caption"]
            examples.append(Example("" if caption == "Example" else caption, match["command"]))
        elif words:
            paragraphs.append(words)
    return paragraphs, examples


def group_names(names: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the names of each meaning, joined by commas, with the meaning."""
    by_meaning: dict[str, list[str]] = {}
    for name, meaning in names.items():
        by_meaning.setdefault(meaning, []).append(name)
    return [(", ".join(members), meaning) for meaning, members in by_meaning.items()]


def fold_command(command: str, width: int) -> list[str]:
    """Break a command before options, with backslashes, so that a shell reads the lines as one command."""
    lines = [""]
    for part in re.split(r" (?=-)", command):
        if lines[-1] and len(lines[-1]) + len(part) + 3 > width:
            lines.append(f"  {part}")
        else:
            lines[-1] += f" {part}" if lines[-1] else part
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]


def render(page: Page) -> str:
    """Return the text of a page for standard output, as wide as the terminal, and in colours on a terminal."""
    console = Console(highlight=False, markup=False, emoji=False)
    console.width = min(console.width, WIDTH)
    with console.capture() as capture:
        _print(page, console)
    return capture.get()


def show(page: Page) -> None:
    """Print a page to standard output."""
    sys.stdout.write(render(page))


def _print(page: Page, console: Console) -> None:
    inner = console.width - 2
    lines: list[Text] = [Text()]
    lines += Text.assemble("Usage: ", (page.usage, "bold")).wrap(console, inner)
    for paragraph in page.paragraphs:
        lines += [Text(), *_style(paragraph).wrap(console, inner)]
    if page.examples:
        lines += [Text(), Text().append("Examples" if len(page.examples) > 1 else "Example", "bold")]
        for example in page.examples:
            if example.caption:
                lines += [Text("  ") + line for line in _style(f"{example.caption}:").wrap(console, inner - 2)]
            lines += [Text("    ").append(line, "cyan") for line in fold_command(example.command, inner - 4)]
    for line in lines:
        line.rstrip()
        console.print(Text(" ") + line if line.plain else line, soft_wrap=True)
    console.print()
    for panel in page.panels:
        content = Group(*_lines(panel, console, console.width - 4))
        console.print(Box(content, title=panel.title, title_align="left", border_style="dim", box=ROUNDED))
    if page.closing:
        for line in _style(page.closing).wrap(console, inner):
            console.print(Text(" ") + line, soft_wrap=True)


def _lines(panel: Panel, console: Console, width: int) -> Iterable[Text]:
    """Yield the lines of a panel: names on the left, texts on the right."""
    fitting = [len(entry.name) for entry in panel.entries if len(entry.name) <= NAMES]
    left = max(fitting, default=NAMES) + 2
    for entry in panel.entries:
        texts = _text(entry, console, width - left)
        name = _name(entry.name)
        if len(entry.name) + 2 > left:
            yield name
        elif texts:
            name.pad_right(left - len(name))
            yield name + texts.pop(0)
        else:
            yield name
        for line in texts:
            yield Text(" " * left) + line


def _text(entry: Entry, console: Console, width: int) -> list[Text]:
    """Return the lines to the right of an entry's name."""
    remarks = Text(f"[{'; '.join(entry.remarks)}]", "dim") if entry.remarks else Text()
    lists = group_names(entry.names) + ([(entry.own, "your own")] if entry.own else [])
    lines = [*_style(entry.text).wrap(console, width)] if entry.text else []
    for names, meaning in lists:
        item = Text.assemble((names, "green"), f": {meaning}" if meaning else "").wrap(console, width - 2)
        lines += [Text("  " if number else "- ") + line for number, line in enumerate(item)]
    if remarks:
        if lines and not lists and len(lines[-1].plain.rstrip()) + 1 + len(remarks) <= width:
            lines[-1].rstrip()
            lines[-1].append(" ").append_text(remarks)
        else:
            lines += remarks.wrap(console, width)
    for line in lines:
        line.rstrip()
    return lines


def _name(name: str) -> Text:
    """Return the name of an entry. Options and values have different colours."""
    command = name.islower() and not name.startswith("-")
    text = Text().append(name, "bold cyan" if command else "yellow")
    text.highlight_regex(_OPTION, "bold cyan")
    return text


def _style(text: str) -> Text:
    """Return a text without its backticks. Words between backticks, and options, are in colour."""
    styled = Text()
    for number, part in enumerate(text.split("`")):
        styled.append(part, "cyan" if number % 2 else "")
    styled.highlight_regex(_OPTION, "cyan")
    return styled


# --- options of argparse ------------------------------------------------------------------------------


def page_of(parser: Arguments, *more: Panel) -> Page:
    """Return the page of an argparse parser, whose groups are panels, after the panels ``more``."""
    paragraphs, _ = split_docstring(parser.description or "")
    _, examples = split_docstring(parser.epilog or "")
    panels, words = [], ["[OPTIONS]"]
    for group in parser._action_groups:
        actions = [action for action in group._group_actions if action.help != argparse.SUPPRESS]
        entries = [_of_action(action, parser) for action in actions]
        words += [str(action.metavar) for action in actions if not action.option_strings]
        if entries:
            title = {"positional arguments": "Arguments", "options": "Options"}.get(str(group.title), str(group.title))
            panels.append(Panel(title, entries))
    panels.sort(key=lambda panel: panel.title == "Options")
    return Page(" ".join([parser.prog, *words]), paragraphs, examples, [*more, *panels])


def _of_action(action: argparse.Action, parser: Arguments) -> Entry:
    """Return the entry of an option or argument of argparse."""
    name = ", ".join(action.option_strings) or str(action.metavar)
    if isinstance(action, argparse._HelpAction):
        return Entry(name, HELP_TEXT)
    if action.option_strings and action.nargs != 0:
        name += f" {action.metavar or action.dest.upper()}"
    remarks = []
    if isinstance(action, argparse._AppendAction):
        remarks.append("repeatable")
    elif action.option_strings and action.default not in (None, False, ""):
        value = f"{action.default:g}" if isinstance(action.default, float) else str(action.default)
        remarks.append(f"default: {value}")
    return Entry(name, action.help or "", remarks, dict.fromkeys(parser.names.get(action.dest, ()), ""))
