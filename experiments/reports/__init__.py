"""One HTML page about any number of runs and sweeps."""
