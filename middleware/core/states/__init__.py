"""Transfer of operators' states from one host to another.

- ``state_transfers`` sends states, with the rules of the sending host. ``awaited_states`` requests missing states.
- A hand-over (``moving``), an heir (``reshaping``) and a replica (``failover``) have state messages of their own.
- Messages: ``protocol.states``.
"""
