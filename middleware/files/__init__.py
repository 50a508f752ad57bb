"""Reading of users' files within limits, and writing of whole files or none."""
