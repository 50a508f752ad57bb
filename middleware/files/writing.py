"""Writing of files so that a reader finds a whole file, or none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from thalweg.middleware.errors import RunError, ThalwegError
from thalweg.middleware.platform.files import sync as _sync


@contextmanager
def whole(
    target: Path, advice: str, *, error: type[ThalwegError] = RunError, option: str = "", sync: bool = False
) -> Iterator[Path]:
    """Yield a path to write to. At the end of the block, the file replaces ``target`` in one step.

    A failed block leaves ``target`` unchanged. An OSError becomes an ``error`` that names the ``option`` and ends with
    ``advice``. ``sync``: the file and its name are on the disk at the end of the block.
    """
    part = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        yield part
        if sync:
            _sync(part)
        part.replace(target)
        if sync:
            _sync(target.parent)
    except OSError as failed:
        subject = f"{option} {target}".lstrip()
        raise error(f"{subject} cannot be written: {failed.strerror or failed}; {advice}") from failed
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
