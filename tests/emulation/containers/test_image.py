"""The container image: its wheel, its Dockerfile, and the errors if the image cannot be built."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from fake_apt import fake_apt

from thalweg.emulation.containers import engine as docker_engine
from thalweg.emulation.containers import image as docker_image
from thalweg.middleware.errors import CapabilityError, TestbedError, UsageError


def test_the_written_wheel_installs_the_same_code_as_the_installed_package(tmp_path: Path) -> None:
    digest = docker_image.write_own_wheel(tmp_path)
    (wheel,) = tmp_path.glob("thalweg-*-py3-none-any.whl")
    target = tmp_path / "there"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(target)]
    subprocess.run([*command, "--disable-pip-version-check", str(wheel)], check=True, capture_output=True)
    ask = "import thalweg; from thalweg.emulation.containers import image;print(thalweg.__file__, image.code_digest())"
    words = subprocess.run(
        [sys.executable, "-P", "-c", ask],
        env={"PYTHONPATH": str(target)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert words[0] == str(target / "thalweg" / "__init__.py")
    assert words[1] == digest
    assert (target / "thalweg" / "py.typed").exists()
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "thalweg/middleware/shell/daemon.py" in names
    assert any(name.endswith("entry_points.txt") for name in names)
    assert not any("test" in name.split("/")[1] for name in names)


def test_the_dockerfile_is_found_and_copies_the_prepared_libraries() -> None:
    text = docker_image.dockerfile().read_text()
    assert "COPY wheelhouse/libraries" in text
    assert "USER thalweg" in text
    assert "HEALTHCHECK" in text


def test_a_missing_mmdebstrap_is_reported_with_the_package_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CapabilityError, match=r"needs mmdebstrap; install mmdebstrap$"):
        docker_image._make_base(None, "base")
    fake_apt(tmp_path, real=["mmdebstrap"])
    with pytest.raises(CapabilityError, match=r"install mmdebstrap .*apt-get install mmdebstrap`"):
        docker_image._make_base(None, "base")


def test_a_wheelhouse_without_all_wheels_is_refused(tmp_path: Path) -> None:
    (tmp_path / "numpy-2.0-cp311-cp311-linux_x86_64.whl").touch()
    with pytest.raises(UsageError, match="has no wheel of pyzmq, msgspec, pillow"):
        docker_image._copy(tmp_path, tmp_path)


@pytest.mark.parametrize(
    ("said", "kind", "remedy"),
    [
        ("Error while fetching server API version: ('Connection aborted.', PermissionError(13, 'Permission denied'))",
         CapabilityError, "usermod -aG docker"),
        ("Error while fetching server API version: ('Connection aborted.', FileNotFoundError(2, 'No such file'))",
         CapabilityError, "dockerd"),
        ("no space left on device", TestbedError, "no space left"),
    ],
)  # fmt: skip
def test_an_error_of_the_engine_is_explained_with_a_remedy(said: str, kind: type[Exception], remedy: str) -> None:
    error = docker_engine.explained(Exception(said), "building")
    assert type(error) is kind
    assert remedy in str(error)
    assert "\n" not in str(error)


def test_a_missing_engine_is_reported_with_the_alternative(tmp_path: Path, runtime_folder: Path) -> None:
    code = "from thalweg.experiments.cli.main import main; main()"
    warned = ("-W", "always::ResourceWarning")  # of a socket that is left open, in a line of its own
    done = subprocess.run(
        [sys.executable, *warned, "-c", code, "testbed", "up", "--backend", "docker", "--hosts", "2"],
        env={"DOCKER_HOST": f"unix://{tmp_path}/none.sock", "XDG_RUNTIME_DIR": str(runtime_folder)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "no Docker engine answers at unix://" in done.stderr
    assert "use netns instead of docker" in done.stderr
    assert list((runtime_folder / "thalweg").iterdir()) == []
