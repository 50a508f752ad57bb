"""What a report's page is put together from: templates, tables, and pictures inside the page.

The templates (``templates``: HTML, SVG, CSS and the script) escape whatever they are given but ``Markup``.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

if TYPE_CHECKING:
    from rich.table import Table

PAGE_BYTES = 5_000_000  # of a page that still opens quickly on a phone; see Room
NONE = "–"


@cache
def templates() -> Environment:
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["n"] = coordinate
    return made


def render(template: str, **values: Any) -> Markup:
    """A template's text with these values."""
    return Markup(templates().get_template(template).render(values))


def spread_out(count: int, most: int) -> list[int]:
    """At most so many of so many numbers, evenly, the first and the last included."""
    return [round(i * (count - 1) / (most - 1)) for i in range(most)] if count > most else list(range(count))


def coordinate(value: float) -> str:
    """To a tenth."""
    return f"{value:.1f}".removesuffix(".0")


class Room:
    """How many bytes of pictures a page can still take; those that do not fit are left out and counted."""

    def __init__(self, size_bytes: int = PAGE_BYTES) -> None:
        self.left_bytes, self.left_out = size_bytes, 0

    def take(self, data: bytes) -> bool:
        """Whether a picture fits, as text in the page, and if so its room is taken."""
        size_bytes = -(-len(data) // 3) * 4 + 200
        if size_bytes > self.left_bytes:
            self.left_out += 1
            return False
        self.left_bytes -= size_bytes
        return True


class Picture(msgspec.Struct, frozen=True):
    """An image inside the page. ``kind``: png or jpeg; ``alt``: what it shows, for who cannot see it."""

    data: bytes
    kind: str
    alt: str
    caption: str = ""

    @property
    def source(self) -> str:
        return f"data:image/{self.kind};base64,{base64.b64encode(self.data).decode()}"


def fewer_colours(png: bytes) -> bytes:
    """A plot with 256 colours, which takes a third and looks the same; OSError when it is no picture."""
    from PIL import Image

    with Image.open(io.BytesIO(png)) as image:
        few = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    out = io.BytesIO()
    few.save(out, "PNG", optimize=True)
    return min(out.getvalue(), png, key=len)


class SheetRow(msgspec.Struct, frozen=True):
    """Texts, each with a class or none; ``dim``: of less weight."""

    cells: list[tuple[Any, str]]
    dim: bool = False


class Sheet(msgspec.Struct, frozen=True):
    """A table. ``heads``: texts, and whether the column has figures, which stand at the right."""

    caption: str
    heads: list[tuple[str, bool]]
    rows: list[SheetRow]


def sheet(caption: str, heads: Sequence[str], rows: Iterable[Sequence[Any]], *, left: int = 1) -> Sheet:
    """A table of texts; ``left``: how many columns have texts, which stand at the left."""
    sides = [(head, i >= left) for i, head in enumerate(heads)]
    return Sheet(caption, sides, [SheetRow([(cell, "") for cell in row]) for row in rows])


def from_rich(made: Table, caption: str | None = None) -> Sheet:
    """A table of the terminal with the same cells; its title is the caption, unless there is another."""
    heads = [(str(column.header), column.justify == "right") for column in made.columns]
    cells = zip(*(column.cells for column in made.columns), strict=True)
    rows = [
        SheetRow([(str(cell), _tint(cell)) for cell in row], of.style == "dim")
        for row, of in zip(cells, made.rows, strict=True)
    ]
    return Sheet(str(made.title or "") if caption is None else caption, heads, rows)


def _tint(cell: object) -> str:
    """The terminal's red and green as classes."""
    style = str(getattr(cell, "style", ""))
    return "bad" if "red" in style else "good" if "green" in style else ""
