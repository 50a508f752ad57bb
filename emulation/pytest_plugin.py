"""Plugin for pytest with the fixture ``wan``, which makes emulated WANs for the tests of a project.

::

    def test_the_replica_catches_up(wan):
        bed = wan(["primary", "replica"], rate="10mbit")
        bed.cut("primary", "replica", both=True)

If this machine cannot make an emulated WAN, the test is skipped with the reason. With ``THALWEG_REQUIRE=netns`` the
test fails instead, as is right for continuous integration. ``docker`` requires containers, ``uml`` requires
``kernel="uml"``, and ``netem`` requires delays and loss. The report of a failed test has the state of its testbeds:
links, cuts and processes, with the last lines of output. The processes are those that ``start`` has started, and the
failed commands of ``run``. With ``--wan-report FOLDER`` a failed test also leaves a page and tables about the events in
its testbeds.
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
NAME_CHARS = 120  # most characters of the name of a test's folder


class Wan:
    """Value of the fixture ``wan``: a factory of testbeds that end with the test."""

    def __init__(self, up: ExitStack) -> None:
        self.beds: list[Testbed] = []
        self.outputs: list[Outputs] = []
        self._up = up

    def __call__(
        self, hosts: Sequence[str], *, backend: Literal["netns", "docker"] = "netns", **asked: Unpack[Asked]
    ) -> Testbed:
        """Return a testbed that is up until the test is over. ``asked``: arguments of ``Testbed.open``.

        Output of processes that ``start`` starts is printed with their host's name, unless the output is redirected.
        """
        __tracebackhide__ = True
        from thalweg.emulation.wan import Testbed  # a test run without testbeds does not import this
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
            with suppress(CapabilityError):  # without a testbed netem is not the missing part
                Testbed.open(backend, hosts, image=asked.get("image")).down()
                need = "netem"
        if need in os.environ.get("THALWEG_REQUIRE", "").replace(" ", "").split(","):
            pytest.fail(f"THALWEG_REQUIRE names {need!r}, but: {why}", pytrace=False)
        pytest.skip(why)


@pytest.fixture
def wan(request: pytest.FixtureRequest) -> Iterator[Wan]:
    """Make emulated WANs that end with the test: ``bed = wan(["a", "b"], rate="10mbit")``, see ``thalweg.Testbed``."""
    with ExitStack() as up:
        fixture = request.node.stash[_WAN] = Wan(up)
        yield fixture


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option ``--wan-report``."""
    says = "Leave a report of each testbed of a failed test in a folder of its own below FOLDER."
    with suppress(ValueError):  # the plugin may be loaded under two names
        parser.getgroup("thalweg").addoption("--wan-report", metavar="FOLDER", type=Path, help=says)


def _printing(item: pytest.Item) -> Generator[None]:
    """Print outputs during a phase of a test, in which pytest captures output. Hold the outputs from its end on."""
    for outputs in _outputs(item):
        outputs.release()
    yield
    for outputs in _outputs(item):
        outputs.hold()


def _outputs(item: pytest.Item) -> Sequence[Outputs]:
    fixture = item.stash.get(_WAN, None)
    return () if fixture is None else fixture.outputs


@pytest.hookimpl(hookwrapper=True, trylast=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    """Print outputs during the set-up."""
    yield from _printing(item)


@pytest.hookimpl(hookwrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Print outputs during the test."""
    yield from _printing(item)


@pytest.hookimpl(hookwrapper=True, trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """Print outputs during the tear-down."""
    yield from _printing(item)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, None]:
    """Add the state of its testbeds to the report of a failed test, and omit Thalweg's own code from the traceback."""
    fixture = item.stash.get(_WAN, None)
    if fixture is not None and call.excinfo is not None and not item.config.getoption("fulltrace"):
        _leave_out_ours(call.excinfo)
    outcome = yield
    report = outcome.get_result()
    if fixture is None or report.when == "teardown" or not report.failed:
        return
    for bed in fixture.beds:
        title = f"testbed {bed.id}"
        if title not in dict(report.sections):  # the plugin may be loaded under two names
            report.sections.append((title, bed.condition()))
            if (folder := item.config.getoption("--wan-report", None)) is not None:
                report.sections.append((f"report of {title}", _leave_report(bed, folder, item.nodeid)))


def _leave_report(bed: Testbed, folder: Path, test: str) -> str:
    """Write the report of a testbed below a folder. Return its path, or the reason if no report was written."""
    from thalweg.middleware.errors import ThalwegError, one_line

    name = re.sub(r"[^\w.-]+", "-", test).strip("-.")[-NAME_CHARS:]
    try:
        return str(bed.report(folder / name / bed.id, title=f"{test} failed"))
    except ThalwegError as error:
        return one_line(error)


def _leave_out_ours(found: pytest.ExceptionInfo[BaseException]) -> None:
    """End the traceback of a Thalweg error at the test's own call, as the error's line is enough."""
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
