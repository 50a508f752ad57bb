"""An operator changes hosts.

- ``handover`` has the rules and the states, for both hosts.
- ``departures`` is the part of the host that an operator leaves, ``arrivals`` that of the host to which it comes.
- The application's side is ``client.moving``. Messages: ``protocol.moving``.
"""
