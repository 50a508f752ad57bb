"""``thalweg testbed build``: the container image of docker hosts."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from thalweg.emulation.containers.image import DEFAULT_BASE
from thalweg.experiments.cli.console import JsonOption, say


def build(
    image: Annotated[
        str | None,
        typer.Option("--image", metavar="NAME", help="Name of the image.", show_default="thalweg:VERSION"),
    ] = None,
    base_image: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Image to build on. It has Python 3.11 or newer, with venv.",
            show_default=f"that of --make-base, or {DEFAULT_BASE}",
        ),
    ] = None,
    make_base: Annotated[
        bool, typer.Option("--make-base", help="Make the base image first, from Debian packages with mmdebstrap.")
    ] = False,
    wheelhouse: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of wheels to use. Otherwise pip fetches them.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Build the container image of docker hosts.

    The image is built without a network, from wheels that pip fetches first.

    Example: thalweg testbed build --base-image debian-with-python
    """
    from thalweg.emulation.containers import image as docker_image

    started = time.monotonic()
    built = docker_image.build(
        image, base_image, wheelhouse=wheelhouse, make_base=make_base, tell=lambda what: print(what, file=sys.stderr)
    )
    seconds = time.monotonic() - started
    text = f"image {built.image}: {built.size_bytes / 1e6:.0f} MB on {built.base}, built in {seconds:.1f} s"
    text += "\nnext: thalweg testbed up --backend docker"
    say(as_json, {**msgspec.to_builtins(built), "seconds": seconds}, text)
