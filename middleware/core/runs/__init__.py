"""Run on a host, which passes messages, notes, timers and ends of transfers to the parts of the run."""
