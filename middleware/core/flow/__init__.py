"""Nodes of a run on a host, and the demands and partitions between them.

- ``flow`` has the rules between hosts, and ``node`` those of a single node. ``node_states`` has the states.
- ``demands`` repeats demands, ``outputs`` sends partitions, and ``code_calls`` says when code runs. ``send_window`` and
  ``receive_window`` hold what a node has sent and got.
- ``directory`` knows where nodes are, ``tree`` what they are connected to, ``tails`` what has stayed behind.
- The application's side is ``client.flow``. Messages: ``protocol.flow``.
"""
