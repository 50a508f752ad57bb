"""Choice of machines to rent for a tree of operators, and of the operators on every machine (Benoit et al., 2008)."""
