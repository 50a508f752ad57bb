"""Command lines of host processes, by argparse, with errors of one line."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable
from typing import NoReturn

from thalweg.middleware.errors import UsageError, one_line


class Arguments(argparse.ArgumentParser):
    """Parser with errors of one line (UsageError), where argparse would print its usage and end the process.

    ``names``: the registered names that an option accepts, by option.
    """

    def __init__(self, prog: str, description: str, epilog: str) -> None:
        super().__init__(prog, description=description, epilog=epilog)
        self.names: dict[str, Iterable[str]] = {}

    def error(self, message: str) -> NoReturn:
        text = re.sub(r"^argument ([^:]+): is ", r"\1 is ", one_line(message))
        raise UsageError(f"{text}; see {self.prog} --help")


def number_of(kind: type[int] | type[float]) -> Callable[[str], float]:
    """Return the reader of a number, for ``add_argument(type=…)``. Errors continue the option's name."""
    wanted = "a whole number" if kind is int else "a number"

    def read(text: str) -> float:
        try:
            return kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"is {text!r}; give {wanted}") from None

    return read
