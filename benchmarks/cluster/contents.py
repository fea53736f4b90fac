"""Snapshots of an installation's contents and answers, and their differences."""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx

from retrieval.compose.hints import NO_INDEX, NO_VECTORS_YET
from tests.api.replicas import Replica

RETRY_SECONDS = 120.0
PAUSE = 0.2
TIMEOUT = httpx.Timeout(30.0, connect=2.0)
# Sent continuously: answers to a signal, which no document of another chip changes.
SIGNALS: tuple[Mapping[str, Any], ...] = (
    {"signal": "memory_bound", "hardware": "h100"},
    {"signal": "uncoalesced_access", "hardware": "h100"},
    {"signal": "occupancy_limited", "hardware": "h100"},
)
# Sent before and after: every document changes word frequencies, and so their order.
QUESTIONS: tuple[Mapping[str, Any], ...] = (
    *SIGNALS,
    {"query": "how much shared memory may a block use", "hardware": "h100"},
    {"log": "ptxas error : Entry function 'k' uses too much shared data", "hardware": "h100"},
    {"query": "when is a kernel bound by memory"},
)
Kind = Literal["same", "by words", "different", "refused"]


class Balancer:
    """Sends a request to the next replica, and to another one where that does not answer or
    refuses with 502 or 503, as load balancers do."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._clients = [httpx.Client(base_url=url, timeout=TIMEOUT) for url in urls]
        self._turns = itertools.cycle(range(len(urls)))

    def send(self, method: str, path: str, **options: Any) -> httpx.Response | None:
        """The answer, or None if no replica gave one."""
        first = next(self._turns)
        answer = None
        for number in range(len(self._clients)):
            client = self._clients[(first + number) % len(self._clients)]
            try:
                answer = client.request(method, path, **options)
            except httpx.TransportError:
                continue
            if answer.status_code not in (502, 503):
                return answer
        return answer

    def insist(self, method: str, path: str, **options: Any) -> httpx.Response:
        """The first answer that is not a refusal, within two minutes. Raises TimeoutError."""
        deadline = time.monotonic() + RETRY_SECONDS
        while time.monotonic() < deadline:
            answer = self.send(method, path, **options)
            if answer is not None and answer.status_code not in (502, 503):
                return answer
            time.sleep(PAUSE)
        raise TimeoutError(f"{method} {path} was refused for {RETRY_SECONDS:.0f} s")

    def close(self) -> None:
        """End all connections."""
        for client in self._clients:
            client.close()


@dataclass(frozen=True)
class ComparableAnswer:
    """An answer: its context, which is byte for byte the same for equal requests, and the places
    and texts of its excerpts."""

    context: str
    excerpts: tuple[tuple[str, str], ...]
    by_words: bool

    def against(self, expected: ComparableAnswer) -> Kind:
        """Classify an answer: same, by words (with a hint) or different."""
        if (self.context, self.excerpts) == (expected.context, expected.excerpts):
            return "same"
        return "by words" if self.by_words else "different"


def comparable(answer: Mapping[str, Any]) -> ComparableAnswer:
    """The part of an answer that has no id and no time."""
    hints = answer.get("hints", ())
    return ComparableAnswer(
        answer["context"],
        tuple((excerpt["id"], excerpt["text"]) for excerpt in answer["excerpts"]),
        NO_INDEX in hints or NO_VECTORS_YET in hints,
    )


@dataclass(frozen=True)
class Contents:
    """Documents by id with their metadata and the hash of their original, trees of runs, and the
    answers of each replica to QUESTIONS."""

    documents: Mapping[str, str]
    runs: Mapping[str, str]
    answers: Mapping[str, ComparableAnswer] = field(default_factory=dict)


def contents_of(replicas: Sequence[Replica], originals: Mapping[str, bytes]) -> Contents:
    """Take a snapshot. `originals` are uploaded files by document, which are read back."""
    client = replicas[0].client
    documents = {}
    for document in client.get("/documents").raise_for_status().json()["documents"]:
        version = document["version"]
        state = f"{document['title']} {version['sha256']} {version['state']}"
        state += f" {document['passages']} passages"
        if document["id"] in originals:
            state += f" {_digest(_file_of(client, document['id']))}"
        documents[document["id"]] = state
    runs = {
        run["id"]: _digest(repr(client.get(f"/runs/{run['id']}/tree").json()).encode())
        for run in client.get("/runs").json()["runs"]
        if run["state"] == "finished"
    }
    answers = {
        f"{number} at {replica.url}": comparable(
            replica.client.post("/retrieve", json=question).json()
        )
        for replica in replicas
        for number, question in enumerate(QUESTIONS)
    }
    return Contents(documents, runs, answers)


def _file_of(client: httpx.Client, document: str) -> bytes:
    return client.get(f"/documents/{document}/file").raise_for_status().content


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def differences(before: Contents, after: Contents) -> list[str]:
    """One line for each thing that is missing or changed; new documents and runs are ignored."""
    lines = []
    for what, old, new in (
        ("document", before.documents, after.documents),
        ("run", before.runs, after.runs),
    ):
        for key, value in old.items():
            if key not in new:
                lines.append(f"{what} {key} is gone")
            elif new[key] != value:
                lines.append(f"{what} {key} was {value!r} and is {new[key]!r}")
    for key, answer in before.answers.items():
        kind = after.answers[key].against(answer)
        if kind != "same":
            lines.append(f"answer {key} is {kind}")
    return lines
