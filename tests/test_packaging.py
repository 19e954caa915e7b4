"""The wheel: what it holds, and that evo works from it outside of the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("evo", "operators", "fitness", "analysis")


def call(*command: object, cwd: Path) -> str:
    """What a command prints; it sees neither the checkout nor an editable installation."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built of a copy: building leaves files in the folder of the sources."""
    sources, out = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("wheel")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, sources / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "--quiet")
    call(sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", out, sources, cwd=out)
    (found,) = out.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of an environment with the wheel, and with the packages of this one but not its evo."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    python = folder / "bin/python"
    packages = Path(call(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip())
    # A .pth file adds the folder alone: .pth files in it, such as that of an editable evo, are not read.
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    options = ("--no-deps", "--no-index", "--disable-pip-version-check", "--quiet", "--no-compile")
    call(sys.executable, "-m", "pip", "--python", python, "install", *options, wheel, cwd=folder)
    return python


def test_the_wheel_holds_all_modules_and_data(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        packed = {name for name in file.namelist() if ".dist-info/" not in name}
    kinds = (".py", ".j2", ".html", ".css", ".js")
    wanted = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.suffix in kinds and "__pycache__" not in path.parts
    }
    assert packed >= wanted, sorted(wanted - packed)
    assert {name.split("/")[0] for name in packed} == set(PACKAGES)
    for folder in ("fitness/tasks/builtin", "operators/llm/templates", "analysis/templates", "fitness/suites"):
        assert any(name.startswith(folder) for name in packed), folder


def test_evo_works_from_the_wheel(python: Path, tmp_path: Path) -> None:
    told = call(python, "-c", "import evo; print(evo.__file__); print(evo.load_task('softmax').folder)", cwd=tmp_path)
    packages = python.parents[1] / "lib"
    assert all(Path(line).is_relative_to(packages) for line in told.splitlines()), told
    assert "softmax: " in call(python.with_name("evo"), "tasks", cwd=tmp_path)


def test_the_standard_install_has_what_evo_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {text.partition(">")[0] for text in project["dependencies"]}
    assert names >= {"triton", "torch", "deap", "numpy", "ray", "openai", "pyarrow"}
    assert set(project["optional-dependencies"]) == {"gpu", "figures", "serve", "train", "dev"}
