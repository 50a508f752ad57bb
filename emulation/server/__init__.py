"""The process that holds a testbed, whatever its hosts are."""
