"""``thalweg host``."""

from __future__ import annotations

import typer


def host(context: typer.Context) -> None:
    """Run a host daemon, for real machines and containers (thalweg host --help)."""
    from thalweg.middleware.shell import daemon

    raise typer.Exit(daemon.main(context.args))
