"""Programs for users: the command line, workloads, and analysis on Spark."""
