"""The kernel files of a package: the bundle's text, and for C++ a library with a record of where
and how it was built.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from optimizer.evaluation.abi import HEADER, HEADER_NAME
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.toolchains import cuda
from optimizer.evaluation.toolchains.base import Target
from optimizer.evaluation.toolchains.cpp import BASE_FLAGS, CppToolchain, flags_of
from optimizer.search.output.shipped.library import RECORD, digest, machine

LIBRARY = "kernel.so"
FOLDER = "kernel"  # of a bundle with several files
COMPILED = ("cpp", "cuda")
PYTHON = ("torch", "triton")


def kernel_kind(language: str) -> str:
    """How a package calls it; empty for languages that only a command toolchain runs."""
    return "library" if language in COMPILED else "python" if language in PYTHON else ""


def write_kernel(bundle: Bundle, folder: Path) -> str:
    """Path of the main file in the package. A lone file is `kernel.*`, several keep their names
    under `kernel/`."""
    if len(bundle.files) == 1:
        main = f"kernel{PurePosixPath(bundle.main).suffix}"
        (folder / main).write_text(bundle.source, encoding="utf-8")
    else:
        main = f"{FOLDER}/{bundle.main}"
        bundle.write(folder / FOLDER)
    if bundle.language in COMPILED:
        (folder / HEADER_NAME).write_text(HEADER, encoding="utf-8")
        record = _record(bundle, main, folder)
        (folder / RECORD).write_text(json.dumps(record, indent=1), encoding="utf-8")
    return main


def _record(bundle: Bundle, main: str, folder: Path) -> Mapping[str, Any]:
    """sources: the main file first, as all of them decide what is built."""
    others = (
        sorted(f"{FOLDER}/{name}" for name in bundle.files) if main.startswith(FOLDER + "/") else []
    )
    told: dict[str, Any] = {
        "sources": [main, *(name for name in others if name != main), HEADER_NAME],
        "library": None,
        "note": "",
        "built_on": None,
    }
    if bundle.language == "cuda":
        note = "it is built by nvcc on the machine that uses it"
        return {
            **told,
            "compiler": "nvcc",
            "flags": [*cuda.FLAGS, "-x", "cu"],
            "libraries": [],
            "note": note,
        }
    # As toolchains/cpp.py compiles what is measured, without its report.
    language = ["-x", "c", "-std=gnu17"] if main.endswith(".c") else ["-std=gnu++20"]
    flags = [*BASE_FLAGS, *flags_of(bundle), *language]
    told |= {"compiler": "g++", "flags": flags, "libraries": ["-lm"]}
    return {**told, **_library(bundle, folder)}


def _library(bundle: Bundle, folder: Path) -> Mapping[str, Any]:
    """Built by the toolchain that built the measured one; without it a note of why not."""
    toolchain = CppToolchain()
    if shutil.which("g++") is None:
        note = "g++ was not there when the package was written"
        warnings.warn(f"no library in {folder.name}: {note}", RuntimeWarning, stacklevel=2)
        return {"note": note}
    with tempfile.TemporaryDirectory() as scratch:
        built = toolchain.compile(bundle, Target("", ()), Path(scratch), ())
        if built.loader is None:
            note = f"g++ could not build it where the package was written: {built.log[-500:]}"
            warnings.warn(f"no library in {folder.name}: {note}", RuntimeWarning, stacklevel=2)
            return {"note": note}
        shutil.copy(built.loader.path, folder / LIBRARY)
    return {
        "library": LIBRARY,
        "sha256": digest(folder / LIBRARY),
        "built_on": machine(),
        "built_by": toolchain.version(),
        "command": list(built.command),
    }
