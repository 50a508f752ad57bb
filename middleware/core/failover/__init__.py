"""A run goes on that has lost a host, as its next generation.

- ``checkpoints`` has the rules of replicas and is a host's part, with ``replica_placement``.
- ``recovery`` has the rules of generations and is the client's part, with ``rejoin_policy``. ``generation_states`` has
  the states.
- ``carried_over`` says what goes on as it is, and ``failover_runs`` what a host keeps beyond a generation.
- The application's side is ``client.failover``. Messages: ``protocol.failover``.
"""
