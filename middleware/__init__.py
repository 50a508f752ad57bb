"""The runtime: a pure core that decides, and the ZeroMQ shell around it."""
