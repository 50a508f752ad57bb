"""The parts a report's page is put together from: text that is safe, tables, pictures, and the page around them."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

PAGE_BYTES = 5_000_000  # of a page that still opens quickly on a phone; see Room
NONE = "–"


class Room:
    """How many bytes of pictures a page can still take; those that do not fit are left out and counted."""

    def __init__(self, size_bytes: int = PAGE_BYTES) -> None:
        self.left_bytes, self.left_out = size_bytes, 0

    def take(self, size_bytes: int) -> bool:
        """Whether so much fits, and if so it is taken."""
        if size_bytes > self.left_bytes:
            self.left_out += 1
            return False
        self.left_bytes -= size_bytes
        return True


def esc(text: object) -> str:
    """Text for the page: also within an attribute's double quotes."""
    return html.escape(str(text), quote=True)


Cell = str | tuple[str, str]  # ready HTML, or that and a class


def table(
    caption: str, head: Sequence[str], rows: Iterable[Sequence[Cell]], *, left: int = 1, style: str = "figures"
) -> str:
    """A table of ready HTML under text heads; the first cell of a row is its head, and has no class of its own.

    ``left``: how many columns are texts, which stand at the left; figures stand at the right.
    """
    lines = [f'<div class="scroll"><table class="{esc(style)}"><caption>{esc(caption)}</caption><thead><tr>']
    lines += [f'<th scope="col"{_side(i, left)}>{esc(name)}</th>' for i, name in enumerate(head)]
    lines.append("</tr></thead><tbody>")
    for row in rows:
        cells = [
            f'<td class="{cell[1]}">{cell[0]}</td>' if isinstance(cell, tuple) else f"<td{_side(i, left)}>{cell}</td>"
            for i, cell in enumerate(row[1:], 1)
        ]
        lines.append(f'<tr><th scope="row">{row[0]}</th>{"".join(cells)}</tr>')
    lines.append("</tbody></table></div>")
    return "\n".join(lines)


def _side(column: int, left: int) -> str:
    return "" if column < left else ' class="n"'


def from_rich(made: Table, caption: str | None = None, *, rows: int | None = None) -> str:
    """A table of the terminal with the same cells, or its first ``rows``; its title is the caption."""
    columns = made.columns
    cells = [[_text(cell) for cell in column.cells] for column in columns]
    title = caption if caption is not None else _plain(made.title)
    lines = [f'<div class="scroll"><table class="figures"><caption>{esc(title)}</caption><thead><tr>']
    sides = [' class="n"' if column.justify == "right" else "" for column in columns]
    for column, side in zip(columns, sides, strict=True):
        lines.append(f'<th scope="col"{side}>{esc(_plain(column.header))}</th>')
    lines.append("</tr></thead><tbody>")
    for number, row in enumerate(zip(*cells, strict=True)):
        if rows is not None and number >= rows:
            break
        dim = ' class="dim"' if made.rows[number].style == "dim" else ""
        head = f'<th scope="row"{sides[0]}>{row[0]}</th>'
        rest = (f"<td{side}>{cell}</td>" for cell, side in zip(row[1:], sides[1:], strict=True))
        lines.append(f"<tr{dim}>{head}{''.join(rest)}</tr>")
    lines.append("</tbody></table></div>")
    return "\n".join(lines)


def _plain(text: object) -> str:
    return "" if text is None else str(text)


def _text(cell: object) -> str:
    """A cell as HTML; the terminal's red and green become classes."""
    style = str(getattr(cell, "style", ""))
    tint = "bad" if "red" in style else "good" if "green" in style else ""
    return f'<span class="{tint}">{esc(cell)}</span>' if tint else esc(cell)


def picture(data: bytes, kind: str, alt: str, caption: str = "", *, width: int | None = None) -> str:
    """An image inside the page. ``kind``: png or jpeg."""
    size = "" if width is None else f' width="{width}"'
    source = base64.b64encode(data).decode()
    below = f"<figcaption>{esc(caption)}</figcaption>" if caption else ""
    return f'<figure><img alt="{esc(alt)}"{size} src="data:image/{kind};base64,{source}">{below}</figure>'


