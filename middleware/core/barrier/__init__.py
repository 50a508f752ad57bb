"""All hosts of a run change over between two partitions: to another placement, another tree, or other routes.

- ``proposal`` has the rules and the states.
- ``proposer`` is the client's part, with ``outcomes``, its records. ``member`` is a host's part.
- Messages: ``protocol.barrier``.
"""
