"""A plugin of pytest's: the fixture ``wan``, which makes emulated WANs for any project's tests.

::

    def test_the_replica_catches_up(wan):
        bed = wan(["primary", "replica"], rate="10mbit")
        bed.cut("primary", "replica", both=True)

Where this machine cannot make one the test is skipped with the reason; with ``THALWEG_REQUIRE=netns`` (or ``docker``,
``uml`` for ``kernel="uml"``, and ``netem`` where delays and loss are asked for) it fails instead, as is right for
continuous integration. The report of a failed test has the state of its testbeds: links, cuts, and the processes that
``start`` has started and the commands of ``run`` that have failed, with the last lines of each. With ``--wan-report
FOLDER`` a failed test also leaves a page and tables about all that went on in its testbeds.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

if TYPE_CHECKING:
    from typing import Unpack

    from thalweg.emulation.outputs import Outputs
    from thalweg.emulation.wan import Asked, Testbed

_WAN = pytest.StashKey["Wan"]()
NAME_CHARS = 120  # of a test's folder


class Wan:
    """What the fixture ``wan`` is."""

    def __init__(self, up: ExitStack) -> None:
        self.beds: list[Testbed] = []
        self.outputs: list[Outputs] = []
        self._up = up

    def __call__(
        self, hosts: Sequence[str], *, backend: Literal["netns", "docker"] = "netns", **asked: Unpack[Asked]
    ) -> Testbed:
        """A testbed that is up until the test is over; ``asked``: whatever ``Testbed.open`` takes.

        Output of processes that ``start`` starts is printed with their host's name, unless it is redirected.
        """
        __tracebackhide__ = True
        from thalweg.emulation.wan import Testbed  # not every project's every test run pays for it
        from thalweg.middleware.errors import CapabilityError

        try:
            bed = self._up.enter_context(Testbed.open(backend, hosts, **asked))
        except CapabilityError as error:
            why = str(error)
        else:
            self.outputs.append(bed.follow_outputs())
            self.beds.append(bed)
            return bed
        need: str = backend
        if asked.get("kernel") == "uml":
            need = "uml"
        elif any(asked.get(word) is not None for word in ("delay", "loss", "preset")):
            with suppress(CapabilityError):  # of the testbed itself, so that netem is not what is missing
                Testbed.open(backend, hosts, image=asked.get("image")).down()
                need = "netem"
        if need in os.environ.get("THALWEG_REQUIRE", "").replace(" ", "").split(","):
            pytest.fail(f"THALWEG_REQUIRE names {need!r}, but: {why}", pytrace=False)
        pytest.skip(why)


@pytest.fixture
def wan(request: pytest.FixtureRequest) -> Iterator[Wan]:
    """Make emulated WANs: ``bed = wan(["a", "b"], rate="10mbit")``, see ``thalweg.Testbed``; gone after the test."""
    with ExitStack() as up:
        made = request.node.stash[_WAN] = Wan(up)
        yield made


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option ``--wan-report``."""
    says = "Leave a report of each testbed of a failed test in a folder of its own below FOLDER."
    with suppress(ValueError):  # the plugin may have been loaded by two names
        parser.getgroup("thalweg").addoption("--wan-report", metavar="FOLDER", type=Path, help=says)


def _printing(item: pytest.Item) -> Generator[None]:
    """Let outputs be printed in a phase of a test, where pytest captures them, and hold them from its end on."""
    for outputs in _outputs(item):
        outputs.release()
    yield
    for outputs in _outputs(item):
        outputs.hold()


def _outputs(item: pytest.Item) -> Sequence[Outputs]:
    made = item.stash.get(_WAN, None)
    return () if made is None else made.outputs


@pytest.hookimpl(hookwrapper=True, trylast=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    """Print outputs meanwhile."""
    yield from _printing(item)


@pytest.hookimpl(hookwrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Print outputs meanwhile."""
    yield from _printing(item)


@pytest.hookimpl(hookwrapper=True, trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """Print outputs meanwhile."""
    yield from _printing(item)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, None]:
    """Add the state of its testbeds to the report of a failed test, and leave Thalweg's own code out of it."""
    made = item.stash.get(_WAN, None)
    if made is not None and call.excinfo is not None and not item.config.getoption("fulltrace"):
        _leave_out_ours(call.excinfo)
    outcome = yield
    report = outcome.get_result()
    if made is None or report.when == "teardown" or not report.failed:
        return
    for bed in made.beds:
        title = f"testbed {bed.id}"
        if title not in dict(report.sections):  # the plugin may have been loaded by two names
            report.sections.append((title, bed.condition()))
            if (folder := item.config.getoption("--wan-report", None)) is not None:
                report.sections.append((f"report of {title}", _leave_report(bed, folder, item.nodeid)))


def _leave_report(bed: Testbed, folder: Path, test: str) -> str:
    """Write the report of a testbed below a folder, and return where it is, or why there is none."""
    from thalweg.middleware.errors import ThalwegError, one_line

    name = re.sub(r"[^\w.-]+", "-", test).strip("-.")[-NAME_CHARS:]
    try:
        return str(bed.report(folder / name / bed.id, title=f"{test} failed"))
    except ThalwegError as error:
        return one_line(error)


def _leave_out_ours(found: pytest.ExceptionInfo[BaseException]) -> None:
    """Let the traceback of an error of Thalweg's end where the test calls it, as its line says all."""
    from thalweg.middleware.errors import ThalwegError

    if not isinstance(found.value, ThalwegError):
        return
    last, entry = None, found.value.__traceback__
    while entry is not None:
        if not entry.tb_frame.f_globals.get("__name__", "").startswith("thalweg."):
            last = entry
        entry = entry.tb_next
    if last is not None:
        last.tb_next = None
        found.traceback = type(found.traceback)(found.tb)
