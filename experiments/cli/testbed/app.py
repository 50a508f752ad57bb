"""``thalweg testbed``: bring an emulated WAN up, use it, take it down."""

from __future__ import annotations

import typer

from thalweg.experiments.cli.testbed.build import build
from thalweg.experiments.cli.testbed.down import down
from thalweg.experiments.cli.testbed.exec import execute, logs
from thalweg.experiments.cli.testbed.links import change, cut, play, restore
from thalweg.experiments.cli.testbed.plan import plan
from thalweg.experiments.cli.testbed.status import status
from thalweg.experiments.cli.testbed.up import up
from thalweg.experiments.cli.testbed.verify import verify

app = typer.Typer(name="testbed", no_args_is_help=True, help="Launch an emulated WAN and use it.")
OF_THE_COMMAND = {"ignore_unknown_options": True, "allow_interspersed_args": False}  # what is run has its own options

app.command("status")(status)
app.command("verify")(verify)
app.command("plan")(plan)
app.command("up")(up)
app.command("build")(build)
app.command("exec", context_settings=OF_THE_COMMAND)(execute)
app.command("logs")(logs)
app.command("set")(change)
app.command("cut")(cut)
app.command("restore")(restore)
app.command("play")(play)
app.command("down")(down)
