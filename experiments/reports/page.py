"""Parts of the pages of runs and sweeps: tables of the terminal, and pictures inside the page."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from jinja2 import Environment
from markupsafe import Markup

from thalweg.emulation.reports import page
from thalweg.emulation.reports.page import Sheet, SheetRow

if TYPE_CHECKING:
    from rich.table import Table

PAGE_BYTES = 5_000_000  # of a page that still opens quickly on a phone; see Room
NONE = "–"


TEMPLATES = Path(__file__).parent / "templates"


def templates() -> Environment:
    """Return the templates of these reports, and the common ones."""
    return page.templates(TEMPLATES)


def render(template: str, **values: Any) -> Markup:
    """A template's text with these values."""
    return page.render(template, values, TEMPLATES)


def spread_out(count: int, most: int) -> list[int]:
    """At most so many of so many numbers, evenly, the first and the last included."""
    return [round(i * (count - 1) / (most - 1)) for i in range(most)] if count > most else list(range(count))


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
