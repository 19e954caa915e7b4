"""Which modules are of an installed package, wherever it was installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from fitness.tasks import installed
from fitness.tasks.installed import distribution_of


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of `pip install --target`, with a package `fast` that `fast-kernels` installed; and a user's own one."""
    for package in ("fast", "own"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    described = tmp_path / "fast_kernels-1.2.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Name: fast-kernels\nVersion: 1.2\n")
    (described / "top_level.txt").write_text("fast\n")
    (described / "RECORD").write_text("fast/__init__.py,,\n")
    monkeypatch.syspath_prepend(tmp_path)
    installed._distributions.cache_clear()
    return tmp_path


def test_a_package_in_a_folder_of_its_own_is_installed(folder: Path) -> None:
    assert distribution_of("fast.ops", str(folder / "fast" / "ops.py")) == "fast-kernels"
    assert distribution_of("own.ops", str(folder / "own" / "ops.py")) is None


def test_a_package_that_is_linked_to_is_the_users_own(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("source") / "fast" / "ops.py"
    assert distribution_of("fast.ops", str(elsewhere)) is None
    (folder / "fast_kernels-1.2.dist-info" / "RECORD").unlink()  # as `setup.py develop` leaves it in a checkout
    assert distribution_of("fast.ops", str(folder / "fast" / "ops.py")) is None


def test_packages_of_site_packages_are_installed() -> None:
    assert distribution_of("pytest", pytest.__file__) == "pytest"
