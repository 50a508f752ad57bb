"""``thalweg``: one command, its verbs, and what becomes of errors and interrupts.

Exit status: 0 done, 1 failed, 2 the input cannot be used, 130 interrupted, 143 terminated.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from thalweg.experiments.cli.analyze import analyze
from thalweg.experiments.cli.bench import app as bench
from thalweg.experiments.cli.compare import compare
from thalweg.experiments.cli.doctor import doctor
from thalweg.experiments.cli.host import host
from thalweg.experiments.cli.keys import app as keys
from thalweg.experiments.cli.place import place
from thalweg.experiments.cli.report import report
from thalweg.experiments.cli.run import run
from thalweg.experiments.cli.stopping import Stopped, stop_on_signals
from thalweg.experiments.cli.sweep import sweep
from thalweg.experiments.cli.testbed.app import app as testbed
from thalweg.experiments.cli.traces import app as traces
from thalweg.middleware.errors import ThalwegError, UsageError, extra_with, one_line

app = typer.Typer(
    name="thalweg",
    help="Combine data over a wide-area network with operators that move, and emulate that network from real traces.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
UNREAD = {"allow_extra_args": True, "ignore_unknown_options": True}  # the daemon reads its options itself


@app.callback()
def _all(
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
app.add_typer(traces, name="traces", help="List, describe, import, generate bandwidth traces.")
app.add_typer(bench, name="bench", help="The performance figures, side by side.", no_args_is_help=True)


def main(argv: list[str] | None = None) -> None:
    """Entry point; never returns."""
    stop_on_signals()
    sys.exit(invoke(sys.argv[1:] if argv is None else argv))


def invoke(argv: list[str]) -> int:
    """Run one command line and return its exit status; errors become one line on standard error."""
    try:
        app(args=argv, prog_name="thalweg")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    except ThalwegError as error:
        if "THALWEG_DEBUG" in os.environ:
            raise
        print(f"thalweg: {one_line(error)}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except ModuleNotFoundError as error:
        if "THALWEG_DEBUG" in os.environ or not extra_with(error.name or ""):
            raise
        print(f"thalweg: {one_line(error)}", file=sys.stderr)
        return 2
    except Stopped as stopped:
        print(f"thalweg: stopped by {stopped.name}; nothing is left running", file=sys.stderr)
        return stopped.status
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


if __name__ == "__main__":
    main()
