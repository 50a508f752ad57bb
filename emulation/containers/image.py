"""Image that every emulated host runs: its wheelhouse, its base, and the build without a network.

The wheelhouse holds Thalweg as installed here, and the dependencies that a host imports (no Spark, no plots), for the
base image's Python. pip fetches it, because pip knows this machine's indexes and proxies. The build then needs neither.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib.metadata import distribution, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

import thalweg
from thalweg.emulation.containers.engine import LABEL, failures, sdk, talking
from thalweg.middleware.errors import CapabilityError, TestbedError, UsageError, one_line, require
from thalweg.middleware.files.reading import reason
from thalweg.middleware.platform.files import check_regular
from thalweg.middleware.platform.packages import install_line
from thalweg.middleware.platform.python import find_program, isolated_command, module_command

DEFAULT_BASE = "python:3.11-slim-bookworm"
OWN_BASE = "thalweg-base:bookworm"
BASE_PACKAGES = "python3,python3-venv,iproute2"
CODE_LABEL = f"{LABEL}.code"
HOST_LIBRARIES = ("pyzmq", "msgspec", "numpy", "pillow", "psutil", "pyroute2", "typer", "rich")
"""Libraries that host processes and the client's worker import, directly or through ``thalweg``."""
RECORDS_LIBRARY = "pyarrow"  # in the image if it is installed here. Hosts without it take part in runs without records
OLDEST_PYTHON = (3, 11)
OLDEST_GLIBC = 17  # manylinux2014 is glibc 2.17
BUILD_S = 900
_ABOUT_BASE = (
    "import json, os, platform, shutil, sys, venv, ensurepip;"
    "libc, has_ip = os.confstr('CS_GNU_LIBC_VERSION'), bool(shutil.which('ip'));"
    "print(json.dumps([sys.version_info[:2], libc, platform.machine(), has_ip]))"
)

Tell = Callable[[str], None]


class Built(msgspec.Struct, frozen=True):
    """Built image: name, identity, size, and the base image."""

    image: str
    id: str
    base: str
    size_bytes: int


def default_image() -> str:
    """Return the name of the image of this version."""
    return f"thalweg:{version('thalweg')}"


def build(
    image: str | None = None,
    base: str | None = None,
    *,
    wheelhouse: Path | None = None,
    make_base: bool = False,
    tell: Tell = lambda what: None,
) -> Built:
    """Build the image and return it. ``tell`` is called with a description of each step.

    ``base``: an image with Python 3.11 or newer and venv. The default is ``OWN_BASE`` if the engine has it, else
    ``DEFAULT_BASE``. ``make_base``: build ``OWN_BASE`` from Debian packages with mmdebstrap. ``wheelhouse``: folder of
    wheels, which are then not fetched. Raises CapabilityError without an engine or a base, TestbedError if the build
    fails, and UsageError for an unsuitable base or wheelhouse.
    """
    docker, client = sdk()
    name = image or default_image()
    with talking(f"building {name}"):
        if make_base:
            tell(f"making the base {base or OWN_BASE} with mmdebstrap")
            base = _make_base(client, base or OWN_BASE)
        base = _find_base(docker, client, base, tell)
        python, tags = _about(docker, client, base, tell)
        with tempfile.TemporaryDirectory(prefix="thalweg-image-") as folder:
            context = Path(folder)
            libraries = context / "wheelhouse" / "libraries"
            libraries.mkdir(parents=True)
            if wheelhouse is None:
                tell(f"fetching wheels for Python {python}")
                _fetch(libraries, python, tags)
            else:
                _copy(wheelhouse, libraries)
            digest = write_own_wheel(libraries.parent)
            shutil.copy(dockerfile(), context / "Dockerfile")
            tell(f"building {name} on {base}, without a network")
            _run_build(docker, client, context, name, base, digest)
        built = client.images.get(name)
        _forget_former(docker, client)
    return Built(name, built.id, base, built.attrs["Size"])


def dockerfile() -> Path:
    """Return the path of the Dockerfile, at the project's root or installed beside this module."""
    here = Path(__file__).resolve().parent
    return next(path for path in (here.parents[1] / "Dockerfile", here / "Dockerfile") if path.is_file())


