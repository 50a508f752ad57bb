"""Networks and relays between two hosts of a run.

- ``route_choice`` has the rules for partitions. ``states.state_transfers`` has those for states of operators.
- The client's planner proposes routes (``barrier``), and ``steering.central`` hears of those that carry nothing.
- Messages: ``protocol.routes``.
"""
