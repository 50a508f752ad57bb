"""Nodes of a run on a host, and the demands and partitions between them.

- ``demands`` has the rules between hosts, and ``node`` those of a single node. ``node_states`` has the states.
- ``directory`` knows where nodes are, ``tree`` what they are connected to, ``tails`` what has stayed behind.
- The application's side is ``client.flow``. Messages: ``protocol.flow``.
"""
