"""The code of a dataflow as far as this process can look at it: classes, parameters and kinds of nodes."""

from __future__ import annotations

from thalweg.middleware.dataflow import Dataflow, Node
from thalweg.middleware.errors import DataflowError, NotAllowedError, OperatorError
from thalweg.middleware.loading import METHODS, Allow, check_types, find_class, load_code


def check_codes_here(dataflow: Dataflow, client: str, allow: Allow) -> tuple[str, ...]:
    """Construct the code of every node that can be constructed here, and return the names of those that cannot be seen.

    Not seen is code of a package that ``allow`` lacks. Of a source on another host than ``client`` the class and the
    names of parameters are looked at; it is not constructed, as it may need what only its host has, unless its class
    says otherwise (``local``). Raises DataflowError for the first node that is wrong.
    """
    unseen = []
    for node in dataflow.nodes:
        try:
            _check(node, client, allow)
        except NotAllowedError:
            unseen.append(node.name)
        except OperatorError as error:
            raise DataflowError(f"{node.kind} {node.name!r}: {error}") from None
    return tuple(unseen)


def _check(node: Node, client: str, allow: Allow) -> None:
    if node.code is None:
        return
    factory = find_class(node.code, allow)
    here = node.kind == "operator" or node.pinned == client or not getattr(factory, "local", True)
    implementation = load_code(node.code, allow) if here else factory
    if not here:
        check_types(factory, node.code)
    if (here or isinstance(factory, type)) and not hasattr(implementation, METHODS[node.kind]):
        raise OperatorError(f"{node.code.use!r} cannot run as {node.kind}: it has no {METHODS[node.kind]}()")
