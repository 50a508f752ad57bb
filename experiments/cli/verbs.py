"""The verbs of ``thalweg``: everything that its command line can be."""

from __future__ import annotations

import os
from importlib.metadata import version
from typing import Annotated

import typer

from thalweg.experiments.cli.analyze import analyze
from thalweg.experiments.cli.bench import app as bench
from thalweg.experiments.cli.compare import compare
from thalweg.experiments.cli.doctor import doctor
from thalweg.experiments.cli.host import host
from thalweg.experiments.cli.keys import app as keys
from thalweg.experiments.cli.place import place
from thalweg.experiments.cli.provision import provision
from thalweg.experiments.cli.report import report
from thalweg.experiments.cli.run import run
from thalweg.experiments.cli.sweep import sweep
from thalweg.experiments.cli.testbed.app import app as testbed
from thalweg.experiments.cli.traces import app as traces

app = typer.Typer(
    name="thalweg",
    help="Combine data over a wide-area network with operators that move, and emulate that network from real traces.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
REFUSED: type[Exception] = next(  # typer has no name for it
    each for each in typer.BadParameter.__mro__ if each.__name__ == "ClickException" and issubclass(each, Exception)
)
UNREAD = {"allow_extra_args": True, "ignore_unknown_options": True}  # the daemon reads its options itself


def _version(asked: bool) -> None:
    if asked:
        print(f"thalweg {version('thalweg')}")
        raise typer.Exit


@app.callback()
def _all(
    asked: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which version this is.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    if debug:
        os.environ["THALWEG_DEBUG"] = "1"


app.command("doctor")(doctor)
app.command("run")(run)
app.add_typer(testbed, name="testbed", help="Launch an emulated WAN and use it.", no_args_is_help=True)
app.command("host", context_settings=UNREAD, add_help_option=False)(host)
app.add_typer(keys, name="keys", help="Certificates of hosts and clients.", no_args_is_help=True)
app.command("compare")(compare)
app.command("sweep")(sweep)
app.command("analyze")(analyze)
app.command("report")(report)
app.command("place")(place)
app.command("provision")(provision)
app.add_typer(traces, name="traces", help="List, describe, import, generate bandwidth traces.")
app.add_typer(bench, name="bench", help="The performance figures, side by side.", no_args_is_help=True)
