"""What a host measures: bandwidth and latency of links, coordinates, its own load, and the silence of others.

- ``monitor`` keeps the estimates of bandwidth. ``prober`` and ``latency_prober`` measure on demand.
- ``silence`` says which routes carry nothing, and ``response_times`` how long a host may be silent.
- ``hosting.links`` joins these on a host. Messages: ``protocol.measuring``.
"""
