"""Change-over of a whole run between two partitions, to a new placement, a new tree or new routes.

- ``proposal`` has the rules and the states.
- ``proposer`` is the client's side, and ``outcomes`` writes the client's records. ``member`` is the side of every host.
- Messages: ``protocol.barrier``.
"""
