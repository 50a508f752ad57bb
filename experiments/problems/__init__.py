"""Problem files: a dataflow to place, or machines to rent, with the hosts or offers."""
