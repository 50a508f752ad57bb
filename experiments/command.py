"""What a verb of the command line and the code below it agree on: how progress is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

Tell = Callable[[str, int, int], None]  # (what is going on, done, of how many; 0 of 0: unknown)
Progress = Callable[[], AbstractContextManager[Tell]]


@contextmanager
def unseen() -> Iterator[Tell]:
    """Progress that nobody watches."""
    yield lambda what, done, total: None
