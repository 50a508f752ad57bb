"""Access of the core to its surroundings, and bases shared by the parts of a run.

- ``outbox`` is the only way to send, record, set timers and notify the application.
- ``notes`` lists the messages of parts to the parts above.
- ``machine`` is the base of every state machine.
"""
