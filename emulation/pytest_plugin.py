"""A plugin of pytest's: the fixture ``wan``, which makes emulated WANs for any project's tests.

::

    def test_the_replica_catches_up(wan):
        bed = wan(["primary", "replica"], rate="10mbit")
        bed.cut("primary", "replica", both=True)

Where this machine cannot make one the test is skipped with the reason; with ``THALWEG_REQUIRE=netns`` (or ``docker``,
and ``netem`` where delays and loss are asked for) it fails instead, as is right for continuous integration.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Literal, Protocol

import pytest

if TYPE_CHECKING:
    from thalweg.emulation.wan import Quantity, Testbed


class Wan(Protocol):
    """What the fixture ``wan`` is."""

    def __call__(
        self,
        hosts: Sequence[str],
        *,
        backend: Literal["netns", "docker"] = "netns",
        rate: Quantity | None = None,
        delay: Quantity | None = None,
        loss: Quantity | None = None,
        image: str | None = None,
    ) -> Testbed:
        """A testbed that is up until the test is over; arguments as for ``Testbed.open``."""


@pytest.fixture
def wan() -> Iterator[Wan]:
    """Make emulated WANs: ``bed = wan(["a", "b"], rate="10mbit")``, see ``thalweg.Testbed``; gone after the test."""
    from thalweg.emulation.wan import Testbed  # not every project's every test run pays for it
    from thalweg.middleware.errors import CapabilityError

    with ExitStack() as up:

        def make(
            hosts: Sequence[str],
            *,
            backend: Literal["netns", "docker"] = "netns",
            rate: Quantity | None = None,
            delay: Quantity | None = None,
            loss: Quantity | None = None,
            image: str | None = None,
        ) -> Testbed:
            need: str = backend
            try:
                bed = up.enter_context(Testbed.open(backend, hosts, rate=rate, image=image))
                need = "netem"
                if delay is not None or loss is not None:
                    bed.set(delay=delay, loss=loss)
                return bed
            except CapabilityError as error:
                why = str(error)
            if need in os.environ.get("THALWEG_REQUIRE", "").replace(" ", "").split(","):
                pytest.fail(f"THALWEG_REQUIRE names {need!r}, but: {why}", pytrace=False)
            pytest.skip(why)

        yield make
