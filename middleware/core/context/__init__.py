"""Access of the core to the world, and what all parts share.

- ``outbox`` is the only way to send, record, set timers and tell the application.
- ``notes`` lists what parts tell those above them.
- ``machine`` is the base of everything with states.
"""
