"""A stream over several trees at once, each a run of its own.

- ``striping`` has the rules, at the client. ``upper_feed`` feeds what runs once above the trees. ``striped_runs`` joins
  both with the runs of the host.
- ``stripe_code`` has code run with the indices of the stream, on each host of a stripe.
- The application's side is ``client.stripes``. Messages and names of runs: ``protocol.stripes``.
"""
