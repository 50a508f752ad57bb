"""What stands in for a WAN: traces, tc shaping and testbeds."""
