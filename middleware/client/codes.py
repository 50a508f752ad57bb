"""Check of a dataflow's code in the client's process: classes, parameters and kinds of nodes."""

from __future__ import annotations

from thalweg.middleware.dataflow import Dataflow, Node
from thalweg.middleware.errors import DataflowError, NotAllowedError, OperatorError
from thalweg.middleware.loading import METHODS, Allow, check_types, find_class, load_code


def check_codes_here(dataflow: Dataflow, client: str, allow: Allow) -> tuple[str, ...]:
    """Construct the code of nodes in this process. Return the names of the unchecked nodes.

    A node is unchecked if its code is in a package that ``allow`` lacks. A source on a host besides ``client`` may need
    data of its host. Unless its class says otherwise (``local``), the source is not constructed. Only the class and the
    parameters are then checked. Raises DataflowError for the first faulty node.
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
