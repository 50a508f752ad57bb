"""What decides on moves while data flows.

- ``central`` has the rules of plans by the client, ``by_epochs`` and ``by_coordinates`` those of decisions by hosts.
- ``gossip`` spreads what these need.
- The application's side is ``client.steering``, and ``protocol.adaptation`` has the options.
"""
