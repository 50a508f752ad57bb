"""Start of a supervisor's process, ``python -P -m thalweg.emulation.server.begin``. Every testbed waits for it."""

import gc
import os
import sys

if __name__ == "__main__":
    gc.disable()  # imports make no garbage, and the search for it takes a tenth of the start
    from thalweg.emulation.server.supervisor import main

    gc.freeze()
    gc.enable()
    main(*sys.argv[1:])
    os._exit(0)  # the clean-up of imported modules would take longer than everything else
