"""Load the built-in knowledge into the store: hardware specs, parents first, then every document as
a `builtin` upload.

Runs at every start; an unchanged file costs one hash. Built-in documents without a file are
removed, unless the folder is missing or empty, such as an unmounted volume: then nothing is loaded
and nothing removed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from ingestion.builtin.samples import shipped_samples
from ingestion.uploads import FileUpload, Uploads
from kb.catalog import meta
from kb.catalog.engine import Catalog
from kb.catalog.hardware import HardwareRegistry
from kb.catalog.knowledge.documents import Documents
from kb.errors import InvalidKnowledge
from kb.hardware.schema import parse_hardware
from kb.hardware.spec import HardwareSpec
from kb.ids import sha256
from kb.settings import Settings, product_version
from kb.yaml_loaders import load_plain

_LOADED_BY = "builtin_loaded_by"  # of the catalog's named values
_CODE = ("ingestion", "kb", "retrieval", "skills")  # folders of code that reads documents
_FOLDERS = {"constraints": "constraint", "guidance": "guidance"}


@dataclass(frozen=True)
class BuiltinReport:
    """Counts of one load: chips, documents, documents queued for reading, documents removed."""

    hardware: int
    documents: int
    changed: int
    removed: int


def loaded_by_newer(catalog: Catalog, version: str) -> str | None:
    """The version of a newer Kernlore that has loaded its built-in knowledge into a catalog on a
    server; None if this one is the newest, which the catalog then records.

    An older replica that starts again during an upgrade must not undo the work of newer ones.
    """
    if not catalog.on_server:
        return None
    with catalog.read() as connection:
        loaded = meta.get(connection, _LOADED_BY)
    if loaded is not None and _release(loaded) > _release(version):
        return str(loaded)
    if loaded != version:
        with catalog.write() as connection:
            meta.put(connection, _LOADED_BY, version)
    return None


def _release(version: str) -> tuple[tuple[int, ...], bool]:
    """A sort key for versions; a release candidate comes before its release."""
    public = version.partition("+")[0]
    numbers = re.match(r"[\d.]*", public)
    release = numbers[0] if numbers else ""
    return tuple(int(number) for number in release.split(".") if number), release == public


def files_key(settings: Settings) -> str:
    """A digest of the names, sizes and times of the built-in files and of the code that reads them.
    It takes 25 ms."""
    root = Path(__file__).resolve().parents[2]
    folders = [*(root / name for name in _CODE), settings.knowledge_dir, settings.skills_dir]
    states = [
        f"{path} {path.stat().st_size} {path.stat().st_mtime_ns}"
        for folder in folders
        for path in sorted(folder.rglob("*"))
        if "__pycache__" not in path.parts and path.is_file()
    ]
    return sha256("\n".join((product_version(), settings.embedder, *states)))


def load_builtin(
    folder: Path,
    registry: HardwareRegistry,
    uploads: Uploads,
    documents: Documents,
    specs: int | None = None,
) -> BuiltinReport:
    """Bring the store up to the files of `folder` (hw_manuals). `specs` is the number of chips
    that were registered from it, if `load_hardware` has run. Raises InvalidKnowledge for a missing
    or empty folder, and changes nothing."""
    check_knowledge_folder(folder)
    specs = load_hardware(folder, registry) if specs is None else specs
    known = uploads.known_builtin()
    current: set[str] = set()
    new = []
    for document in _documents(folder):
        stored = uploads.stored_builtin(known, document.source_key, document.data)
        if stored is None:
            new.append(document.upload())
        else:
            current.add(stored)
    submitted = uploads.submit_all(new) if new else []
    count = len(current) + len(new)
    changed = sum(own.job_id is not None for own in submitted)
    current.update(own.document_id for own in submitted)
    stale = [d for d in documents.find() if d.origin == "builtin" and d.id not in current]
    for old in stale:
        documents.delete(old.id)
    return BuiltinReport(specs, count, changed, len(stale))


def load_hardware(folder: Path, registry: HardwareRegistry) -> int:
    """Register the built-in chips; returns their number. Raises as `load_builtin`."""
    check_knowledge_folder(folder)
    specs = builtin_hardware(folder)
    registry.put_all(specs, "builtin")
    return len(specs)


def builtin_hardware(folder: Path) -> list[HardwareSpec]:
    """The specs of the folder, each after its parent."""
    specs = {}
    for path in sorted((folder / "hardware").glob("*/hardware.toml")):
        spec = parse_hardware(path.read_text(encoding="utf-8"), f"{path.parent.name}/hardware.toml")
        if spec.id != path.parent.name:
            raise InvalidKnowledge(
                f"{path} describes {spec.id!r}", hint="Name the folder like the id."
            )
        specs[spec.id] = spec
    ordered: dict[str, HardwareSpec] = {}

    def place(spec: HardwareSpec) -> None:
        if spec.parent in specs and spec.parent not in ordered:
            place(specs[spec.parent])
        ordered[spec.id] = spec

    for spec in specs.values():
        if spec.id not in ordered:
            place(spec)
    return list(ordered.values())


def builtin_documents(folder: Path) -> list[FileUpload]:
    """Every document of the folder, with the scope of its path and front matter, and one for every
    kernel under samples/."""
    return [document.upload() for document in _documents(folder)]


@dataclass(frozen=True)
class _FolderDocument:
    """A document of the folder. `upload` parses its front matter, which is not needed if the bytes
    are stored already."""

    source_key: str
    data: bytes
    upload: Callable[[], FileUpload]


def _documents(folder: Path) -> Iterator[_FolderDocument]:
    for name, category in _FOLDERS.items():
        for path in sorted((folder / name).glob("*.md")):
            yield _document(folder, path, category, ())
    for path in sorted((folder / "hardware").glob("*/*.md")):
        yield _document(folder, path, "hardware", (path.parent.name,))
    for sample in shipped_samples(folder):
        upload = sample.upload()
        yield _FolderDocument(str(upload.source_key), upload.data, partial(replace, upload))


def _document(
    folder: Path, path: Path, category: str, hardware: tuple[str, ...]
) -> _FolderDocument:
    key, data = f"builtin/{path.relative_to(folder).as_posix()}", path.read_bytes()
    return _FolderDocument(key, data, partial(_upload, path, key, data, category, hardware))


def _upload(
    path: Path, key: str, data: bytes, category: str, hardware: tuple[str, ...]
) -> FileUpload:
    front = front_matter(data.decode("utf-8"), str(path))
    return FileUpload(
        name=path.name,
        data=data,
        category=category,
        hardware=hardware or tuple(front.get("hardware") or ()),
        languages=tuple(front.get("languages") or ()),
        title=str(front.get("title") or path.stem),
        source_key=key,
        origin="builtin",
    )


def front_matter(text: str, origin: str) -> Mapping[str, Any]:
    """The YAML block at the top of a built-in document."""
    if not text.startswith("---\n") or "\n---\n" not in text:
        raise InvalidKnowledge(f"{origin} has no front matter", hint="See hw_manuals/FORMAT.md.")
    try:
        block = text[4 : text.index("\n---\n")]
        loaded = load_plain(block)
    except yaml.YAMLError as error:
        raise InvalidKnowledge(
            f"the front matter of {origin} is not YAML: {error}", hint="Correct that line."
        ) from error
    if not isinstance(loaded, dict):
        raise InvalidKnowledge(f"the front matter of {origin} is no mapping", hint="See FORMAT.md.")
    return loaded


_DOCUMENTS = ("constraints/*.md", "guidance/*.md", "hardware/*/*.md", "samples/*/samples.toml")


def check_knowledge_folder(folder: Path) -> None:
    """Raise InvalidKnowledge if the folder does not exist or has no document."""
    if any(any(folder.glob(pattern)) for pattern in _DOCUMENTS):
        return
    problem = "holds no document"
    if not folder.is_dir():
        problem = "is not a folder" if folder.exists() else "does not exist"
    raise InvalidKnowledge(
        f"the folder of the built-in knowledge, {folder.absolute()}, {problem}",
        hint="Correct KERNLORE_KNOWLEDGE_DIR, or mount that folder; without the setting, the folder"
        " that ships is loaded. Nothing was changed.",
    )
