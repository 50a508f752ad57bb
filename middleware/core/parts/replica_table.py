"""Replicas of operators' states kept by a host, by run."""

from __future__ import annotations

from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.run_id import RunId

Replicas = dict[str, dict[int, m.Checkpoint]]  # by operator and partition; each checkpoint contains the bytes


class ReplicaTable:
    """Replicas kept by a host, by run. The generations of a run share replicas."""

    def __init__(self) -> None:
        self.of_runs: dict[tuple[str, RunId], Replicas] = {}  # by client and run

    def of(self, install: m.Install) -> Replicas:
        """Return the replicas of a run on this host, by operator and partition."""
        return self.of_runs.setdefault((install.client, install.run.first_generation), {})

    def drop(self, client: str, run_id: RunId) -> None:
        """Forget the replicas of a run."""
        self.of_runs.pop((client, run_id.first_generation), None)
