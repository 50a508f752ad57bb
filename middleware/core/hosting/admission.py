"""Admission of runs: a host checks a request to take part in a run against its limits, and for consistency."""

from __future__ import annotations

from thalweg.middleware.errors import DataflowError
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.limits import CoreConfig
from thalweg.middleware.protocol.split_graph import is_inlet


def why_not(
    sender: str, install: m.Install, host: str, limits: CoreConfig, *, runs: int, draining: bool, full: bool = True
) -> str:
    """Return why ``host``, with ``runs`` runs so far, takes no part in a run. Empty: it does. Not ``full``: a guest."""
    nodes = len(install.dataflow.nodes)
    if sender != install.client or sender == host:
        return f"the run's client is {install.client!r}, and {sender!r} asks for it; a client installs its own runs"
    if full and all(peer.name != host for peer in install.peers):
        return f"host {host!r} is not among the run's peers"
    if draining:
        return "it is being drained, and takes part in no further run"
    if runs >= limits.max_runs:
        return (
            f"it has {runs} runs, and takes {limits.max_runs}; end one, or start the host with --limit max_runs=NUMBER"
        )
    if nodes > limits.max_nodes:
        return (
            f"the run has {nodes} nodes, and the host takes {limits.max_nodes}; start it with --limit max_nodes=NUMBER"
        )
    return _check_install(install, full=full)[:4000]


def _check_install(install: m.Install, *, full: bool) -> str:
    """Return why no host can open a run, whoever asks for it. Empty: a host can open the run.

    Without ``full`` the host is a guest. A guest gets the run as it is, after queries and nodes have come and left.
    """
    stream = install.run.stream
    if not stream.isprintable() or not set(stream).isdisjoint(" /~"):
        return f"the run's name {stream!r} has characters that are not printed, or one of space, / and ~"
    hosts, where = {peer.name for peer in install.peers}, {entry.node: entry.host for entry in install.locations}
    flow = install.dataflow
    for name in (install.client, *(where.values() if full else ())):
        if name not in hosts:
            return f"host {name!r} has a part in the run, and is not among its peers"
    if len(hosts) < len(install.peers) or not all(name.isprintable() for name in hosts):
        return "a host is named twice among the run's peers, or with characters that are not printed"
    try:
        # Nodes that connected the graph may have left with a query.
        begun = bool(install.starts)
        apart = begun or any(map(is_inlet, flow.nodes))  # or the trees below connect the graph
        known = hosts.union(*(node.stand_ins for node in flow.nodes))  # stand-ins may be away
        flow.validate(known if full else None, connected=full and not apart)
    except DataflowError as problem:
        return str(problem)
    missing, unknown = flow.by_name.keys() - where.keys(), where.keys() - flow.by_name.keys()
    if missing:
        return f"node {min(missing)!r} has no location"
    if unknown:
        return f"there is a location for {min(unknown)!r}, which is no node"
    if len(where) < len(install.locations):
        return "a node has two locations"
    return ""
