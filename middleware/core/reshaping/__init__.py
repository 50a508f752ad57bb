"""Another tree of the same sources takes the place of the present one, between two partitions.

- ``reshaping`` has the rules and is a host's part. ``shape`` says what another tree is.
- ``inheritance`` hands states over to operators of the new tree, with rules of its own.
- The client proposes trees (``barrier``). Messages: ``protocol.reshaping``.
"""
