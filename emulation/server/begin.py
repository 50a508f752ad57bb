"""Start of a supervisor's process, ``python -P -m thalweg.emulation.server.begin``. Each testbed waits for it."""

import gc
import os
import sys

if __name__ == "__main__":
    gc.disable()  # nothing that an import makes is garbage, and looking for some takes a tenth of the start
    from thalweg.emulation.server.supervisor import main

    gc.freeze()
    gc.enable()
    main(*sys.argv[1:])
    os._exit(0)  # tidying up what was imported would take longer than all the rest
