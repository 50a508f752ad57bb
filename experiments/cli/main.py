"""``thalweg``: one command, its verbs, and what becomes of errors and interrupts.

Exit status: 0 done, 1 failed, 2 the input cannot be used, 130 interrupted, 143 terminated.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Annotated

import typer

from thalweg.experiments.cli import analyze as analyze_command
from thalweg.experiments.cli import bench as bench_command
from thalweg.experiments.cli import compare as compare_command
from thalweg.experiments.cli import doctor as doctor_command
from thalweg.experiments.cli import place as place_command
from thalweg.experiments.cli import report as report_command
from thalweg.experiments.cli import run as run_command
from thalweg.experiments.cli import sweep as sweep_command
from thalweg.experiments.cli import testbed as testbed_command
from thalweg.experiments.cli import traces as traces_command
from thalweg.middleware.errors import ThalwegError, UsageError, one_line

app = typer.Typer(
    name="thalweg",
    help="Combine data over a wide-area network with operators that move, and emulate that network from real traces.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


@app.callback()
def _all(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    if debug:
        os.environ["THALWEG_DEBUG"] = "1"


app.command("doctor")(doctor_command.doctor)
app.command("run")(run_command.run)
app.add_typer(testbed_command.app, name="testbed", help="Launch an emulated WAN and use it.", no_args_is_help=True)


@app.command("host", context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False)
def host(context: typer.Context) -> None:
    """Run a host daemon, for real machines and containers (thalweg host --help)."""
    from thalweg.middleware.shell import daemon

    raise typer.Exit(daemon.main(context.args))


app.command("compare")(compare_command.compare)
app.command("sweep")(sweep_command.sweep)
app.command("analyze")(analyze_command.analyze)
app.command("report")(report_command.report)
app.command("place")(place_command.place)
app.add_typer(traces_command.app, name="traces", help="List, describe, import, generate bandwidth traces.")
app.add_typer(bench_command.app, name="bench", help="The performance figures, side by side.", no_args_is_help=True)


class Stopped(BaseException):
    """SIGINT or SIGTERM: unwinds through everything, so that all is put away."""

    def __init__(self, number: int) -> None:
        self.number = number


def _stop(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # a second one does not interrupt the putting away
    raise Stopped(number)


def main(argv: list[str] | None = None) -> None:
    """Entry point; never returns."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
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
    except Stopped as stopped:
        name = signal.Signals(stopped.number).name
        print(f"thalweg: stopped by {name}; nothing is left running", file=sys.stderr)
        return 128 + stopped.number
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


if __name__ == "__main__":
    main()
