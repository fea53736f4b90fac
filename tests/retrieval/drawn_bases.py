"""A knowledge base with drawn chips of both example families and their documents."""

from __future__ import annotations

import threading
import tomllib
from collections.abc import Iterable
from pathlib import Path

from api.cli.target import CommandTarget, read_settings
from api.services import Services
from benchmarks.search.model_writes.chips import FAMILIES, Chip, draw
from ingestion.uploads import FileUpload
from kb.answers import Answer
from retrieval.request import RetrieveRequest
from tests.shared import BUILTIN, place_models

UNRELATED = 20  # documents


class DrawnBase:
    """A data directory below a folder. Documents are read but not embedded, so they are found by
    words. `knowledge` is a folder with built-in documents, by default all of them.
    """

    def __init__(self, folder: Path, model_cache: Path, knowledge: Path = BUILTIN) -> None:
        self.folder = folder
        settings = read_settings(place_models(folder / "data", model_cache))
        self.local = CommandTarget(settings.model_copy(update={"knowledge_dir": knowledge}))

    @property
    def services(self) -> Services:
        return self.local.services

    def add(self, family: str, seed: int, *, declared: bool = True) -> Chip:
        """Draw a chip and upload its documents; `declared`: whether their language is stated."""
        chip = draw(FAMILIES[family], seed, self.folder / "chips")
        self.describe(chip)
        languages = (chip.language,) if declared else ()
        self.upload(
            FileUpload(p.name, p.read_bytes(), hardware=(chip.id,), languages=languages)
            for p in chip.documents
        )
        return chip

    def describe(self, chip: Chip) -> None:
        """Register the chip's hardware.toml."""
        description = (chip.folder / "hardware.toml").read_text(encoding="utf-8")
        self.local.services.register_hardware(tomllib.loads(description), "hardware.toml")

    def upload(self, uploads: Iterable[FileUpload]) -> None:
        for upload in uploads:
            self.services.uploads.submit(upload)
        with self.services.local_reader() as reader:
            self.services.worker(reader).read_all(threading.Event())

    def ask(self, hardware: str, **given: object) -> Answer:
        request = RetrieveRequest(hardware=hardware, **given)  # type: ignore[arg-type]
        return self.services.retriever.retrieve(request)


def unrelated(hardware: str) -> list[FileUpload]:
    """Texts about other chips and their languages, uploaded as if they were about this one."""
    paths = sorted((BUILTIN / "hardware").glob("*/*.md"))[:UNRELATED]
    assert len(paths) == UNRELATED
    return [
        FileUpload(f"{path.parent.name}-{path.name}", path.read_bytes(), "hardware", (hardware,))
        for path in paths
    ]