def code_digest() -> str:
    """Return the digest of the code installed here. Equal sources have equal digests."""
    return _digest({name: path.read_bytes() for name, path in _sources()})


def _digest(parts: Mapping[str, bytes]) -> str:
    whole = hashlib.sha256()
    for name, data in parts.items():
        whole.update(f"{name}\0{hashlib.sha256(data).hexdigest()}\n".encode())
    return whole.hexdigest()


def check_code(client: Any, image: str) -> None:
    """Raise UsageError if an image holds different code than this installation. Its processes would not fit."""
    label = client.images.get(image).labels.get(CODE_LABEL)
    if label is None:
        raise UsageError(
            f"image {image} was not made by `thalweg testbed build`; build it with that command, or base yours on such"
            " an image"
        )
    if label != code_digest():
        raise UsageError(
            f"image {image} holds another state of Thalweg than is installed here; run thalweg testbed build"
        )


# --- the base ---------------------------------------------------------------------------------------


def _find_base(docker: Any, client: Any, base: str | None, tell: Tell) -> str:
    for name in (base,) if base else (OWN_BASE, DEFAULT_BASE):
        with suppress(docker.errors.ImageNotFound):
            client.images.get(name)
            return name
    wanted = base or DEFAULT_BASE
    tell(f"pulling {wanted}")
    try:
        client.images.pull(wanted)
    except failures() as error:
        why = getattr(error, "explanation", None) or str(error)
        raise CapabilityError(
            f"the engine has no image {wanted} and cannot pull it ({one_line(why)}); name one that it has"
            " with --base-image (Python 3.11 with venv), or make one from Debian packages with --make-base"
        ) from None
    return wanted


def _make_base(client: Any, name: str) -> str:
    """Import a minimal Debian with Python as an image, built from packages alone. Return its name."""
    tool = find_program("mmdebstrap")
    if tool is None:
        raise CapabilityError(f"--make-base needs mmdebstrap; {install_line('mmdebstrap', 'mmdebstrap')}")
    with tempfile.TemporaryDirectory(prefix="thalweg-base-") as folder:
        archive = Path(folder) / "base.tar"
        command = [tool, "--quiet", "--variant=minbase", f"--include={BASE_PACKAGES}"]
        command += ["--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/locale/*"]
        command += ["--dpkgopt=path-exclude=/usr/share/man/*", "bookworm", str(archive)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or ["no reason given"]
            raise TestbedError(f"mmdebstrap failed: {lines[-1]}; see that Debian's packages can be fetched here")
        repository, _, tag = name.partition(":")
        client.api.import_image(src=str(archive), repository=repository, tag=tag or "latest")
    return name


def _about(docker: Any, client: Any, base: str, tell: Tell) -> tuple[str, list[str]]:
    """Return the base's Python ("3.11") and the platform tags of wheels that run on it."""
    try:
        command = isolated_command("-c", _ABOUT_BASE, python="python3")
        output = client.containers.run(base, command, network_mode="none", remove=True, labels={LABEL: "build"})
    except docker.errors.ContainerError as error:
        why = (error.stderr or b"").decode(errors="replace").strip().splitlines()[-1:] or [str(error)]
        raise UsageError(f"base image {base}: {why[0]}; it needs python3 with venv (python3-venv)") from None
    except docker.errors.APIError as error:
        raise UsageError(f"base image {base} has no python3 ({error.explanation}); choose another") from None
    (major, minor), libc, machine, has_ip = json.loads(output)
    if (major, minor) < OLDEST_PYTHON:
        raise UsageError(f"base image {base} has Python {major}.{minor}; Thalweg needs 3.11 or newer")
    if not has_ip:
        tell(f"note: {base} has no iproute2, so hosts have no ip and tc; one with it: --make-base")
    kind, _, number = (libc or "").partition(" ")
    if kind != "glibc":
        raise UsageError(f"base image {base} is not built on glibc ({libc}); choose one of Debian, Ubuntu or Fedora")
    newest = int(number.split(".")[1])
    tags = [f"manylinux_2_{n}_{machine}" for n in range(newest, OLDEST_GLIBC - 1, -1)]
    return f"{major}.{minor}", [*tags, f"manylinux2014_{machine}", f"linux_{machine}"]


# --- the wheelhouse ---------------------------------------------------------------------------------


def _fetch(wheels: Path, python: str, tags: list[str]) -> None:
    require("docker", "PIL")  # hosts get the installed versions
    names = [*HOST_LIBRARIES, *([RECORDS_LIBRARY] if find_spec(RECORDS_LIBRARY) else [])]
    wanted = [f"{name}=={version(name)}" for name in names]  # the versions tested here
    command = module_command("pip", "download", "--quiet", "--disable-pip-version-check", "--dest", str(wheels))
    command += ["--only-binary=:all:", "--implementation=cp", f"--python-version={python}"]
    command += [f"--platform={tag}" for tag in tags]
    done = subprocess.run([*command, *wanted], capture_output=True, text=True)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if "ERROR" in line or "No module" in line]
        raise TestbedError(
            f"pip could not fetch the wheels: {(errors or done.stderr.splitlines() or ['no reason given'])[0]};"
            " see pip's index or proxy, or give wheels with --wheelhouse"
        )


