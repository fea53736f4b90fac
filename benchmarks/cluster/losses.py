"""Brings up a whole installation on this machine, uses it, and kills each part of it in turn.

Each time a document has just been accepted and a run of the optimizer is under way; questions are
asked all the while, and a second document is sent to whoever takes it. Afterwards all that was
there before, and all that was acknowledged since, is held against what is there now.

    make cluster
    python -m benchmarks.cluster.losses --knowledge DIR --replicas 3
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.cluster.contents import (
    SIGNALS,
    Balancer,
    Kind,
    Spoken,
    contents_of,
    differences,
    spoken,
)
from benchmarks.cluster.parts import Installation, Part, installation
from benchmarks.report import ended, say, table, write_result
from kb.errors import Unavailable

TITLE = "What the loss of each part of an installation costs"
AWAY_SECONDS = 5.0  # between the kill and the new start
SETTLE_SECONDS = 900.0
LOOK_SECONDS = 0.2
CHIP = "mi300x"  # of uploads; the questions are about others
PROBLEM = "map_id"
GOAL = {"language": "cpp", "candidates": 1, "knowledge": False}
SEARCH = ("--language", "cpp", "--candidates", "2", "--minutes", "1")
RUNNING = ("starting", "running")
UPLOADED = {"created", "unchanged"}


@dataclass
class Loss:
    """What the loss of one part cost. Seconds are from the new start, but for `silent`, the longest
    time in which no question was answered. `answers` counts them by what they were beside those
    before; `run` says how the run went on; `wrong` is what was lost or other afterwards."""

    part: str
    started: float = 0.0
    ready: float = 0.0
    silent: float = 0.0
    answers: Counter[Kind] = field(default_factory=Counter)
    upload: str = ""
    run: str = ""
    wrong: list[str] = field(default_factory=list)


class Watch:
    """Asks one question after another, and notes what comes back."""

    def __init__(self, urls: Sequence[str], expected: Sequence[Spoken]) -> None:
        self._balancer, self._expected = Balancer(urls), expected
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="watch", daemon=True)
        self.answers: Counter[Kind] = Counter()
        self.silent = 0.0

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def stop(self) -> None:
        """Ask no more."""
        self._done.set()
        self._thread.join()
        self._balancer.close()

    def _ask(self) -> None:
        answered = time.monotonic()
        number = 0
        while not self._done.is_set():
            number = (number + 1) % len(SIGNALS)
            answer = self._balancer.send("POST", "/retrieve", json=SIGNALS[number])
            kind: Kind = "refused"
            if answer is not None and answer.status_code == 200:
                kind = spoken(answer.json()).against(self._expected[number])
            elif answer is not None and answer.status_code not in (502, 503, 507):
                kind = "different"
            now = time.monotonic()
            if kind != "refused":
                self.silent, answered = max(self.silent, now - answered), now
            self.answers[kind] += 1
            self._done.wait(LOOK_SECONDS)


class Losses:
    """Uses an installation and loses its parts; keeps what it was told was stored."""

    def __init__(self, cluster: Installation) -> None:
        self._cluster = cluster
        self._urls = [replica.url for replica in cluster.replicas]
        self._balancer = Balancer(self._urls)
        self._originals: dict[str, bytes] = {}
        self._words: dict[str, str] = {}

    def close(self) -> None:
        """End all connections."""
        self._balancer.close()

    # -- use it

    def ingest(self, word: str) -> str:
        """Upload a manual that has a word of its own; how often it was refused until accepted. It
        counts as stored from then on."""
        text = (
            f"# Unit {word}\n\nThe {word} unit moves 16 bytes a clock and waits for the fabric.\n"
        )
        files = [("file", (f"{word}.md", text.encode()))]
        began = time.monotonic()
        answer = self._balancer.insist("POST", "/documents", files=files, data={"hardware": CHIP})
        if answer.status_code != 202 or answer.json()["outcome"] not in UPLOADED:
            raise Unavailable(f"upload: {answer.status_code} {answer.text}", hint="Read the logs.")
        document = answer.json()["document_id"]
        self._originals[document], self._words[document] = text.encode(), word
        return f"accepted after {time.monotonic() - began:.1f} s"

    def unread(self) -> list[str]:
        """Acknowledged documents that some replica does not find by their word, or whose bytes are
        not those that were sent."""
        missing = []
        for document, word in self._words.items():
            asked = {"query": f"{word} unit", "hardware": CHIP}
            for replica in self._cluster.replicas:
                answer = replica.client.post("/retrieve", json=asked).json()
                if document not in {e["document"]["id"] for e in answer["excerpts"]}:
                    missing.append(f"{word} is not found at {replica.url}")
            stored = self._cluster.replicas[0].client.get(f"/documents/{document}/file")
            if stored.content != self._originals[document]:
                missing.append(f"the original of {word} is not what was sent")
        return missing

    def _forget(self, documents: set[str]) -> None:
        """Delete documents, so that the answers are comparable with those before they came."""
        for document in documents:
            self._balancer.insist("DELETE", f"/documents/{document}")
            del self._words[document], self._originals[document]
        self.settle()

    def settle(self) -> None:
        """Returns when every replica has nothing left to do."""
        for replica in self._cluster.replicas:
            replica.await_ready(SETTLE_SECONDS)

    # -- lose a part

    def lose(self, part: Part) -> Loss:
        """Kill a part while it is used, start it again, and compare."""
        self.settle()
        loss, before = Loss(part.name), contents_of(self._cluster.replicas, self._originals)
        at = self._cluster.replicas[0].url
        watch = Watch(self._urls, [before.answers[f"{n} at {at}"] for n in range(len(SIGNALS))])
        name = part.name.replace(" ", "").lower()
        run = self._run_under_way()
        kept = set(self._words)
        self.ingest(f"{name}before")
        watch.start()
        say(f"{part.name} is killed")
        part.kill()
        upload = _Call(lambda: self.ingest(f"{name}meanwhile"))
        time.sleep(AWAY_SECONDS)
        began = time.monotonic()
        part.start()
        loss.started = time.monotonic() - began
        loss.upload = upload.result()
        self.settle()
        loss.ready = time.monotonic() - began
        loss.run = self._end_of(run, loss.wrong)
        watch.stop()
        loss.answers, loss.silent = watch.answers, watch.silent
        loss.wrong += self.unread()
        self._forget(set(self._words) - kept)
        loss.wrong += differences(before, contents_of(self._cluster.replicas, self._originals))
        say(f"{part.name}: {loss}")
        return loss

    def _run_under_way(self) -> tuple[str, list[Any]]:
        """A run of the first replica that measures its first candidate, and the nodes it has."""
        body = {"problem": PROBLEM, "goal": GOAL}
        sent = self._cluster.replicas[0].client.post("/runs", json=body)
        run_id = str(sent.raise_for_status().json()["id"])
        _until(lambda: bool(self._nodes(run_id)), f"{run_id} begins")
        return run_id, self._nodes(run_id)

    def _nodes(self, run_id: str) -> list[Any]:
        answer = self._balancer.insist("GET", f"/runs/{run_id}/tree")
        return list(answer.json()["nodes"]) if answer.status_code == 200 else []

    def _end_of(self, run: tuple[str, list[Any]], wrong: list[str]) -> str:
        """How the run ended, continued where nobody works on it any more."""
        run_id, stored = run

        def row() -> dict[str, Any]:
            answer = self._balancer.insist("GET", f"/runs/{run_id}").json()
            return dict(answer)

        _until(lambda: row()["state"] not in RUNNING or "note" in row(), f"{run_id} ends")
        how = "went on"
        if row()["state"] != "finished":
            how = f"resumed at node {len(self._nodes(run_id))}"
            self._cluster.command("runs", "resume", run_id)
        nodes = self._nodes(run_id)
        if row()["state"] != "finished" or nodes[: len(stored)] != stored:
            wrong.append(f"{run_id} is {row()['state']}, with other nodes than before")
        return f"{how}, finished with {len(nodes)} nodes"


class _Call:
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], str]) -> None:
        self._result: str | BaseException = "never ended"
        self._call = call
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._call()
        except BaseException as error:  # raised again where it is asked for
            self._result = error

    def result(self) -> str:
        """What it returned or raised."""
        self._thread.join()
        if isinstance(self._result, BaseException):
            raise self._result
        return self._result


def _until(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SETTLE_SECONDS
    while not done():
        if time.monotonic() > deadline:
            raise Unavailable(f"waited in vain: {what}", hint="Read the logs of the replicas.")
        time.sleep(LOOK_SECONDS)


def _shown(search: Mapping[str, Any], losses: Sequence[Loss], replicas: int) -> list[str]:
    rows = [
        (
            loss.part,
            "; ".join(loss.wrong) or "nothing",
            f"{loss.started:.1f}",
            f"{loss.ready:.1f}",
            f"{loss.silent:.1f}",
            ", ".join(f"{count} {kind}" for kind, count in sorted(loss.answers.items())),
            loss.upload,
            loss.run,
        )
        for loss in losses
    ]
    header = (
        "killed",
        "lost",
        "answers again, s",
        "all ready, s",
        "longest silence, s",
        "answers meanwhile",
        "an upload meanwhile",
        "the run",
    )
    return [
        f"PostgreSQL, a Chroma server, an S3 server (SeaweedFS) and {replicas} replicas on one"
        f" machine. Each part gets SIGKILL with all its processes and is started {AWAY_SECONDS:.0f}"
        " s later. `make cluster`, or `python -m benchmarks.cluster.losses`.",
        f"Before: a search of `{PROBLEM}` by command ended with `{search['ended']}`.",
        table(header, rows),
        "Seconds are from the new start, but for the silence, which is the longest time in which a"
        " caller that goes from replica to replica got no answer. Answers: `same` byte for byte,"
        " `by words` where the answer says that vectors are missing, `refused` with 503 or no"
        " connection. Lost is what differs between before and after: documents, their originals,"
        " finished runs, answers of each replica (after the two documents of the loss were deleted"
        " again), a document acknowledged just before the kill and one sent meanwhile, which every"
        " replica had to find, the stored nodes of a run that was under way at replica 1.",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--knowledge", type=Path, help="folder in place of all that is built in")
    parser.add_argument("--models", type=Path, help="folder with the exported embedding model")
    parser.add_argument("--output", type=Path, help="Markdown file for the result")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # with all that was started
    with (
        tempfile.TemporaryDirectory(prefix="kernlore-cluster-") as folder,
        installation(Path(folder), options.replicas, options.knowledge, options.models) as cluster,
    ):
        session = Losses(cluster)
        session.ingest("first")
        say("a search by command")
        search = cluster.optimize(PROBLEM, *SEARCH)
        losses = [session.lose(part) for part in cluster.parts]
        session.close()
    write_result(options.output, TITLE, _shown(search, losses, options.replicas))
    if any(loss.wrong or loss.answers["different"] for loss in losses):
        raise SystemExit(1)


if __name__ == "__main__":
    ended(main)
