"""Queries that share the nodes of a run, and other clients that subscribe to them.

- ``queries`` has the rules and is the client's part. ``query_attachment`` is a host's part.
- ``subscribers`` is the part of the run's client. The client that subscribes has ``run_subscriptions`` for one run and
  ``subscription_table`` for all.
- The application's side is ``client.queries``. Messages: ``protocol.queries``.
"""
