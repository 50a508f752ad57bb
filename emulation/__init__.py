"""Replacement for a real WAN: traces, tc shaping and testbeds."""
