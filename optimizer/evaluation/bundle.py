"""A candidate: source files in one language with an entry point and parameters.

Standard library only, because the portable search core uses it too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath, PurePosixPath
from typing import Literal

from kb.errors import InvalidRequest

Origin = Literal["config", "rewrite", "recipe", "llm", "external"]
SUFFIXES: Mapping[str, str] = {".cpp": "cpp", ".cc": "cpp", ".c": "cpp", ".cu": "cuda"}
MAX_BYTES = 4 * 1024 * 1024
MANIFEST = "bundle.json"

Parameter = int | float | str | bool


@dataclass(frozen=True)
class Bundle:
    """The files of a candidate.

    `files` maps relative POSIX paths to text; `main` is the file that a toolchain compiles or
    imports. `entry` is the class (`ModelNew`) or C function to call. `parameters` are the values
    substituted in the sources; a toolchain may read compiler flags from them. Raises InvalidRequest
    for a path outside the bundle, a missing main file, or more than MAX_BYTES.
    """

    files: Mapping[str, str]
    main: str
    language: str
    entry: str
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    origin: Origin = "external"

    def __post_init__(self) -> None:
        if self.main not in self.files:
            raise InvalidRequest(
                f"the bundle has no file {self.main!r}", hint="Name one of its files as main."
            )
        for name in self.files:
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or not path.name:
                raise InvalidRequest(
                    f"{name!r} leaves the bundle", hint="Use relative paths without `..`."
                )
        if sum(len(text.encode()) for text in self.files.values()) > MAX_BYTES:
            raise InvalidRequest(
                f"the bundle is larger than {MAX_BYTES:,} bytes", hint="Leave data files out of it."
            )

    @property
    def sha256(self) -> str:
        """A digest of files, language, entry and parameters."""
        parameters = sorted(self.parameters.items())
        identity = [sorted(self.files.items()), self.main, self.language, self.entry, parameters]
        return hashlib.sha256(json.dumps(identity).encode()).hexdigest()

    @property
    def source(self) -> str:
        """The text of the main file."""
        return self.files[self.main]

    def write(self, folder: Path) -> Path:
        """Write the files under `folder`, and return the path of the main file."""
        for name, text in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return folder / self.main


def read_bundle(
    path: Path, language: str | None = None, entry: str | None = None, chip_entry: str = ""
) -> Bundle:
    """Read a candidate from a file, or from a folder with a `bundle.json` {main, language, entry,
    parameters}.

    The language of a single file follows from its suffix; that of a Python file from whether it
    uses Triton. The entry is `entry`, that of the manifest, `chip_entry` (from the chip's command
    toolchain), or `default_entry`. Raises InvalidRequest if it is not a candidate.
    """
    if path.is_dir():
        return _folder(path, language, entry, chip_entry)
    if not path.is_file():
        raise InvalidRequest(f"{path} is not a file", hint="Give a kernel file or a bundle folder.")
    text = _text(path)
    language = language or language_of(path, text)
    entry = entry or chip_entry or default_entry(path.name)
    return Bundle({path.name: text}, path.name, language, entry)


def default_entry(name: str) -> str:
    """`ModelNew` for a Python file, else `kernlore_run`."""
    return "ModelNew" if name.endswith(".py") else "kernlore_run"


def _folder(path: Path, language: str | None, entry: str | None, chip_entry: str) -> Bundle:
    manifest = path / MANIFEST
    if not manifest.is_file():
        raise InvalidRequest(
            f"{path} has no {MANIFEST}",
            hint='Write {"main": ..., "language": ..., "entry": ...}, or give a single file.',
        )
    try:
        fields = json.loads(_text(manifest))
        main = str(fields["main"])
    except (json.JSONDecodeError, KeyError, TypeError) as problem:
        raise InvalidRequest(
            f"{manifest} is not a bundle manifest: {problem!r}", hint="It needs at least `main`."
        ) from problem
    names = (p for p in path.rglob("*") if p.is_file() and p.name != MANIFEST)
    files = {p.relative_to(path).as_posix(): _text(p) for p in sorted(names)}
    return Bundle(
        files,
        main,
        language or fields.get("language") or language_of(path / main, files.get(main, "")),
        entry or fields.get("entry") or chip_entry or default_entry(main),
        dict(fields.get("parameters") or {}),
        fields.get("origin", "external"),
    )


def language_of(path: PurePath, text: str) -> str:
    if path.suffix == ".py":
        return "triton" if "triton" in text else "torch"
    if path.suffix in SUFFIXES:
        return SUFFIXES[path.suffix]
    raise InvalidRequest(
        f"the language of {path.name!r} is unknown", hint="Name it, as in --language cpp."
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as problem:
        raise InvalidRequest(f"{path} is not UTF-8 text", hint="Give source code.") from problem
