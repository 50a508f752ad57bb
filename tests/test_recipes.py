"""Recipes for continuous integration and laptops: the page shows the files, and the lines of the files run.

The long tests run the shell lines of all recipes in a bare Debian, with a checkout in place of a clone from a network.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from patience import patience

ROOT = Path(__file__).parents[1]
FOLDER, PAGE = ROOT / "docs/examples/ci", ROOT / "docs/how-to/continuous-integration.md"
FILES = sorted(
    path.relative_to(FOLDER).as_posix()
    for path in FOLDER.rglob("*")
    if path.is_file() and "__pycache__" not in path.parts
)
YAML = [name for name in FILES if name.endswith((".yml", ".yaml"))]
LIMIT_S = 600
PREPARE = """
set -e
export THALWEG=$PWD THALWEG_REQUIRE=netns
cp -r docs/examples/ci ~/project
modprobe() { echo "not in a chroot: modprobe $*"; }
"""
AS_A_USER = """
sudo() { echo "by root, before: $*"; }
python3 -m venv ~/python
PATH=~/python/bin:$PATH
"""


def scripts_of_yaml(text: str) -> list[str]:
    """Return the values of the keys ``run`` and ``script``: a line, a block, or a list of lines."""
    texts, lines = [], text.splitlines()
    for number, line in enumerate(lines):
        key = re.fullmatch(r"([ -]*)(?:run|script):(?: (.*))?", line)
        if key is None:
            continue
        if key[2] not in (None, "|"):
            texts.append(key[2])
            continue
        inner = []
        for below in lines[number + 1 :]:
            if below.strip() and len(below) - len(below.lstrip()) <= len(key[1]):
                break
            inner.append(below.strip() if key[2] else below.strip().removeprefix("- "))
        texts.append("\n".join(inner).strip())
    return texts


def scripts(name: str) -> list[str]:
    """Return the shell scripts of a recipe."""
    text = (FOLDER / name).read_text()
    if name.endswith("Dockerfile"):
        return re.findall(r"^RUN (.*)$", text.replace("\\\n", ""), re.MULTILINE)
    if name.endswith(".json"):
        return [json.loads(text)["postCreateCommand"]]
    return scripts_of_yaml(text)


def test_scripts_are_found_in_lines_blocks_and_lists() -> None:
    text = "a:\n  - name: x\n    run: one\n  - run: |\n      two\n        three\n\n      four\n"
    text += "  script:\n    - five: 5\n    - six\nb: 1\n"
    assert scripts_of_yaml(text) == ["one", "two\nthree\n\nfour", "five: 5\nsix"]
    assert [len(scripts(name)) for name in YAML] == [5, 1, 2]


@pytest.mark.parametrize("name", FILES)
def test_the_page_shows_every_recipe_file_unchanged(name: str) -> None:
    blocks = re.findall(r'^```\w+ title="([^"]*)"\n(.*?)^```$', PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert dict(blocks)[name] == (FOLDER / name).read_text()


@pytest.mark.parametrize("name", [name for name in FILES if not name.endswith(".py")])
def test_scripts_are_valid_shell(name: str) -> None:
    for script in scripts(name):
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def bare(script: str, *user: str) -> str:
    """Return the output of a script in a bare Debian with a copy of the last commit. The chroot ends with this call."""
    words = ["bash", str(ROOT / ".ci/chroot"), "--bare", "trixie", *user, "bash", "-c", PREPARE + script]
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )  # fmt: skip
    try:
        printed, _ = process.communicate(timeout=patience(LIMIT_S))
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)  # and .ci/chroot removes its folder
            process.wait(patience(60))
    assert process.returncode == 0, printed[-5000:]
    return printed


def in_project(*names: str) -> str:
    """Return the scripts of recipes, one after the other, in the folder of the sample project."""
    return "\n".join(["cd ~/project", *(script for name in names for script in scripts(name))])


CONTAINER = in_project(".devcontainer/Dockerfile") + "\nPATH=/opt/wan/bin:$PATH\n"
CONTAINER += in_project(".devcontainer/devcontainer.json") + "\npython -m pytest -ra"
RECIPES = {
    "github": (AS_A_USER + in_project("github-actions.yml"), "--user"),
    "gitlab": (in_project("gitlab-ci.yml"),),
    "container": (CONTAINER,),
    "machine": (in_project("lima.yaml") + "\n~/wan/bin/python -m pytest -ra -p no:cacheprovider",),
}


@pytest.mark.long
@pytest.mark.timeout(4 * LIMIT_S)
@pytest.mark.program("mmdebstrap")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for a chroot")
@pytest.mark.parametrize("recipe", RECIPES)
def test_the_lines_of_a_recipe_run_the_tests_of_the_sample_project(recipe: str) -> None:
    printed = bare(*RECIPES[recipe])
    assert re.search("1 passed, 1 skipped|2 passed", printed), printed[-5000:]  # one needs netem
