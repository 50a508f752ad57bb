"""Advice to install a program names a package only if apt can install it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from fake_apt import fake_apt, write_program

from thalweg.middleware.platform import packages
from thalweg.middleware.platform.packages import find_package, install_line

JAVAS = ("openjdk-17-jre-headless", "openjdk-21-jre-headless", "default-jre-headless")


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the only folder of programs, for root."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return tmp_path


def test_the_first_package_that_can_be_installed_is_named(path: Path) -> None:
    fake_apt(path, real=["openjdk-17-jre-headless", "default-jre-headless"])
    assert install_line("Java", *JAVAS) == "install Java with `apt-get install openjdk-17-jre-headless`"


def test_a_purely_virtual_package_is_passed_over(path: Path) -> None:
    fake_apt(path, real=["openjdk-21-jre-headless"], virtual=["openjdk-17-jre-headless"])
    assert install_line("Java", *JAVAS) == "install Java with `apt-get install openjdk-21-jre-headless`"


def test_an_unknown_package_is_not_named(path: Path) -> None:
    fake_apt(path, real=["bash"])
    assert install_line("Java", *JAVAS) == "install Java (apt-get finds no package of it; `apt-get update` may help)"
    assert install_line("Java") == "install Java (apt-get finds no package of it; `apt-get update` may help)"


def test_the_advice_without_apt_names_the_program_alone(path: Path) -> None:
    assert install_line("Java 17 or newer", *JAVAS) == "install Java 17 or newer"


def test_a_group_of_packages_is_named_only_if_every_package_can_be_installed(path: Path) -> None:
    fake_apt(path, real=["gcc", "tcc", "musl-dev"])
    assert find_package("gcc libc6-dev", "tcc musl-dev") == "tcc musl-dev"


def test_the_advice_for_an_ordinary_user_names_root_or_sudo(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    fake_apt(path, real=["iperf3"])
    assert install_line("iperf3", "iperf3") == "install iperf3 as root with `apt-get install iperf3`"
    write_program(path / "sudo", "#!/bin/sh\n")
    assert install_line("iperf3", "iperf3") == "install iperf3 with `sudo apt-get install iperf3`"


def test_apt_that_hangs_or_fails_names_no_package(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_program(path / "apt-cache", "#!/bin/sh\nexit 100\n")
    assert install_line("a compiler", "gcc") == "install a compiler"
    monkeypatch.setattr(packages, "APT_S", 0.1)
    write_program(path / "apt-cache", "#!/bin/sh\nwhile :; do :; done\n")
    assert install_line("a compiler", "tcc") == "install a compiler"


def test_apt_is_asked_once(path: Path) -> None:
    fake_apt(path, real=["gcc"])
    assert find_package("gcc") == "gcc"
    fake_apt(path)
    assert find_package("gcc") == "gcc"


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("apt-cache"), reason="needs apt")
def test_the_output_of_the_installed_apt_is_understood() -> None:
    known = subprocess.run(["apt-cache", "policy", "dpkg"], capture_output=True, text=True, check=True)
    assert "dpkg:" in known.stdout
    assert find_package("no-such-package", "dpkg") == "dpkg"
    assert find_package("c-compiler") == ""  # purely virtual
