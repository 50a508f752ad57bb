"""Queries that share the nodes of a run, and subscriptions of other clients to these nodes.

- ``queries`` has the rules, and is the part of the run's client. ``query_attachment`` is the part of every host.
- ``subscribers`` is the part of the run's client for subscriptions. The subscribing client has ``run_subscriptions``
  for one run and ``subscription_table`` for all runs.
- The application's side is ``client.queries``. The messages are in ``protocol.queries``.
"""
