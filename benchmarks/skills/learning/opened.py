"""The data folder of one call: with everything, or as a machine without documents opens it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

from api.cli.target import CommandTarget, read_settings
from api.services import Services
from benchmarks.report import say
from kb.embedding import Vectors
from kb.errors import Unavailable
from retrieval.answer import Answer
from retrieval.request import RetrieveRequest
from retrieval.service import Retriever


@contextmanager
def opened(folder: Path, documents: bool) -> Iterator[Services]:
    """With this version's hardware, documents and recipes. documents: see `Plan`."""
    prepare(folder)
    services = Services(read_settings(folder)) if documents else WithoutDocuments(folder)
    try:
        services.skills.sync_builtin(services.settings.skills_dir)
        yield services
    finally:
        services.close()


def prepare(folder: Path) -> None:
    """Hardware, recipes and documents into the folder, where they are not there yet. Documents hold
    the curated moves, so everyone needs them once; who does without finds no text of theirs."""
    local = CommandTarget(read_settings(folder))
    try:
        if not local.services.documents.find():
            local.load_knowledge(say)
    except ImportError as problem:
        raise Unavailable(
            f"the documents cannot be read into {folder} here: {problem}",
            hint="Prepare the folder with --prepare where the product is installed, and copy it.",
        ) from problem
    finally:
        local.close()


class WithoutDocuments(Services):
    """Answers hold moves, skills and facts, and no excerpts. Texts are compared by their words."""

    def __init__(self, folder: Path) -> None:
        super().__init__(read_settings(folder))
        # What the curator takes for "no embedder"; nothing else here asks for one.
        self.__dict__["embedder"] = None

    @cached_property
    def retriever(self) -> Retriever:
        return RemediesAlone(
            self.catalog,
            self.registry,
            NoEmbedder(),
            lambda: self.index,
            lambda: False,
            self.settings.skills_withheld_share,
        )


class RemediesAlone(Retriever):
    """No document is searched, whatever is asked."""

    def retrieve(self, request: RetrieveRequest) -> Answer:
        return self.moves_and_skills(request)


class NoEmbedder:
    """Stands where a retriever that searches no document needs one."""

    fingerprint = "none"
    dimension = 0
    window = 0

    def count_tokens(self, text: str) -> int:
        raise _no_model()

    def encode(self, texts: Sequence[str]) -> Vectors:
        raise _no_model()

    def encode_query(self, text: str) -> Vectors:
        raise _no_model()


def _no_model() -> Unavailable:
    return Unavailable(
        "there is no embedding model in this folder's plan",
        hint="Begin a folder with --documents where the product is installed.",
    )
