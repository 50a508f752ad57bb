"""Entry point of the pytest plugin in an environment with Thalweg installed. The plugin's name there is ``thalweg``.

``-p no:thalweg`` switches the plugin off. A module may have only one name in pytest, so this module is separate: ``-p
thalweg.emulation.pytest_plugin`` then loads the plugin in such an environment without an error.
"""

from thalweg.emulation.pytest_plugin import pytest_addoption as pytest_addoption
from thalweg.emulation.pytest_plugin import pytest_runtest_call as pytest_runtest_call
from thalweg.emulation.pytest_plugin import pytest_runtest_makereport as pytest_runtest_makereport
from thalweg.emulation.pytest_plugin import pytest_runtest_setup as pytest_runtest_setup
from thalweg.emulation.pytest_plugin import pytest_runtest_teardown as pytest_runtest_teardown
from thalweg.emulation.pytest_plugin import wan as wan
