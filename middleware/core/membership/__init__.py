"""Hosts that join a run while it goes on, or leave it.

- ``membership`` has the rules and is the client's part. A host that leaves says so itself (``core.host``, R6).
- The application's side is ``client.membership``. Messages: ``protocol.membership``.
"""
