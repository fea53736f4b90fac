"""`kernlore-client` built, installed and imported outside the repository."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest

from retrieval import client

pytestmark = pytest.mark.slow(seconds=10)

ROOT = Path(__file__).resolve().parents[2]
PROJECT = Path("clients", "kernlore-client")
HTTPX = ("httpx", "httpcore", "h11", "anyio", "sniffio", "idna", "certifi", "typing_extensions")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the two folders that a build reads."""
    copy = tmp_path_factory.mktemp("checkout")
    leavings = shutil.ignore_patterns("build", "dist", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT / PROJECT, copy / PROJECT, ignore=leavings)
    (copy / "retrieval").mkdir()
    shutil.copy(ROOT / "retrieval" / "client.py", copy / "retrieval")
    return copy


def python(*arguments: str | Path, cwd: Path) -> str:
    ran = subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=cwd, capture_output=True, text=True, timeout=400
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def pip(*arguments: str | Path, cwd: Path) -> None:
    python("-m", "pip", "--disable-pip-version-check", *arguments, cwd=cwd)


OFFLINE = ("--no-deps", "--no-index")


def built(project: Path, into: Path) -> Path:
    """The wheel; building it leaves nothing next to its sources."""
    before = sorted(project.rglob("*"))
    pip("wheel", *OFFLINE, "--no-build-isolation", "-w", into / "wheels", project, cwd=into)
    assert sorted(project.rglob("*")) == before
    (wheel,) = (into / "wheels").glob("kernlore_client-*-py3-none-any.whl")
    return wheel


def import_alone(site: Path, cwd: Path) -> None:
    """Import in an interpreter with only `site`, the standard library and httpx."""
    for name in HTTPX:
        spec = find_spec(name)
        if spec is not None and spec.origin is not None:
            origin = Path(spec.origin)
            lies = origin.parent if spec.submodule_search_locations else origin
            (site / lies.name).symlink_to(lies)
    modules = python(
        *("-I", "-S", "-c"),
        f"import sys; sys.path.append({str(site)!r})\n"
        "import kernlore_client as k\n"
        f"assert k.__version__ == {client.__version__!r} and k.__file__.startswith({str(site)!r})\n"
        "k.Kernlore().close()\n"
        "print(*sorted({m.split('.')[0] for m in sys.modules}))",
        cwd=cwd,
    ).split()
    assert "httpx" in modules
    assert not {"kb", "retrieval", "ingestion", "pydantic", "numpy", "torch"} & set(modules)


def test_wheel_holds_one_module_and_imports_alone(checkout: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    wheel = built(checkout / PROJECT, tmp_path)
    pip("install", *OFFLINE, "--target", site, wheel, cwd=tmp_path)
    assert sorted(p.name for p in site.glob("*.py")) == ["kernlore_client.py"]
    assert (site / "kernlore_client.py").read_bytes() == Path(client.__file__).read_bytes()
    (described,) = metadata.distributions(path=[str(site)])
    assert (described.name, described.version) == ("kernlore-client", client.__version__)
    assert [r.split(">")[0] for r in described.requires or ()] == ["httpx"]
    import_alone(site, tmp_path)


def test_source_distribution_builds_without_repository(checkout: Path, tmp_path: Path) -> None:
    build = f"from setuptools import build_meta; build_meta.build_sdist({str(tmp_path)!r})"
    python("-c", build, cwd=checkout / PROJECT)
    (archive,) = tmp_path.glob("kernlore_client-*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {Path(name).name for name in opened.getnames()}
    assert {"kernlore_client.py", "setup.py", "pyproject.toml", "README.md"} <= names
    with zipfile.ZipFile(built(archive, tmp_path)) as wheel:
        assert wheel.read("kernlore_client.py") == Path(client.__file__).read_bytes()
