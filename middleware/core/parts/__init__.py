"""The parts of a run: what a part is, when it is created, and what it shares with the parts of other runs.

- ``part`` has the rules.
- ``handlers`` is the record by which a part registers what it handles.
- ``host_services`` lists what all runs on a host share.
"""
