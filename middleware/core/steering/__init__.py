"""Decisions on moves of operators while data flows.

- ``central`` has the rules of plans by the client. ``by_epochs`` and ``by_coordinates`` have the rules of decisions by
  hosts, and ``neighbourhood`` has the choice of a host at the end of an epoch.
- ``gossip`` spreads the figures that decisions need.
- The application's side is ``client.steering``. ``protocol.adaptation`` has the options.
"""
