"""The figures of Ranganathan et al. (1998) from a sweep's results, with a verdict for each claim."""
