"""The stored conversations with models, one file for each attempt at a candidate: what was asked,
what was answered, what came of it. A run is replayed from them without asking anybody.

Standard library only.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from kb.errors import InvalidRequest, StoreError
from optimizer.search.synthesizers.llm.answers.replies import (
    CallFailed,
    Message,
    Reply,
    reply_as_json,
    reply_from_json,
)

_PART = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,120}")


@dataclass
class Transcript:
    """attempt: of this step; a failed one leaves a transcript but no node. prompt: version of the
    templates. heard: replies and failures in order, which is what a replay needs. note: what a
    reader must know, as that the price is unknown."""

    run: str
    step: int
    attempt: int
    model: str
    prompt: str
    messages: list[Message] = field(default_factory=list)
    heard: list[Reply | CallFailed] = field(default_factory=list)
    left_out: str = ""
    outcome: str = ""
    note: str = ""

    @property
    def id(self) -> str:
        return f"{self.run}/{self.step}-{self.attempt}"

    def as_json(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "heard"}
        return {**plain, "heard": [reply_as_json(heard) for heard in self.heard]}


def transcript_from_json(row: Mapping[str, Any]) -> Transcript:
    """The inverse of `as_json`; fields of a newer version are ignored."""
    told = {name: row[name] for name in Transcript.__dataclass_fields__ if name in row}
    return Transcript(**{**told, "heard": [reply_from_json(heard) for heard in told["heard"]]})


class Transcripts(Protocol):
    """Where conversations are kept."""

    def write(self, transcript: Transcript) -> None: ...

    def read(self, run: str, step: int, attempt: int) -> Transcript | None: ...

    def attempts(self, run: str, step: int) -> int:
        """How many are stored for the step."""
        ...


class FolderTranscripts:
    """`RUN/STEP-ATTEMPT.json` below a folder, each written whole or not at all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, transcript: Transcript) -> None:
        path = self._path(transcript.run, transcript.step, transcript.attempt)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}.part")
        part.write_text(json.dumps(transcript.as_json(), indent=1), encoding="utf-8")
        part.replace(path)

    def read(self, run: str, step: int, attempt: int) -> Transcript | None:
        path = self._path(run, step, attempt)
        if not path.is_file():
            return None
        try:
            return transcript_from_json(json.loads(path.read_text(encoding="utf-8")))
        except (json.JSONDecodeError, KeyError, TypeError) as problem:
            raise StoreError(
                f"{path} is no transcript: {problem!r}",
                hint="Delete it or restore it from a backup; the run cannot be replayed without.",
            ) from problem

    def attempts(self, run: str, step: int) -> int:
        folder = self._path(run, step, 0).parent
        return sum(1 for _ in folder.glob(f"{step}-*.json")) if folder.is_dir() else 0

    def _path(self, run: str, step: int, attempt: int) -> Path:
        if not _PART.fullmatch(run):
            raise InvalidRequest(
                f"{run!r} cannot name a folder of transcripts",
                hint="Give the run an id of letters, digits, `_`, `-` and `.`.",
            )
        return self._folder / run / f"{step}-{attempt}.json"


class Replayed:
    """Answers from a stored transcript, in the order of the stored replies. Prompts are not
    compared: they differ by their random boundary at least."""

    def __init__(self, transcript: Transcript) -> None:
        self._heard = iter(transcript.heard)
        self._id = transcript.id

    def ask(self, messages: Sequence[Message], tools: Sequence[Any]) -> Reply:
        heard = next(self._heard, None)
        if heard is None:
            raise CallFailed(f"the stored transcript {self._id} ends before this question")
        if isinstance(heard, CallFailed):
            raise heard
        return heard


def redacted(transcript: Transcript, clean: Any) -> Transcript:
    """A copy in which every text went through `clean`."""
    row = _each_text(transcript.as_json(), clean)
    return transcript_from_json(row)


def _each_text(value: Any, clean: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(key): _each_text(item, clean) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_each_text(item, clean) for item in value]
    return value
