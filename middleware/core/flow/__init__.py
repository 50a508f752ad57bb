"""Nodes of a run on a host, and the demands and partitions between them.

- ``flow`` has the rules between hosts, and ``node`` the rules of a single node. ``node_states`` has the states.
- ``demands`` repeats demands, ``outputs`` sends partitions, and ``code_calls`` decides when code runs. ``send_window``
  and ``receive_window`` hold the outputs and inputs of a node.
- ``directory`` has the locations of nodes, ``tree`` the graph, and ``tails`` the last outputs of moved nodes.
- ``client.flow`` is the application's side. ``protocol.flow`` has the messages.
"""
