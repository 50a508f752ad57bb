"""Joining and leaving of hosts while a run goes on.

- ``membership`` has the rules and is the client's side. A host that leaves asks for it itself (``core.host``, R6).
- The application's side is ``client.membership``. Messages: ``protocol.membership``.
"""
