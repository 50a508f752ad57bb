"""What a testbed records of itself from its start: what links carried, changes of links and hosts, and processes."""
