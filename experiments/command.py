"""Contract between the verbs of the command line and the code below the verbs: options and reports of progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec

RUN_LIBRARIES = ("pyarrow", "scipy", "highspy", "PIL")  # libraries of the extra `analysis` that a run imports
SWEEP_LIBRARIES = ("pyarrow", "pyspark", "scipy", "highspy")
PLOT_LIBRARIES = ("matplotlib", "networkx")
PAGE_LIBRARIES = ("pyarrow", "jinja2", "PIL", *PLOT_LIBRARIES)
Tell = Callable[[str, int, int], None]  # (present step, done, total; 0 of 0: unknown)
Names = Callable[[], Mapping[str, str]]  # of a registry: each name, with its meaning

# Panels of help pages, in the order in which they are shown. Options without a panel follow them.
WORKLOAD, NETWORK, PLACEMENT, FAULTS = "Workload", "Network", "Placement", "Faults"
SIMULATION, LIMITS = "Simulation (--testbed sim)", "Code and limits"
PANELS = (WORKLOAD, NETWORK, PLACEMENT, FAULTS, SIMULATION, LIMITS)


def clipped(text: str, most: int) -> str:
    """Return a text of at most ``most`` characters, with an ellipsis if it is cut."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


class Option(msgspec.Struct, frozen=True):
    """Option of a verb, attached to a field of a struct: ``servers: Annotated[int, Option("Image servers.")] = 8``.

    The field gives name, type and default. ``flag`` replaces the name, ``also`` adds other names, and ``shown``
    replaces the default in the help text. ``metavar`` names a value. ``least`` is the bound of a number. ``unit``, a
    function of ``emulation.links.units``, reads a quantity. ``typed`` is the type on the command line, and ``parse``
    converts it to the field's value.

    ``names`` returns the registered names that the option takes. ``own`` is the form of a name of the user's own code.
    ``panel`` is the panel of the help text. An option that is not ``common`` is shown by ``--help-all`` alone.
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
    names: Names | None = None
    own: str = ""
    panel: str = ""
    common: bool = True

    def named(self, field: str) -> str:
        """Return the flag of this option for the field ``field``."""
        return self.flag or f"--{field.replace('_', '-')}"


def options_of(struct: type[msgspec.Struct]) -> dict[str, tuple[Any, Option]]:
    """Return the fields of a struct that are options, by name: the type and the ``Option`` of each."""
    fields = {}
    for name, hint in get_type_hints(struct, include_extras=True).items():
        if get_origin(hint) is Annotated:
            kind, *more = get_args(hint)
            if options := [item for item in more if isinstance(item, Option)]:
                fields[name] = kind, options[0]
    return fields


def flag(struct: type[msgspec.Struct], field: str) -> str:
    """Return the flag of a field: ``flag(RunConfig, "period_s")`` is ``--period``."""
    return options_of(struct)[field][1].named(field)
