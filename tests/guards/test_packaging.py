"""Checks that the tree and nothing else is installed, and that it finds its files from any working directory."""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.guards.tree import ROOT, modules

FOLDERS = ("configs", "launchers", "sbatch_templates")
EXTENSIONS = {"monarch_hpc/telemetry/_pen.abi3.so", "monarch_hpc/transport/ucx/_ucx.abi3.so"}


def setup_cfg() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def asset_files() -> set[str]:
    files = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file())
    return {str(path.relative_to(ROOT)) for path in files}


def test_setup_cfg_lists_every_package() -> None:
    in_tree = {
        module.name if module.path.stem == "__init__" else module.name.rpartition(".")[0] for module in modules()
    }
    listed = set(setup_cfg()["options"]["packages"].split())
    assert listed == in_tree | {f"monarch_hpc.{folder}" for folder in FOLDERS}
    for package in in_tree:
        assert (ROOT / package.replace(".", "/") / "__init__.py").is_file()


def test_every_dependency_has_a_reason() -> None:
    lines = (ROOT / "setup.cfg").read_text().splitlines()
    start = lines.index("install_requires =")
    block = lines[start + 1 : next(i for i in range(start + 1, len(lines)) if lines[i] and lines[i][0] != " ")]
    for above, line in zip(["", *block], block, strict=False):
        assert not line.strip() or "#" in line or "#" in above, f"setup.cfg: why {line.strip()}?"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Its extensions are not run: most of the time would go into making them fast.
    return build_wheel(tmp_path_factory, CFLAGS="-O0")


@pytest.fixture(scope="module")
def wheel_without_compiler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory, CC="/bin/false")


def build_wheel(tmp_path_factory: pytest.TempPathFactory, **environment: str) -> Path:
    """Build a wheel from a copy of the tree, since setuptools leaves build files beside its sources."""
    source = tmp_path_factory.mktemp("source")
    for name in ("setup.cfg", "setup.py", "pyproject.toml", "README.md", "LICENSE"):
        if (ROOT / name).exists():
            shutil.copy2(ROOT / name, source)
    for folder in ("monarch_hpc", *FOLDERS):
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    target = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run(
        [*command, "--wheel-dir", str(target), str(source)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = target.glob("*.whl")
    return built


def files_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def files_in_tree() -> set[str]:
    kinds = ("*.pyi", "*.sql", "*.html", "*.css", "*.js")
    data = [path for kind in kinds for path in (ROOT / "monarch_hpc").rglob(kind)]
    return (
        {"monarch_hpc/py.typed"}
        | {str(path.relative_to(ROOT)) for path in data}
        | {str(module.path.relative_to(ROOT)) for module in modules()}
        | {f"monarch_hpc/{name}" for name in asset_files()}
    )


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler: apt-get install gcc libc6-dev")
def test_the_wheel_holds_the_tree_and_the_extensions(wheel: Path) -> None:
    assert files_in(wheel) == files_in_tree() | EXTENSIONS
    # One wheel for every Python from `python_requires` on.
    assert "-cp311-abi3-" in wheel.name


@pytest.mark.slow
def test_without_a_compiler_only_the_extensions_are_missing(wheel_without_compiler: Path, tmp_path: Path) -> None:
    assert files_in(wheel_without_compiler) == files_in_tree()
    target = install(wheel_without_compiler, tmp_path)
    code = (
        f"import sys; sys.path.insert(0, {str(target)!r}); "
        "import monarch_hpc.transport.ucx.library as library; print(library.__file__, library.load_library().reason); "
        "from monarch_hpc.telemetry import pen, recorder; "
        "print(type(recorder.Recorder().handling(0)) is pen.Handling)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd="/", check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.startswith(str(target))
    assert "built without a C compiler" in done.stdout
    assert done.stdout.endswith("True\n")


@pytest.mark.slow
@pytest.mark.parametrize("cwd", [Path("/"), ROOT], ids=["elsewhere", "checkout"])
def test_an_installed_wheel_finds_its_files(wheel: Path, tmp_path: Path, cwd: Path) -> None:
    target = install(wheel, tmp_path)
    assert found_files(f"sys.path.insert(0, {str(target)!r})", cwd) == asset_files()
    launchers = list((target / "monarch_hpc" / "launchers").glob("*.sh"))
    assert launchers
    assert all(launcher.stat().st_mode & 0o111 for launcher in launchers)


def install(wheel: Path, folder: Path) -> Path:
    """Unpack *wheel* below *folder*, and return the place to import it from."""
    target = folder / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*command, "--target", str(target), str(wheel)], check=True, timeout=120)
    return target


@pytest.mark.parametrize("cwd", [Path("/"), ROOT], ids=["elsewhere", "checkout"])
def test_a_checkout_finds_its_files(cwd: Path) -> None:
    assert found_files(f"sys.path.insert(0, {str(ROOT)!r})", cwd) == asset_files()


def found_files(first: str, cwd: Path) -> set[str]:
    """Return the asset files that a fresh interpreter finds."""
    code = f"""
import sys
{first}
from monarch_hpc.core.storage.assets import asset
for folder in {FOLDERS!r}:
    root = asset(folder)
    for path in root.rglob("*"):
        if path.is_file():
            print(folder + "/" + str(path.relative_to(root)))
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=cwd, check=True, capture_output=True, text=True, timeout=60
    )
    return set(done.stdout.splitlines())


def test_an_editable_install_loads_nothing_at_the_start_of_python() -> None:
    """As the last entry of `sys.path`, the checkout hides no other module."""
    code = "import sys; print(*(name for name in sys.modules if 'editable' in name)); print(*sys.path, sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd="/", check=True, capture_output=True, text=True, timeout=60
    )
    loaded, *path = done.stdout.splitlines()
    assert loaded == "", "install again: make .venv/installed-dev"
    assert str(ROOT) not in path[:-1]
