"""Parts of a run: definition, creation, and the services shared by the runs of a host.

- ``part`` has the rules.
- ``handlers`` is the record by which a part registers handlers.
- ``host_services`` lists the shared services.
"""