def _copy(wheelhouse: Path, wheels: Path) -> None:
    paths = sorted(wheelhouse.glob("*.whl")) if wheelhouse.is_dir() else []
    have = {path.name.split("-")[0].lower().replace("_", "-") for path in paths}
    missing = [name for name in HOST_LIBRARIES if name not in have]
    if missing:
        raise UsageError(
            f"wheelhouse {wheelhouse} has no wheel of {', '.join(missing)}; fill it on a machine with an index:"
            f" pip download --only-binary=:all: --dest DIR {' '.join(HOST_LIBRARIES)}"
        )
    for path in paths:
        if not path.name.startswith("thalweg-"):
            try:
                check_regular(path)
                shutil.copy(path, wheels)
            except OSError as error:
                raise UsageError(f"wheel {path} cannot be copied: {reason(error)}") from None


def _sources() -> Iterator[tuple[str, Path]]:
    """Yield the name in the package and the path of every file of Thalweg, in a fixed order."""
    root = Path(thalweg.__file__).parent
    for top in (root, *sorted(path for path in root.iterdir() if path.is_dir())):
        for path in sorted(top.glob("*" if top == root else "**/*")):
            if path.suffix in (".py", ".typed"):
                yield f"thalweg/{path.relative_to(root)}", path


def write_own_wheel(folder: Path) -> str:
    """Write Thalweg as installed here into a wheel (binary distribution format, PEP 427). Return the code's digest.

    The wheel is made of the installed files. A build would need the sources, the build system, and therefore the
    network.
    """
    own = distribution("thalweg")
    info = f"thalweg-{own.version}.dist-info"
    parts = {name: path.read_bytes() for name, path in _sources()}
    digest = _digest(parts)
    for name in ("METADATA", "entry_points.txt"):
        parts[f"{info}/{name}"] = (own.read_text(name) or "").encode()
    parts[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: thalweg\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = [
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}"
        for name, data in parts.items()
    ]
    parts[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
    with zipfile.ZipFile(folder / f"thalweg-{own.version}-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in parts.items():
            wheel.writestr(zipfile.ZipInfo(name), data)
    return digest


def _run_build(docker: Any, client: Any, context: Path, name: str, base: str, digest: str) -> None:
    try:
        client.images.build(
            path=str(context),
            tag=name,
            buildargs={"BASE_IMAGE": base},
            network_mode="none",
            labels={LABEL: "image", CODE_LABEL: digest},
            rm=True,
            forcerm=True,
            timeout=BUILD_S,
        )
    except docker.errors.BuildError as error:
        lines = [str(line.get("stream") or line.get("error") or "").strip() for line in error.build_log]
        last = next((line for line in reversed(lines) if "ERROR" in line or "rror:" in line), str(error))
        raise TestbedError(f"building {name} failed: {one_line(last)}") from None


def _forget_former(docker: Any, client: Any) -> None:
    """Remove the nameless images of earlier builds. The newest stage stays, because it makes the next build quick."""
    for kind, keep in (("image", 0), ("stage", 1)):
        nameless = client.api.images(filters={"dangling": True, "label": f"{LABEL}={kind}"})
        for nameless_image in sorted(nameless, key=lambda one: -int(one["Created"]))[keep:]:
            with suppress(docker.errors.APIError):  # a container still runs the image
                client.api.remove_image(nameless_image["Id"])
