"""Moves of single operators between two hosts.

- ``handover`` has the rules and the states, for both hosts.
- ``departures`` is the part of the host that an operator leaves, ``arrivals`` the part of its new host.
- The application's side is ``client.moving``. Messages: ``protocol.moving``.
"""
