"""A plugin of pytest's: the fixture ``wan``, which makes emulated WANs for any project's tests.

::

    def test_the_replica_catches_up(wan):
        bed = wan(["primary", "replica"], rate="10mbit")
        bed.cut("primary", "replica", both=True)

Where this machine cannot make one the test is skipped with the reason; with ``THALWEG_REQUIRE=netns`` (or ``docker``,
``uml`` for ``kernel="uml"``, and ``netem`` where delays and loss are asked for) it fails instead, as is right for
continuous integration.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Literal

import pytest

if TYPE_CHECKING:
    from typing import Unpack

    from thalweg.emulation.wan import Asked, Testbed


class Wan:
    """What the fixture ``wan`` is."""

    def __init__(self, up: ExitStack) -> None:
        self._up = up

    def __call__(
        self, hosts: Sequence[str], *, backend: Literal["netns", "docker"] = "netns", **asked: Unpack[Asked]
    ) -> Testbed:
        """A testbed that is up until the test is over; ``asked``: whatever ``Testbed.open`` takes."""
        from thalweg.emulation.wan import Testbed  # not every project's every test run pays for it
        from thalweg.middleware.errors import CapabilityError

        try:
            return self._up.enter_context(Testbed.open(backend, hosts, **asked))
        except CapabilityError as error:
            why = str(error)
        need: str = backend
        if asked.get("kernel") == "uml":
            need = "uml"
        elif asked.get("delay") is not None or asked.get("loss") is not None:
            with suppress(CapabilityError):  # of the testbed itself, so that netem is not what is missing
                Testbed.open(backend, hosts, image=asked.get("image")).down()
                need = "netem"
        if need in os.environ.get("THALWEG_REQUIRE", "").replace(" ", "").split(","):
            pytest.fail(f"THALWEG_REQUIRE names {need!r}, but: {why}", pytrace=False)
        pytest.skip(why)


@pytest.fixture
def wan() -> Iterator[Wan]:
    """Make emulated WANs: ``bed = wan(["a", "b"], rate="10mbit")``, see ``thalweg.Testbed``; gone after the test."""
    with ExitStack() as up:
        yield Wan(up)
