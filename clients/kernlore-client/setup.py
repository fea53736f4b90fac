"""Builds `kernlore_client` from the repository's `retrieval/client.py`.

A source distribution holds a copy of the module next to this file.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

MODULE = "kernlore_client"
HERE = Path(__file__).resolve().parent
CARRIED = HERE / f"{MODULE}.py"


def source() -> Path:
    return CARRIED if CARRIED.exists() else HERE.parents[1] / "retrieval" / "client.py"


def version() -> str:
    text = source().read_text(encoding="utf-8")
    match = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    if match is None:
        raise SystemExit(f"no __version__ in {source()}: build from a whole checkout")
    return match[1]


class BuildModule(build_py):
    def find_modules(self) -> list[tuple[str, str, str]]:
        return [("", MODULE, str(source()))]

    def get_source_files(self) -> list[str]:
        return []  # the sdist adds the module itself, under its new name


class CarryModule(sdist):
    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        shutil.copyfile(source(), Path(base_dir) / CARRIED.name)


BUILD = tempfile.TemporaryDirectory()  # an installation leaves nothing in the checkout

setup(
    options={"build": {"build_base": BUILD.name}, "egg_info": {"egg_base": BUILD.name}},
    version=version(),
    py_modules=[MODULE],
    cmdclass={"build_py": BuildModule, "sdist": CarryModule},
)
