"""``thalweg``: the entry point of the command line. An error or an interrupt becomes one line.

Exit status: 0 done, 1 failed, 2 the input cannot be used, 130 interrupted, 143 terminated.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import warnings
from contextlib import suppress
from typing import Any

from thalweg.experiments.cli.stopping import Stopped, stop_on_signals
from thalweg.middleware.errors import ThalwegError, UsageError, extra_with, one_line
from thalweg.middleware.platform.python import drop_relative_folders


def main(argv: list[str] | None = None) -> None:
    """Run the command line and exit with its status."""
    drop_relative_folders()
    stop_on_signals()
    logging.basicConfig(format="thalweg: %(levelname)s: %(message)s")  # warnings and errors, on standard error
    warnings.showwarning = _note
    sys.exit(invoke(sys.argv[1:] if argv is None else argv))


def _note(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: Any = None, line: Any = None
) -> None:
    """Print a Python warning as a note of one line, without the place in the code."""
    print(f"note: {one_line(str(message))}", file=sys.stderr)


def invoke(argv: list[str]) -> int:
    """Run a command line and return the exit status. An error becomes a line on standard error."""
    try:
        return _run(argv)
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
        print(f"thalweg: stopped by {stopped.name}; nothing is left running{_staying()}", file=sys.stderr)
        return stopped.status
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _run(argv: list[str]) -> int:
    """Run a command line and return the exit status.

    ``testbed exec`` and ``host`` run without typer and the table of verbs, whose imports take a third of a second.
    """
    if argv[:2] == ["testbed", "exec"]:
        from thalweg.experiments.cli import execution

        asked = execution.parse(argv[2:])
        if asked is not None:
            return execution.execute(asked)
    if argv[:1] == ["host"]:
        from thalweg.experiments.cli import host

        try:
            return host.execute(argv[1:])
        except SystemExit as end:  # raised by argparse
            return end.code if isinstance(end.code, int) else int(bool(end.code))
    from thalweg.experiments.cli.commands import REFUSED
    from thalweg.experiments.cli.verbs import app

    try:
        status = app(args=argv, prog_name="thalweg", standalone_mode=False)
        return status if isinstance(status, int) else 0
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    except REFUSED as error:
        return _refused(error)


def _refused(error: Any) -> int:
    """Print the parser's refusal of a command line as one line, and return status 2.

    If the command line has a group without a verb, print the help page of the group.
    """
    words = re.sub("^Invalid value for '(.*?)'", r"\1", error.format_message())
    if type(error).__name__ == "NoArgsIsHelpError":
        print(words)
        return 2
    where = error.ctx.command_path if error.ctx else "thalweg"
    print(f"thalweg: {one_line(words[:1].lower() + words[1:]).rstrip('.')}; see {where} --help", file=sys.stderr)
    return 2


def _staying() -> str:
    """Return a clause that names the testbeds that are still up, or an empty text."""
    from thalweg.emulation.testbeds import known

    with suppress(ThalwegError, OSError):
        if up := [state.id for state in known.known_testbeds() if state.alive]:
            return f" but testbed {', '.join(up)}, which stays up until: thalweg testbed down"
    return ""


if __name__ == "__main__":
    main()
