"""What people run: the command line, workloads and analysis on Spark."""
