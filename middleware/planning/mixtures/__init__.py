"""Choice of the trees of a stream over several trees: candidates, and a rehearsal that predicts their deliveries."""
