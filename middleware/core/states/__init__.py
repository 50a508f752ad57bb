"""States of operators that go from one host to another.

- ``state_transfers`` sends states, by the rules of the sending host. ``awaited_states`` requests missing ones.
- A hand-over (``moving``), an heir (``reshaping``) and a replica (``failover``) each send states of their own kind.
- Messages: ``protocol.states``.
"""
