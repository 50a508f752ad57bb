"""Tasks of a host for all of its runs: they begin, are watched and end.

- ``runs`` opens and closes runs, by the rules of ``core.host``. ``admission`` says which it takes part in.
- ``coordinator`` has the rules for a client that installs and watches its runs.
- Messages: ``protocol.hosting``.
"""
