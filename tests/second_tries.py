"""Second tries of tests that failed: a fresh start for each, the first reason in the summary, a bound on their number.

A shared machine can delay anything, so a failed test may be tried again (``--reruns``, and the mark ``timed``). Three
rules keep that honest:

R1. After a failure, every fixture below the session ends, and so do the session's fixtures in ``RENEWED``. The next
    try and the next test see no change of the failed try.
R2. The summary has the reason of the first failure. Later tries may fail because of leftovers of the first try.
R3. A run in which more than ``most(tests)`` tests needed a second try fails, even if every one passed in the end.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

RENEWED = ("cluster", "spark_session")  # processes of the whole session that a test can leave damaged
AT_LEAST, SHARE = 3, 0.001  # tests of a run that may need a second try: the larger of the two
REASON_WIDTH = 400  # characters of a reason in the summary

_failed = pytest.StashKey[bool]()


def most(tests: int) -> float:
    """Return the number of tests in a run that may need a second try."""
    return max(AT_LEAST, SHARE * tests)


def failed(item: pytest.Item) -> bool:
    """Return whether this try has failed so far."""
    return item.stash.get(_failed, False)


def discard_shared(item: pytest.Item) -> BaseException | None:
    """End the shared fixtures of a failed test (R1). Return the error of a fixture's end, which is raised later."""
    error: BaseException | None = None
    try:
        item.session._setupstate.teardown_exact(item.session)  # type: ignore[arg-type]  # down to the session itself
    except (Exception, pytest.fail.Exception) as problem:
        error = problem
    for name in RENEWED:
        for fixture in item._fixtureinfo.name2fixturedefs.get(name, ()):  # type: ignore[attr-defined]  # that it used
            if fixture.scope == "session" and fixture.cached_result is not None:
                try:
                    fixture.finish(item._request)  # type: ignore[attr-defined]
                except (Exception, pytest.fail.Exception) as problem:
                    error = error or problem
    return error


def reason(report: pytest.TestReport) -> str:
    """Return the place and the first line of a failure's message."""
    crash = getattr(report.longrepr, "reprcrash", None)
    message = f"{crash.path}:{crash.lineno}: {crash.message}" if crash else str(report.longrepr)
    return message.splitlines()[0][:REASON_WIDTH] if message else "no reason is known"


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(ToldAtOnce(config))
        config.pluginmanager.register(SecondTries())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[_failed] = report.failed or (report.when != "setup" and failed(item))
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    error = discard_shared(item) if failed(item) else None
    yield
    if error is not None:
        raise error


class ToldAtOnce:
    """Report of failures at once, also in a run that never reaches its summary."""

    def __init__(self, config: pytest.Config):
        self.config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome in ("failed", "rerun"):
            line = f"{report.nodeid} {report.outcome} ({report.when}, {report.duration:.0f} s): {reason(report)}"
            self.config.get_terminal_writer().line(f"\n{line}")


class SecondTries:
    """Record of the tests that were tried more than once, in the process that writes the summary."""

    def __init__(self) -> None:
        self.tests = set[str]()
        self.first: dict[str, str] = {}
        self.last: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.tests.add(report.nodeid)
        if report.outcome == "rerun":
            self.first.setdefault(report.nodeid, f"{report.when}: {reason(report)}")
        elif report.when == "call" or report.failed:
            self.last[report.nodeid] = report.outcome

    @property
    def too_many(self) -> bool:
        """Return whether more tests needed a second try than a run may have (R3)."""
        return len(self.first) > most(len(self.tests))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.too_many and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self.first:
            return
        terminalreporter.section("tests that needed a second try, and why the first one failed")
        for test, why in self.first.items():
            terminalreporter.write_line(f"{test} ({self.last.get(test, 'not run again')} in the end): {why}")
        tests = len(self.tests)
        bound = f"{len(self.first)} of {tests} tests needed a second try; a run may have {most(tests):g}"
        terminalreporter.write_line(f"FAILED: {bound}" if self.too_many else bound, red=self.too_many)
