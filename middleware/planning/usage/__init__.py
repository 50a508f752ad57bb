"""Placing queries by their network usage: in a space of coordinates, and by the latencies themselves."""
