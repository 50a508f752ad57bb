"""Replacement of the tree of a run by another tree of the same sources, between two partitions.

- ``reshaping`` has the rules, and is the part of a host. ``shape`` defines and checks the new tree.
- ``inheritance`` passes states to operators of the new tree, with rules of its own.
- The client proposes trees (``barrier``). Messages: ``protocol.reshaping``.
"""
