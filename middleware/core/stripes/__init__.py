"""Striped streams: one stream over several trees at once, with one run for each tree.

- ``striping`` has the rules, at the client. ``upper_feed`` feeds the upper graph, which runs once above the trees.
  ``striped_runs`` connects both with the runs of the host.
- ``stripe_code`` runs code with the indices of the stream, on each host of a stripe.
- The application's side is ``client.stripes``. Messages and names of runs: ``protocol.stripes``.
"""
