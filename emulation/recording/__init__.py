"""Record of a testbed from its start: traffic of links, changes of links and hosts, and processes."""
