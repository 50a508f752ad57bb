"""Which machines to rent for a tree of operators, and what runs on each (Benoit et al., 2008)."""