def fewer_colours(png: bytes) -> bytes:
    """A plot with 256 colours, which takes a third and looks the same; OSError when it is no picture."""
    from PIL import Image

    with Image.open(io.BytesIO(png)) as image:
        few = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    out = io.BytesIO()
    few.save(out, "PNG", optimize=True)
    return min(out.getvalue(), png, key=len)


def encoded_bytes(size_bytes: int) -> int:
    """What an image of this size takes in the page."""
    return -(-size_bytes // 3) * 4 + 200


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """A list of names and ready HTML; pairs without a text are left out."""
    rows = "".join(f"<dt>{esc(name)}</dt><dd>{text}</dd>" for name, text in pairs if text)
    return f"<dl>{rows}</dl>"


def bullets(lines: Iterable[str], style: str = "notes") -> str:
    """A list of texts; nothing when there are none."""
    items = "".join(f"<li>{esc(line)}</li>" for line in lines)
    return f'<ul class="{esc(style)}">{items}</ul>' if items else ""


def folded(title: str, body: str) -> str:
    """What is shown when asked for."""
    return f"<details><summary>{esc(title)}</summary>{body}</details>"


def page(title: str, body: str) -> str:
    """The whole document; it asks for nothing from anywhere, and browsers are told so."""
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{esc(policy)}">
<title>{esc(title)}</title>
<style>{STYLE}</style>
</head>
<body>
{body}
<script>{SCRIPT}</script>
</body>
</html>
"""


STYLE = """
:root { --ground: #ffffff; --ink: #222222; --soft: #666666; --line: #dddddd; --panel: #f6f7f8; --link: #0055aa;
  --bad: #b00020; --good: #1a7a3c; --edge: #8d99a6; --tree: #c4ccd4;
  --e0: #d9f0e0; --e1: #edf3cf; --e2: #fbe6b5; --e3: #f7c19a; --e4: #f09a94; }
@media (prefers-color-scheme: dark) {
  :root { --ground: #16181b; --ink: #e6e6e6; --soft: #a0a4a8; --line: #3a3f45; --panel: #1f2327; --link: #7db7ff;
    --bad: #ff7a85; --good: #6fd08c; --edge: #8a949e; --tree: #4a525b;
    --e0: #1d4a2d; --e1: #454f1c; --e2: #634a12; --e3: #74401c; --e4: #80302c; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 70rem; background: var(--ground); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: .5rem 0; }
h2 { font-size: 1.35rem; margin: 2.5rem 0 .5rem; padding-top: .6rem; border-top: 2px solid var(--line); }
h3 { font-size: 1.1rem; margin: 1.8rem 0 .4rem; }
h4 { font-size: 1rem; margin: 1.2rem 0 .3rem; }
h1, h2, h3, h4, p, li, dd, caption, figcaption, td, th { overflow-wrap: anywhere; }
a { color: var(--link); }
.soft, figcaption, .hint { color: var(--soft); font-size: .88rem; }
nav ul, .notes { padding-left: 1.2rem; }
.wrong { padding: .6rem .6rem .6rem 1.8rem; border-left: 4px solid var(--bad); color: var(--bad); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: .6rem 0; }
dt { color: var(--soft); } dd { margin: 0; }
.scroll { overflow-x: auto; margin: .8rem 0; }
table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding-bottom: .3rem; }
th, td { padding: .25rem .6rem; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
td, th { overflow-wrap: normal; min-width: 2.5rem; }
thead th { border-bottom: 2px solid var(--line); color: var(--soft); font-weight: 600; white-space: nowrap; }
tbody th { font-weight: 500; }
.n { text-align: right; white-space: nowrap; }
tr.dim > * { color: var(--soft); }
.bad { color: var(--bad); font-weight: 600; } .good { color: var(--good); }
.proofs td { text-align: center; white-space: nowrap; padding: .2rem .4rem; border: 1px solid var(--ground); }
.proofs td small { display: block; font-size: .72rem; line-height: 1.15; opacity: .85; }
.proofs thead th { text-align: center; } .proofs td.worst { outline: 2px solid var(--bad); outline-offset: -2px; }
.e0 { background: var(--e0); } .e1 { background: var(--e1); } .e2 { background: var(--e2); }
.e3 { background: var(--e3); } .e4 { background: var(--e4); } .slow { color: var(--soft); }
.key span { display: inline-block; padding: 0 .5rem; margin-right: .3rem; border-radius: 3px; }
.key { display: flex; flex-wrap: wrap; gap: .3rem .1rem; font-size: .85rem; margin: .3rem 0; }
.dot { display: inline-block; width: .8em; height: .8em; border-radius: 50%; margin: 0 .3em -.05em .5em; }
figure { margin: 0; break-inside: avoid; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(28rem, 100%), 1fr)); gap: 1rem; }
.plots img { width: 100%; height: auto; background: #ffffff; border: 1px solid var(--line); border-radius: 4px; }
.sheet img { max-width: 100%; height: auto; border-radius: 4px; }
.shots { display: flex; flex-wrap: wrap; gap: .6rem; }
.shots img { display: block; border-radius: 3px; max-width: 100%; height: auto; }
.frames { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(15rem, 100%), 1fr)); gap: .8rem; }
.frames.large { grid-template-columns: repeat(auto-fill, minmax(min(24rem, 100%), 1fr)); }
.frames figure { background: var(--panel); border-radius: 6px; padding: .4rem; }
.frames svg { display: block; width: 100%; height: auto; }
.frames figcaption { text-align: center; line-height: 1.3; }
.frames.one, .frames.large.one { grid-template-columns: minmax(0, 34rem); } .frames.one figure { display: none; }
.frames.one figure.now { display: block; }
.steer { display: flex; flex-wrap: wrap; gap: .8rem; align-items: center; margin: .5rem 0; font-size: .9rem; }
.steer input[type=range] { flex: 1 1 12rem; max-width: 24rem; }
svg text { font: 500 8.5px system-ui, "Liberation Sans", sans-serif; fill: var(--ink); }
svg .ring { fill: none; stroke: var(--line); }
svg .tree { fill: none; stroke: var(--tree); stroke-width: 1; stroke-dasharray: 3 3; }
svg .edge { fill: none; stroke: var(--edge); stroke-linecap: butt; opacity: .85; }
svg .head { fill: var(--edge); }
svg .client { stroke: var(--ink); stroke-width: 2; }
svg .hit { fill: none; stroke: var(--bad); stroke-width: 1.6; stroke-dasharray: 3 2; }
svg .moved { stroke: var(--ink); stroke-width: 2; }
svg .axis { stroke: var(--line); } svg .mark { stroke: var(--bad); stroke-dasharray: 4 3; }
svg .turn { stroke: var(--ink); stroke-dasharray: 1 2; }
svg .name { fill: var(--ink); font-size: 11px; } svg .bar { font-size: 10px; }
.strip { overflow-x: auto; margin: .8rem 0; } .strip svg { min-width: 40rem; width: 100%; height: auto; }
details { margin: .8rem 0; } summary { cursor: pointer; font-weight: 600; }
pre { overflow-x: auto; background: var(--panel); padding: .8rem; border-radius: 6px; font-size: .82rem; }
@media (max-width: 34rem) { body { padding: .6rem; font-size: 15px; } dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: .4rem; } }
@media print { :root { --panel: #ffffff; } body { max-width: none; font-size: 10pt; } nav, .steer { display: none; }
  h2 { break-before: page; } h2, h3, h4 { break-after: avoid; } tr, svg { break-inside: avoid; }
  .scroll, .strip { overflow: visible; } .strip svg { min-width: 0; } * { print-color-adjust: exact; } }
"""

# Without it every drawing is shown; with it they can be looked at one at a time, large.
SCRIPT = """
for (const box of document.querySelectorAll(".frames")) {
  const all = box.querySelectorAll("figure");
  if (all.length < 2) continue;
  const bar = document.createElement("div"), range = document.createElement("input");
  const label = document.createElement("label"), tick = document.createElement("input");
  bar.className = "steer";
  tick.type = "checkbox";
  range.type = "range"; range.min = 0; range.max = all.length - 1; range.value = 0; range.disabled = true;
  range.setAttribute("aria-label", "which drawing");
  label.append(tick, " one at a time");
  bar.append(label, range);
  box.before(bar);
  const show = () => {
    range.disabled = !tick.checked;
    box.classList.toggle("one", tick.checked);
    all.forEach((one, i) => one.classList.toggle("now", i === Number(range.value)));
  };
  tick.addEventListener("change", show);
  range.addEventListener("input", show);
}
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => { one.open = true; }));
"""
