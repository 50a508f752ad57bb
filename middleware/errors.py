"""Errors that Thalweg raises on purpose, and helpers for the texts of errors.

An error of foreign code is mapped to one of these classes where it enters.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from types import UnionType

EXTRAS = {  # extras of pyproject.toml with their modules; errors advise the first extra with a module
    "records": ("pyarrow", "jinja2"),
    "analysis": ("pyarrow", "pyspark", "scipy", "highspy", "matplotlib", "PIL", "jinja2", "networkx"),
    "docker": ("docker", "PIL"),
}
DISTRIBUTIONS = {"PIL": "pillow"}  # pip names of modules, where the names differ
SHOWN = 80  # characters of a caller's value in an error
LISTED = 12  # known words that an error lists if none is near
LINE = 4_000  # characters of a line of foreign text


class ThalwegError(Exception):
    """Base class of the errors of Thalweg. The text is one line that names the fault, the place and the remedy."""


class UsageError(ThalwegError):
    """Error for input of the caller that cannot be used. The command line then ends with exit status 2."""


class DataflowError(UsageError):
    """Error for a dataflow that is not valid. If a node is at fault, the text names the node."""


class PlacementError(UsageError):
    """Error for a placement that leaves out a node, or names an unknown host or node."""


class PlannerError(ThalwegError):
    """Error for a planner whose own code failed, or that returned no plan."""


class OperatorError(ThalwegError):
    """Error for code of an operator or source that cannot be found, is not allowed, or failed."""


class NotAllowedError(OperatorError):
    """Error for code of a package that the host or client does not allow."""


class TraceError(UsageError):
    """Error for a bandwidth trace that cannot be read. The text names file and line."""


class CapabilityError(UsageError):
    """Error for a request that the machine cannot meet, for example without namespaces, Java or Linux.

    The text says what can be done.
    """


class TestbedError(ThalwegError):
    """Error for a testbed that could not be brought up, shaped or used."""

    __test__ = False


class CommandError(TestbedError):
    """Error for a command that failed on a host of a testbed, as ``subprocess.CalledProcessError`` is for a local one.

    ``returncode``: the exit status, negative for a signal. ``stdout`` and ``stderr``: the output of the command.
    """

    def __init__(self, text: str, *, returncode: int, stdout: str, stderr: str) -> None:
        super().__init__(text)
        self.returncode, self.stdout, self.stderr = returncode, stdout, stderr


class ProtocolError(ThalwegError):
    """Error for a message that cannot be decoded, has a different protocol version, or exceeds a size limit."""


class RunError(ThalwegError):
    """Error for a run that ended before its last partition. The text names the node or host at fault, and the reason.

    A call of a closed client raises RunError, too. An attribute is None if its value is unknown:

    - ``node`` and ``host``: the node and the host at fault.
    - ``index``: the partition that the node was computing.
    - ``cause_type``: the class of the error that the node's code raised (``ValueError``, ``readings.Broken``).
    - ``remote_traceback``: the lines of the traceback on the host, without the runtime's own lines.
    """

    def __init__(
        self,
        said: str,
        *,
        node: str | None = None,
        host: str | None = None,
        index: int | None = None,
        cause_type: str | None = None,
        remote_traceback: str | None = None,
    ) -> None:
        super().__init__(said)
        self.node, self.host, self.index = node, host, index
        self.cause_type, self.remote_traceback = cause_type, remote_traceback


class JournalError(ThalwegError):
    """Error for a client's journal that cannot be written. The latest commits are then known to this process alone."""


class JournalGapError(JournalError):
    """Error for a journal that lacks entries of a run, or cannot show that the entries are complete.

    ``run`` is the run's id, or None if the journal does not know the run. ``missing`` has for each sink the partitions
    that the application has committed and the journal lacks, as (first, last + 1). ``missing`` is empty if these
    partitions are unknown, or if only entries of a different kind are missing.
    """

    def __init__(
        self, said: str, *, run: str | None = None, missing: Mapping[str, tuple[int, int]] | None = None
    ) -> None:
        super().__init__(said)
        self.run, self.missing = run, dict(missing or {})


class MoveRefused(ThalwegError):
    """Error for a requested move or tree that was not carried out, or only in part. ``reason`` says why.

    ``stayed``: for each operator that did not reach its target, the reason. ``moved``: the operators that have reached
    their targets, with the hosts, from partition ``index`` on. If nothing has changed, both are empty and ``index`` is
    None.
    """

    def __init__(
        self,
        text: str,
        *,
        reason: str = "",
        moved: dict[str, str] | None = None,
        stayed: dict[str, str] | None = None,
        index: int | None = None,
    ) -> None:
        super().__init__(text)
        self.reason, self.moved, self.stayed, self.index = reason or text, moved or {}, stayed or {}, index


