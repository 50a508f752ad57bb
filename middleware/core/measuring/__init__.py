"""Measurements of a host: bandwidth and latency of links, coordinates, own load, and silence of other hosts.

- ``monitor`` keeps the estimates of bandwidth. ``prober`` and ``latency_prober`` measure on demand.
- ``coordinate_search`` and ``coordinate_table`` find the coordinates of hosts. ``meters`` counts the host's own work.
- ``silence`` detects routes that carry nothing. ``response_times`` sets how long a host may be silent.
- ``hosting.links`` joins the parts that measure links. Messages: ``protocol.measuring``.
"""
