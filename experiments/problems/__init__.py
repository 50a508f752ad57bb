"""Problem files: what is to be placed, or to be rented, and what there is."""
