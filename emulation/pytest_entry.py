"""Entry point of the plugin in an environment where Thalweg is installed: its name is ``thalweg``.

``-p no:thalweg`` switches it off. It is a module of its own, so that ``-p thalweg.emulation.pytest_plugin`` loads the
plugin there as well without an error of pytest's: no module may have two names.
"""

from thalweg.emulation.pytest_plugin import pytest_addoption as pytest_addoption
from thalweg.emulation.pytest_plugin import pytest_runtest_call as pytest_runtest_call
from thalweg.emulation.pytest_plugin import pytest_runtest_makereport as pytest_runtest_makereport
from thalweg.emulation.pytest_plugin import pytest_runtest_setup as pytest_runtest_setup
from thalweg.emulation.pytest_plugin import pytest_runtest_teardown as pytest_runtest_teardown
from thalweg.emulation.pytest_plugin import wan as wan
