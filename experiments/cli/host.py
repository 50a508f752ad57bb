"""``thalweg host``."""

from __future__ import annotations

import argparse
from pathlib import Path

import typer


def host(context: typer.Context) -> None:
    """Run a host daemon, for real machines and containers (thalweg host --help), or end one (thalweg host drain)."""
    raise typer.Exit(execute(context.args))


def execute(argv: list[str]) -> int:
    """``thalweg host``: its exit status."""
    from thalweg.middleware.shell import daemon

    if argv[:1] == ["drain"]:
        _drain(argv)
        return 0
    return daemon.main(argv)


def drain_parser() -> argparse.ArgumentParser:
    """The options of ``thalweg host drain``."""
    arguments = argparse.ArgumentParser(
        prog="thalweg host",
        usage="thalweg host drain [-h] [--at ENDPOINT] [--keys FILE] [--members DIR] [--timeout S] NAME",
        description="Have a host end, with status 0, when its operators have moved away; returns when it does.",
        epilog="example: thalweg host drain h1 --at tcp://192.0.2.7:7800 --keys alice.key_secret",
    )
    arguments.add_argument("verb", choices=["drain"], help=argparse.SUPPRESS)
    arguments.add_argument("name", metavar="NAME", help="the host's name")
    arguments.add_argument("--at", default="tcp://127.0.0.1:7800", metavar="ENDPOINT", help="where it listens")
    arguments.add_argument(
        "--keys", type=Path, metavar="FILE", help="your secret certificate, as a client's, or the host's own"
    )
    arguments.add_argument(
        "--members", type=Path, metavar="DIR", help="public certificates; by default members beside --keys"
    )
    arguments.add_argument("--timeout", type=float, default=60.0, metavar="S", help="how long to wait for it (60)")
    return arguments


def _drain(argv: list[str]) -> None:
    from thalweg.middleware.client.drain import drain
    from thalweg.middleware.shell.security import Keys

    options = drain_parser().parse_args(argv)
    keys = None if options.keys is None else Keys.load(options.keys, options.members)
    drain(options.name, options.at, keys, options.timeout)
    print(f"host {options.name} has left its runs, and ends")
