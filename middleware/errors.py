"""Every error Thalweg raises on purpose; foreign errors are mapped to these where they enter."""

from __future__ import annotations


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


class TraceError(UsageError):
    """A bandwidth trace that cannot be read; the text names file and line."""


class CapabilityError(UsageError):
    """This machine cannot do what was asked (no namespaces, no Java, not Linux); says what can be done."""


class TestbedError(ThalwegError):
    """A testbed could not be brought up, shaped or used."""

    __test__ = False


class ProtocolError(ThalwegError):
    """A message that cannot be decoded, or is of another protocol version or over a size limit."""


class HostLostError(ThalwegError):
    """A host the flow cannot do without did not come up, or went away for good."""


class HostAbsentError(HostLostError, UsageError):
    """A host that was named does not answer, or never came up: nothing has been lost, nothing was begun."""


class RunError(ThalwegError):
    """A run ended before its last partition; the text says which node or host ended it, and why."""
