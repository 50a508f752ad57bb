"""Runtime of Thalweg: a pure core that decides, and a ZeroMQ shell around the core."""
