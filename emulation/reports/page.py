"""Parts of HTML pages: templates and tables.

The templates (``templates``: HTML, SVG, CSS and the script) escape every value except ``Markup``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

TEMPLATES = Path(__file__).parent / "templates"


@cache
def templates(folder: Path = TEMPLATES) -> Environment:
    """Return the templates of a folder, and the common templates."""
    environment = Environment(
        loader=FileSystemLoader([folder, TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["n"] = coordinate
    return environment


def render(template: str, values: Mapping[str, Any], folder: Path = TEMPLATES) -> Markup:
    """Return the text of a template with these values. The template is in ``folder`` or common."""
    return Markup(templates(folder).get_template(template).render(values))


def coordinate(value: float) -> str:
    """Return a number rounded to a tenth, as text."""
    return f"{value:.1f}".removesuffix(".0")


class SheetRow(msgspec.Struct, frozen=True):
    """Row of a table: texts, each with a class or an empty one. ``dim``: the row has less weight."""

    cells: list[tuple[Any, str]]
    dim: bool = False


class Sheet(msgspec.Struct, frozen=True):
    """Table of a page. ``heads``: texts, and whether the column has figures, which are aligned to the right."""

    caption: str
    heads: list[tuple[str, bool]]
    rows: list[SheetRow]


def sheet(caption: str, heads: Sequence[str], rows: Iterable[Sequence[Any]], *, left: int = 1) -> Sheet:
    """Return a table of texts. ``left``: number of columns that have texts and are aligned to the left."""
    sides = [(head, i >= left) for i, head in enumerate(heads)]
    return Sheet(caption, sides, [SheetRow([(cell, "") for cell in row]) for row in rows])
