"""Start, supervision and end of the runs of a host.

- ``runs`` opens and closes runs, by the rules of ``core.host``. ``admission`` says in which runs the host takes part.
- ``coordinator`` has the rules for a client that installs and watches runs.
- Messages: ``protocol.hosting``.
"""
