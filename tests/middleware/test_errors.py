"""Errors about absent libraries say what is absent, and which extra brings it."""

from __future__ import annotations

import pytest
from hidden import hide

from thalweg.middleware.errors import CapabilityError, extra_with, one_line, require


@pytest.mark.parametrize(
    ("modules", "extra"),
    [
        (["pyarrow"], "records"),
        (["pyarrow.parquet"], "records"),
        (["pyarrow", "matplotlib"], "analysis"),
        (["PIL"], "analysis"),
        (["docker", "PIL"], "docker"),
        (["no_such_module"], ""),
    ],
)
def test_the_suggested_extra_has_all_requested_modules(modules: list[str], extra: str) -> None:
    assert extra_with(*modules) == extra


def test_installed_modules_are_not_refused() -> None:
    require("msgspec", "pyarrow", "PIL")


@pytest.mark.parametrize(
    ("hidden", "says"),
    [
        (["pyarrow"], "pyarrow is not installed; get it with: pip install 'thalweg[analysis]'"),
        (["PIL"], "pillow is not installed; get it with: pip install 'thalweg[analysis]'"),
        (["PIL", "pyarrow"], "pyarrow and pillow are not installed; get them with: pip install 'thalweg[analysis]'"),
    ],
)
def test_absent_modules_are_named_as_in_pip(monkeypatch: pytest.MonkeyPatch, hidden: list[str], says: str) -> None:
    hide(monkeypatch, hidden)
    with pytest.raises(CapabilityError) as error:
        require("pyarrow", "PIL")
    assert str(error.value) == says


def test_the_error_of_a_failed_import_names_the_package_as_in_pip() -> None:
    error = ModuleNotFoundError("No module named 'PIL'", name="PIL")
    assert one_line(error) == "pillow is not installed; get it with: pip install 'thalweg[analysis]'"
    assert one_line(ModuleNotFoundError("No module named 'x'", name="x")) == "No module named 'x'"
