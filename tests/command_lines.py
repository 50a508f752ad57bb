"""Command lines of ``thalweg`` for tests: all verbs, and the parsing of a line without its effect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import typer

from thalweg.experiments.cli.commands import Group
from thalweg.experiments.cli.host import drain_parser
from thalweg.experiments.cli.verbs import app
from thalweg.middleware.shell import daemon


def parse(words: Sequence[str]) -> None:
    """Parse a command line as ``thalweg`` does, without its effect. ``--help`` prints the page."""
    if words[0] == "host":  # host parses its options itself
        draining = words[1:2] == ["drain"]
        (drain_parser().parse_args(words[2:]) if draining else daemon.parser().parse_args(words[1:]))
        return
    command: Any = typer.main.get_command(app)
    with suppress(typer.Exit):
        context = command.make_context("thalweg", list(words))
        while isinstance(command, Group):
            name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
            context = command.make_context(name, rest, parent=context)


def verbs() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the words and the command of every group and verb."""

    def below(words: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
        yield words, command
        if isinstance(command, Group):
            for name in command.commands:
                yield from below((*words, name), command.loaded(name))

    yield from below((), typer.main.get_command(app))
