"""Hooks of the site (MkDocs): pages that are generated, diagrams drawn as SVG, and the check of the public names.

``make docs-site`` builds the site. The page of the command line is made from the same help pages that ``--help``
prints. Diagrams are drawn by Graphviz while the site is built, so that a reader needs no script and no network.
"""

from __future__ import annotations

import inspect
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

import thalweg
from thalweg.experiments.cli import commands, host, pages
from thalweg.experiments.cli.verbs import app
from thalweg.middleware.shell import daemon

ROOT = Path(__file__).resolve().parent.parent
PROJECT = {
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
    "stability.md": "STABILITY.md",
}
"""Pages of the site that are files of the project's root, which hosts of repositories look for there."""
_MERMAID = re.compile(r"^```mermaid\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_ARROW = re.compile(r"^\s*(?P<source>.+?) -->(?:\|(?P<note>.*?)\|)? (?P<target>[^:]+?)(?:: (?P<trigger>.*))?$")
_FETCHES = re.compile(r"<(?:script|img|iframe|link)\b[^>]*(?:src|href)=\"(https?://[^\"]*)")
_SHOWN = re.compile(r"^::: (thalweg[\w.]*)$", re.MULTILINE)


# --- the page of the command line ---------------------------------------------------------------------


def command_line_page() -> str:
    """Return the reference of all verbs in Markdown."""
    lines = ["# Command line", "", "The pages that `thalweg VERB --help-all` prints, in one place."]
    for words, page in _help_pages(("thalweg",), typer.main.get_command(app)):
        lines += ["", f"{'#' * min(4, 1 + len(words))} {' '.join(words)}", "", f"`{page.usage}`", ""]
        lines += [line for paragraph in page.paragraphs for line in (_escaped(paragraph), "")]
        for example in page.examples:
            lines += [f"{example.caption}:" if example.caption else "Example:", "", "```", example.command, "```", ""]
        for panel in page.panels:
            lines += [f"**{panel.title}**", "", "| | |", "|---|---|"]
            lines += [f"| `{entry.name}` | {_entry_text(entry)} |".replace("``", "` `") for entry in panel.entries]
            lines += [""]
    return "\n".join(lines) + "\n"


def _help_pages(words: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], pages.Page]]:
    """Yield the whole help page of a command, and those of the commands below it."""
    if words == ("thalweg", "host"):
        yield words, host.help_page(daemon.parser(), draining=False)
        yield (*words, host.DRAIN), host.help_page(host.drain_parser(), draining=True)
        return
    context = command.make_context(" ".join(words), [], resilient_parsing=True)
    yield words, commands.page_of(command, context, whole=True)
    if isinstance(command, commands.Group):
        for name in command.commands:
            yield from _help_pages((*words, name), command.loaded(name))


def _entry_text(entry: pages.Entry) -> str:
    """Return the text of an entry, with its registered names and its remarks."""
    parts = [_escaped(entry.text)]
    for names, meaning in pages.group_names(entry.names):
        parts.append(f"<br>`{names}`{': ' + _escaped(meaning) if meaning else ''}")
    if entry.own:
        parts.append(f"<br>`{entry.own}`: your own")
    if entry.remarks:
        parts.append(f"<br>*{_escaped('; '.join(entry.remarks))}*")
    return " ".join(parts)


def _escaped(text: str) -> str:
    """Return a text in which Markdown reads no table, no tag and no emphasis."""
    return re.sub(r"([|<>*_\[\]])", r"\\\1", text)


# --- diagrams -----------------------------------------------------------------------------------------


def as_dot(mermaid: str) -> str:
    """Return a Mermaid state diagram or flowchart, as `diagrams.py` draws them, in the language of Graphviz.

    Arrows with the same ends become one.
    """
    lines = [
        "digraph {",
        'rankdir=LR; bgcolor="transparent"; node [shape=box, style=rounded, fontname="sans-serif", fontsize=11, '
        'color="#808080", fontcolor="#808080"]; edge [fontname="sans-serif", fontsize=9, color="#808080", '
        'fontcolor="#808080"];',
    ]
    labels: dict[tuple[str, str], list[str]] = {}
    for line in mermaid.splitlines():
        if not (arrow := _ARROW.match(line)):
            continue
        source, target = arrow["source"], arrow["target"]
        if source == "[*]":
            lines.append('"[*] begin" [shape=point, label="", width=0.12]')
        if target == "[*]":
            lines.append('"[*] end" [shape=doublecircle, label="", width=0.12]')
        ends = (source.replace("[*]", "[*] begin"), target.replace("[*]", "[*] end"))
        labels.setdefault(ends, []).append(arrow["note"] or arrow["trigger"] or "")
    lines += [f'"{a}" -> "{b}" [label="{", ".join(words)}"]' for (a, b), words in labels.items()]
    return "\n".join([*lines, "}"])


def draw_svg(mermaid: str) -> str:
    """Return a diagram as SVG whose lines and words have the colour of the text around it."""
    done = subprocess.run(["dot", "-Tsvg"], input=as_dot(mermaid), capture_output=True, text=True, check=True)
    svg = done.stdout[done.stdout.index("<svg") :].replace("#808080", "currentColor")
    svg = re.sub(r'<svg width="(\d+)pt" height="\d+pt"', r'<svg class="diagram" style="max-width: \1pt"', svg)
    return re.sub(r"<title>.*?</title>|<!--.*?-->", "", svg, flags=re.DOTALL).replace("\n", " ")


# --- the hooks of MkDocs ------------------------------------------------------------------------------


def undocumented() -> list[str]:
    """Return the public classes, functions, methods and properties without a docstring."""
    found = []
    for name in thalweg.__all__:
        public = getattr(thalweg, name)
        members = {name: public}
        if inspect.isclass(public):
            members |= {f"{name}.{own}": member for own, member in vars(public).items() if not own.startswith("_")}
        for full, member in members.items():
            code = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            if (inspect.isclass(code) or inspect.isfunction(code)) and not (code.__doc__ or "").strip():
                found.append(full)
    return found


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages. Raise an error if a public name is on no page, or has no docstring."""
    from mkdocs.exceptions import PluginError
    from mkdocs.structure.files import File

    shown = {
        name.removeprefix("thalweg.")
        for file in files
        if file.src_uri.startswith("reference/api/")
        for name in _SHOWN.findall(file.content_string)
    }
    if missing := sorted(set(thalweg.__all__) - shown):
        raise PluginError(f"no page of docs/reference/api shows thalweg.{missing[0]}; add ::: thalweg.{missing[0]}")
    if bare := undocumented():
        raise PluginError(f"thalweg.{bare[0]} has no docstring")
    files.append(File.generated(config, "reference/command-line.md", content=command_line_page()))
    for name, source in PROJECT.items():
        files.append(File.generated(config, f"project/{name}", content=project_page(source)))
    return files


def project_page(source: str) -> str:
    """Return a file of the project's root as a page below ``project/``."""
    text = (ROOT / source).read_text(encoding="utf-8").replace("](docs/", "](../")
    for name, other in PROJECT.items():
        text = text.replace(f"]({other})", f"]({name})")
    return text


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Draw the diagrams of a page."""
    return _MERMAID.sub(lambda match: draw_svg(match[1]), markdown)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Raise an error if a page fetches something from elsewhere: the site is read without a network."""
    from mkdocs.exceptions import PluginError

    if found := _FETCHES.search(output):
        raise PluginError(f"{page.file.src_uri} fetches {found[1]}, and is to be read without a network")
    return output
