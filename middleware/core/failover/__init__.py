"""Failover: continuation of a run that has lost a host, as the next generation of the run.

- ``checkpoints`` has the rules of replicas and is the part of a host, with ``replica_placement``.
- ``recovery`` has the rules of generations and is the part of the client, with ``rejoin_policy``. ``generation_states``
  has the states.
- ``carried_over`` selects the operators that continue. ``failover_runs`` has the state that outlives a generation.
- The application's side is ``client.failover``. Messages: ``protocol.failover``.
"""
