"""``thalweg host``: a host daemon, and the draining of a host. Starting a host imports neither typer nor rich."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from thalweg.middleware.shell.arguments import Arguments, number_of

if TYPE_CHECKING:
    from thalweg.experiments.cli.pages import Page

DRAIN = "drain"
DRAIN_SHORT = "End a host when its operators have moved away."


def execute(argv: list[str]) -> int:
    """Run ``thalweg host``, and return its exit status."""
    from thalweg.middleware.shell import daemon

    draining = argv[:1] == [DRAIN]
    if asks_for_help(argv):
        show_help(drain_parser() if draining else daemon.parser(), draining=draining)
        return 0
    if draining:
        _drain(argv[1:])
        return 0
    return daemon.main(argv)


def asks_for_help(argv: list[str]) -> bool:
    """Return whether a command line asks for the help page."""
    before = argv[: argv.index("--")] if "--" in argv else argv
    return not {"-h", "--help", "--help-all"}.isdisjoint(before)


def show_help(parser: Arguments, *, draining: bool) -> None:
    """Print the page of ``thalweg host``, or of ``thalweg host drain``."""
    from thalweg.experiments.cli.pages import show

    show(help_page(parser, draining=draining))


def help_page(parser: Arguments, *, draining: bool) -> Page:
    """Return the help page of ``thalweg host``, or of ``thalweg host drain``."""
    from thalweg.experiments.cli.pages import Entry, Panel, page_of

    more = [] if draining else [Panel("Commands", [Entry(DRAIN, DRAIN_SHORT)])]
    return page_of(parser, *more)


def drain_parser() -> Arguments:
    """Return the parser of the options of ``thalweg host drain``."""
    arguments = Arguments(
        prog="thalweg host drain",
        description=f"{DRAIN_SHORT} The command waits for that. The host ends with status 0.",
        epilog="Example: thalweg host drain h1 --at tcp://192.0.2.7:7800 --keys alice.key_secret",
    )
    arguments.add_argument("name", metavar="NAME", help="Name of the host.")
    arguments.add_argument(
        "--at", default="tcp://127.0.0.1:7800", metavar="ENDPOINT", help="Control endpoint of the host."
    )
    arguments.add_argument(
        "--keys", type=Path, metavar="FILE", help="Your secret certificate as a client, or that of the host."
    )
    arguments.add_argument(
        "--members", type=Path, metavar="DIR", help="Folder of public certificates. By default: members, beside --keys."
    )
    arguments.add_argument(
        "--timeout", type=number_of(float), default=60.0, metavar="SECONDS", help="Time to wait for the host's end."
    )
    return arguments


def _drain(argv: list[str]) -> None:
    from thalweg.middleware.client.membership.drain import drain
    from thalweg.middleware.shell.security import Keys

    options = drain_parser().parse_args(argv)
    keys = None if options.keys is None else Keys.load(options.keys, options.members)
    drain(options.name, options.at, keys, options.timeout)
    print(f"host {options.name} has left its runs, and ends")
