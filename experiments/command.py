"""What a verb of the command line and the code below it agree on: its options, and how progress is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec

RUN_LIBRARIES = ("pyarrow", "scipy", "highspy", "PIL")  # of the extra `analysis`, what a run imports
SWEEP_LIBRARIES = ("pyarrow", "pyspark", "scipy", "highspy")
PLOT_LIBRARIES = ("matplotlib", "networkx")
PAGE_LIBRARIES = ("pyarrow", "jinja2", "PIL", *PLOT_LIBRARIES)
Tell = Callable[[str, int, int], None]  # (what is going on, done, of how many; 0 of 0: unknown)


def clipped(text: str, most: int) -> str:
    """A text of at most so many characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def counted(number: int, what: str) -> str:
    """``1 run``, ``2 runs``."""
    return f"{number} {what}{'s' * (number != 1)}"


class Option(msgspec.Struct, frozen=True):
    """How a field of a struct is an option of a verb: ``servers: Annotated[int, Option("Image servers.")] = 8``.

    The field says name, type and default. ``flag``: instead of the field's name with dashes; ``also``: other names of
    it; ``shown``: the default as people are told it, where the field's own says too little; ``metavar``: what a value
    is called; ``least``: a number's bound. ``unit``: what of ``emulation.units`` reads it. ``typed`` and ``parse``: the
    type that is given, and how the field's value comes of that.
    """

    help: str
    flag: str = ""
    also: tuple[str, ...] = ()
    shown: str | None = None
    metavar: str | None = None
    least: int | None = None
    unit: Callable[[Any], Any] | None = None
    typed: type[Any] | None = None
    parse: Callable[[Any], Any] | None = None
    envvar: str | None = None

    def named(self, field: str) -> str:
        """The flag of a field that is this option."""
        return self.flag or f"--{field.replace('_', '-')}"


def options_of(struct: type[msgspec.Struct]) -> dict[str, tuple[Any, Option]]:
    """A struct's fields that are options: the type of each, and what is said of it."""
    found = {}
    for name, hint in get_type_hints(struct, include_extras=True).items():
        if get_origin(hint) is Annotated:
            kind, *more = get_args(hint)
            if options := [one for one in more if isinstance(one, Option)]:
                found[name] = kind, options[0]
    return found


def flag(struct: type[msgspec.Struct], field: str) -> str:
    """The flag that gives a field: ``flag(RunConfig, "period_s")`` is ``--period``."""
    return options_of(struct)[field][1].named(field)