class HostLostError(RunError):
    """Error for a host that the flow needs, and that did not come up or is lost for good. ``host`` is its name."""


class HostAbsentError(HostLostError, UsageError):
    """Error for a named host that does not answer, or never came up. Nothing was begun, so nothing is lost."""


def printable(text: str) -> str:
    """Return the text as any terminal can encode and show it.

    Line ends stay. Every other unprintable character becomes a space.
    """
    text = text.encode("utf-8", "replace").decode()
    return text if text.isprintable() else "".join(c if c.isprintable() or c == "\n" else " " for c in text)


def one_line(said: object) -> str:
    """Return the text of an error, or of any object, as one printable line of at most ``LINE`` characters.

    The text may hold file names that are not UTF-8, or colours of a terminal. If a module of an extra is not installed,
    the line is the command that installs the extra.
    """
    try:
        text = str(said)
    except BaseException:  # a faulty __str__ may raise anything; the error is reported all the same
        text = "an error without a text"
    if isinstance(said, ModuleNotFoundError) and (extra := extra_with(said.name or "")):
        text = f"{distribution_of(said.name or '')} is not installed; get it with: {install(extra)}"
    text = " ".join(printable(text[: 2 * LINE]).split())
    return text if len(text) <= LINE else f"{text[: LINE - 1]}…"


def in_seconds(duration_s: float) -> str:
    """Return a duration as error messages give it: with three digits, or from 1000 s on as a whole number."""
    return f"{duration_s:.3g} s" if duration_s < 1000 else f"{duration_s:.0f} s"


def counted(number: int, what: str) -> str:
    """Return ``1 row`` or ``2 rows``."""
    return f"{number} {what}{'s' * (number != 1)}"


def extra_with(*modules: str) -> str:
    """Return the first extra that brings all ``modules``, or an empty text if no extra does."""
    wanted = {module.partition(".")[0] for module in modules}
    return next((extra for extra, brought in EXTRAS.items() if wanted.issubset(brought)), "")


def distribution_of(module: str) -> str:
    """Return the name by which pip knows a module."""
    top = module.partition(".")[0]
    return DISTRIBUTIONS.get(top, top)


def absent(modules: Iterable[str]) -> list[str]:
    """Return the pip names of the modules that are not installed."""
    from importlib.util import find_spec

    return [distribution_of(module) for module in modules if find_spec(module) is None]


def require(*modules: str) -> None:
    """Raise CapabilityError if a module is not installed.

    The error names all absent modules, and an extra that brings everything that the caller requires.
    """
    if names := absent(modules):
        *rest, last = names
        text, them = (f"{', '.join(rest)} and {last} are", "them") if rest else (f"{last} is", "it")
        raise CapabilityError(f"{text} not installed; get {them} with: {install(extra_with(*modules))}")


def install(extra: str) -> str:
    """Return the command that installs an extra."""
    return f"pip install 'thalweg[{extra}]'"


def warn_dropped(what: str, source: object) -> None:
    """Warn that an object with hosts, sockets or processes was dropped and not closed. ``what`` names the object."""
    warnings.warn(f"{what} was dropped and not closed; use with", ResourceWarning, stacklevel=3, source=source)


def nearest(word: str, known: Iterable[str], *, most: int = 1, cutoff: float = 0.5) -> str:
    """Return ``did you mean 'x'?`` with at most ``most`` known words near to ``word``.

    If no known word is near, return a list of known words. ``cutoff``: the least similarity of two words (0 to 1, see
    difflib). Upper and lower case count as equal.
    """
    import difflib  # only errors need difflib: a supervisor starts sooner without it

    names = list(dict.fromkeys(known))
    folded = {name.lower(): name for name in reversed(names)}
    if matches := difflib.get_close_matches(word.lower(), folded, n=most, cutoff=cutoff):
        return f"did you mean {' or '.join(repr(folded[key]) for key in matches)}?"
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return f"known are {', '.join(names[:LISTED]) or 'none'}{more}"


def expect(given: object, kind: type | UnionType, what: str) -> None:
    """Raise UsageError unless ``given`` is a ``kind``. ``what``: the expected value in words.

    No truth value is a number.
    """
    if not isinstance(given, kind) or (isinstance(given, bool) and kind is not bool):
        raise UsageError(f"{what}, not {shown(given)}")


def words(given: object, what: str) -> tuple[str, ...]:
    """Return a collection of texts as a tuple. Raise UsageError for anything else.

    A single text is refused, because its letters would count as elements.
    """
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise UsageError(f"{what}, not {shown(given)}")
    for text in (texts := tuple(given)):
        expect(text, str, what)
    return texts


def shown(given: object) -> str:
    """Return a value that a caller gave as text, shortened to ``SHOWN`` characters for an error message."""
    try:
        text = one_line(repr(given))
    except Exception:  # a caller's own ``__repr__`` may raise anything
        text = type(given).__name__
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
