"""Every error Thalweg raises on purpose; foreign errors are mapped to these where they enter."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from types import UnionType

EXTRAS = {  # of pyproject.toml, by the modules that are imported; the first that brings a module is advised
    "records": ("pyarrow", "jinja2"),
    "analysis": ("pyarrow", "pyspark", "scipy", "highspy", "matplotlib", "PIL", "jinja2", "networkx"),
    "docker": ("docker", "PIL"),
}
DISTRIBUTIONS = {"PIL": "pillow"}  # what pip calls a module, where the names differ
SHOWN = 80  # characters of what was given, in an error
LISTED = 12  # known words that an error lists when none is near
LINE = 4_000  # characters of a line of text by others


class ThalwegError(Exception):
    """Base of all of them. Its text is one line: what is wrong, where, and what to do."""


class UsageError(ThalwegError):
    """The caller's input cannot be used; the command line ends with exit status 2."""


class DataflowError(UsageError):
    """A dataflow that is not a valid tree; the text names the node."""


class PlacementError(UsageError):
    """A placement that leaves out a node, or names an unknown host or node."""


class PlannerError(ThalwegError):
    """A planner's own code failed, or returned no plan."""


class OperatorError(ThalwegError):
    """An operator's or source's own code cannot be found, is not allowed, or failed."""


class NotAllowedError(OperatorError):
    """Code is of a package that this host, or this client, does not allow."""


class TraceError(UsageError):
    """A bandwidth trace that cannot be read; the text names file and line."""


class CapabilityError(UsageError):
    """This machine cannot do what was asked (no namespaces, no Java, not Linux); says what can be done."""


class TestbedError(ThalwegError):
    """A testbed could not be brought up, shaped or used."""

    __test__ = False


class CommandError(TestbedError):
    """A command on a host of a testbed has failed, as ``subprocess.CalledProcessError`` of a local one.

    ``returncode``: its exit status, negative for a signal. ``stdout`` and ``stderr``: what it wrote.
    """

    def __init__(self, text: str, *, returncode: int, stdout: str, stderr: str) -> None:
        super().__init__(text)
        self.returncode, self.stdout, self.stderr = returncode, stdout, stderr


class ProtocolError(ThalwegError):
    """A message that cannot be decoded, or is of another protocol version or over a size limit."""


class RunError(ThalwegError):
    """A run ended before its last partition; the text says which node or host ended it, and why.

    What is known of it, else None: ``node`` and ``host`` are those at fault, ``index`` the partition that was being
    made; ``cause_type`` is the class that the node's code raised (``ValueError``, ``readings.Broken``), and
    ``remote_traceback`` the traceback's lines on that host, without the runtime's own.
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
    """A client's journal cannot be written, so that what was committed is known to this process alone."""


class JournalGapError(JournalError):
    """A journal lacks entries of a run, or cannot show that it has all of them.

    ``run`` is the run's id, None if the journal does not know it. ``missing`` has by sink the partitions that the
    application has committed and the journal does not have, as (first, the one after the last). ``missing`` is empty
    if nobody knows them, or if other entries are missing.
    """

    def __init__(
        self, said: str, *, run: str | None = None, missing: Mapping[str, tuple[int, int]] | None = None
    ) -> None:
        super().__init__(said)
        self.run, self.missing = run, dict(missing or {})


class MoveRefused(ThalwegError):
    """A move, or another tree, that was asked for and not carried out, or only in part. ``reason`` says why.

    ``stayed``: by operator why it is not where it was to be. ``moved``: the operators that are where they were to be,
    with their hosts, from partition ``index`` on. If nothing has changed, these are empty, and ``index`` is None.
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
    """A host the flow cannot do without did not come up, or went away for good: ``host``."""


class HostAbsentError(HostLostError, UsageError):
    """A host that was named does not answer, or never came up: nothing has been lost, nothing was begun."""


def printable(text: str) -> str:
    """Text as it can be encoded and shown on any terminal: its lines, with a space for each control character."""
    text = text.encode("utf-8", "replace").decode()
    return text if text.isprintable() else "".join(c if c.isprintable() or c == "\n" else " " for c in text)


def one_line(said: object) -> str:
    """The text of an error, or of anything, as one line: a file's name may not be UTF-8, an error may have colours."""
    try:
        text = str(said)
    except BaseException:  # whatever a class raises where it should say what it is: an error is told all the same
        text = "an error without a text"
    if isinstance(said, ModuleNotFoundError) and (extra := extra_with(said.name or "")):
        text = f"{distribution_of(said.name or '')} is not installed; get it with: {install(extra)}"
    text = " ".join(printable(text[: 2 * LINE]).split())
    return text if len(text) <= LINE else f"{text[: LINE - 1]}…"


def in_seconds(duration_s: float) -> str:
    """A time as errors say it: three digits, or all those before the point."""
    return f"{duration_s:.3g} s" if duration_s < 1000 else f"{duration_s:.0f} s"


def counted(number: int, what: str) -> str:
    """Return ``1 row`` or ``2 rows``."""
    return f"{number} {what}{'s' * (number != 1)}"


def extra_with(*modules: str) -> str:
    """Return the first extra that brings all these modules; empty if there is none."""
    wanted = {module.partition(".")[0] for module in modules}
    return next((extra for extra, brought in EXTRAS.items() if wanted.issubset(brought)), "")


def distribution_of(module: str) -> str:
    """Return the name that pip knows a module by."""
    top = module.partition(".")[0]
    return DISTRIBUTIONS.get(top, top)


def absent(modules: Iterable[str]) -> list[str]:
    """Return the names in pip of the modules that are not installed."""
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
    """The command that installs an extra."""
    return f"pip install 'thalweg[{extra}]'"


def warn_dropped(what: str, source: object) -> None:
    """Somebody has let go of what holds hosts, sockets or processes, and has not closed it."""
    warnings.warn(f"{what} was dropped and not closed; use with", ResourceWarning, stacklevel=3, source=source)


def nearest(word: str, known: Iterable[str], *, most: int = 1, cutoff: float = 0.5) -> str:
    """``did you mean 'x'?`` with the known words nearest to ``word``, at most ``most``; without any, what is known.

    ``cutoff``: how much alike two words are at least (0 to 1, see difflib); upper and lower case are alike.
    """
    import difflib  # only errors need it: a supervisor starts sooner without

    names = list(dict.fromkeys(known))
    folded = {name.lower(): name for name in reversed(names)}
    if matches := difflib.get_close_matches(word.lower(), folded, n=most, cutoff=cutoff):
        return f"did you mean {' or '.join(repr(folded[key]) for key in matches)}?"
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return f"known are {', '.join(names[:LISTED]) or 'none'}{more}"


def expect(given: object, kind: type | UnionType, what: str) -> None:
    """Raise UsageError unless ``given`` is a ``kind``; ``what`` says it in words. No truth value is a number."""
    if not isinstance(given, kind) or (isinstance(given, bool) and kind is not bool):
        raise UsageError(f"{what}, not {shown(given)}")


def words(given: object, what: str) -> tuple[str, ...]:
    """A collection of texts; UsageError for a single text, whose letters would be taken for them, or anything else."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise UsageError(f"{what}, not {shown(given)}")
    for text in (texts := tuple(given)):
        expect(text, str, what)
    return texts


def shown(given: object) -> str:
    """What a caller gave, short enough for an error."""
    try:
        text = one_line(repr(given))
    except Exception:  # a caller's own ``__repr__`` may raise anything
        text = type(given).__name__
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
