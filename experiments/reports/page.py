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

PAGE_BYTES = 5_000_000  # of the pictures of a page that opens quickly on a phone; see Room
NONE = "–"


TEMPLATES = Path(__file__).parent / "templates"


def templates() -> Environment:
    """Return the templates of these reports, and the common templates."""
    return page.templates(TEMPLATES)


def render(template: str, **values: Any) -> Markup:
    """Return the text of a template, filled with the given values."""
    return page.render(template, values, TEMPLATES)


def spread_out(count: int, most: int) -> list[int]:
    """Return at most ``most`` evenly spread numbers below ``count``, with the first and the last number."""
    return [round(i * (count - 1) / (most - 1)) for i in range(most)] if count > most else list(range(count))


class Room:
    """Bytes that a page still has for pictures. Pictures that do not fit are left out and counted."""

    def __init__(self, size_bytes: int = PAGE_BYTES) -> None:
        self.left_bytes, self.left_out = size_bytes, 0

    def take(self, data: bytes) -> bool:
        """Reserve room for a picture, encoded as text. Return whether the picture fits."""
        size_bytes = -(-len(data) // 3) * 4 + 200
        if size_bytes > self.left_bytes:
            self.left_out += 1
            return False
        self.left_bytes -= size_bytes
        return True


class Picture(msgspec.Struct, frozen=True):
    """Image inside the page. ``kind``: png or jpeg. ``alt``: description for readers who cannot see the image."""

    data: bytes
    kind: str
    alt: str
    caption: str = ""

    @property
    def source(self) -> str:
        return f"data:image/{self.kind};base64,{base64.b64encode(self.data).decode()}"


def fewer_colours(png: bytes) -> bytes:
    """Return a plot with 256 colours, which needs a third of the bytes. Raise OSError if ``png`` is not a picture."""
    from PIL import Image

    with Image.open(io.BytesIO(png)) as image:
        few = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    out = io.BytesIO()
    few.save(out, "PNG", optimize=True)
    return min(out.getvalue(), png, key=len)


def from_rich(made: Table, caption: str | None = None) -> Sheet:
    """Return a table of the terminal as a table of the page. If ``caption`` is None, the title becomes the caption."""
    heads = [(str(column.header), column.justify == "right") for column in made.columns]
    cells = zip(*(column.cells for column in made.columns), strict=True)
    rows = [
        SheetRow([(str(cell), _tint(cell)) for cell in row], of.style == "dim")
        for row, of in zip(cells, made.rows, strict=True)
    ]
    return Sheet(str(made.title or "") if caption is None else caption, heads, rows)


def _tint(cell: object) -> str:
    """Return the CSS class for a cell that is red (``bad``) or green (``good``) in the terminal."""
    style = str(getattr(cell, "style", ""))
    return "bad" if "red" in style else "good" if "green" in style else ""
