"""Self-contained HTML pages, and the report of a testbed."""
