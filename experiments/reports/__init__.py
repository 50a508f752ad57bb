"""HTML page about several runs and sweeps."""
