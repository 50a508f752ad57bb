"""A run on a host: it passes messages, notes, timers and ends of transfers to the parts that handle them."""
