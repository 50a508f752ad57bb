"""HTML pages that need nothing but themselves, and the report of what went on in a testbed."""
