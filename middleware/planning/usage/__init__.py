"""Placement of queries by network usage: in a space of coordinates, and by measured latencies."""
