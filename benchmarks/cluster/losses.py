"""Start an installation on this machine, use it, and kill each part of it in turn.

At each kill a document has just been accepted and a run of the optimizer is active; questions are
sent continuously, and a second document is sent to any replica that accepts it. Afterwards the
contents before, and everything acknowledged since, are compared with the contents now.

    make cluster
    python -m benchmarks.cluster.losses --knowledge DIR --replicas 3
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import httpx

from benchmarks.cluster.parts import Installation, Part, RayHead, RayNode, installation
from benchmarks.report import ended, say, table, write_result
from kb.errors import Unavailable
from retrieval.compose.hints import NO_INDEX, NO_VECTORS_YET
from tests.api.replicas import Replica

# -- snapshots of an installation's contents and answers, and their differences

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


# -- the losses

TITLE = "The loss of each part of an installation"
MANUAL = "# Unit {word}\n\nThe {word} unit moves 16 bytes a clock and waits for the fabric.\n"
AWAY_SECONDS = 5.0  # between the kill and the new start
CHIP = "mi300x"  # of uploads; the questions are about others
SEARCH = ("--language", "cpp", "--candidates", "2", "--minutes", "1")
UPLOADED = {"created", "unchanged"}


@dataclass
class Loss:
    """The effect of one loss. Seconds count from the new start, except `silent`, the longest time
    without an answered question. `answers` counts answers by class, `run` describes how the run
    continued, `wrong` lists lost or changed contents.
    """

    part: str
    started: float = 0.0
    ready: float = 0.0
    silent: float = 0.0
    answers: Counter[Kind] = field(default_factory=Counter)
    upload: str = ""
    run: str = ""
    wrong: list[str] = field(default_factory=list)


class Watch:
    """Sends one question after another and records the answers."""

    def __init__(self, urls: Sequence[str], expected: Sequence[ComparableAnswer]) -> None:
        self._balancer, self._expected = Balancer(urls), expected
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="watch", daemon=True)
        self.answers: Counter[Kind] = Counter()
        self.silent = 0.0

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def stop(self) -> None:
        """Stop."""
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
                kind = comparable(answer.json()).against(self._expected[number])
            elif answer is not None and answer.status_code not in (502, 503, 507):
                kind = "different"
            now = time.monotonic()
            if kind != "refused":
                self.silent, answered = max(self.silent, now - answered), now
            self.answers[kind] += 1
            self._done.wait(LOOK_SECONDS)


class Losses:
    """Uses an installation and kills its parts; records everything that was acknowledged."""

    def __init__(self, cluster: Installation) -> None:
        self._cluster = cluster
        self._urls = [replica.url for replica in cluster.replicas]
        self._balancer = Balancer(self._urls)
        self._searches = Searches(cluster, self._balancer)
        self._originals: dict[str, bytes] = {}
        self._words: dict[str, str] = {}

    def close(self) -> None:
        """End all connections."""
        self._balancer.close()

    # -- use it

    def ingest(self, word: str) -> str:
        """Upload a manual with a unique word; the number of refusals before it was accepted."""
        text = MANUAL.format(word=word)
        files = [("file", (f"{word}.md", text.encode()))]
        began = time.monotonic()
        answer = self._balancer.insist("POST", "/documents", files=files, data={"hardware": CHIP})
        if answer.status_code != 202 or answer.json()["outcome"] not in UPLOADED:
            raise Unavailable(f"upload: {answer.status_code} {answer.text}", hint="Read the logs.")
        self._keep(answer.json()["document_id"], word, text)
        return f"accepted after {time.monotonic() - began:.1f} s"

    def ingest_on_ray(self, folder: Path, word: str) -> None:
        """Read and embed a manual with a unique word on the Ray cluster, by command."""
        folder.mkdir()
        text = MANUAL.format(word=word)
        (folder / f"{word}.md").write_text(text, encoding="utf-8")
        options = ("--hardware", CHIP, "--ray", self._cluster.ray)
        sent = self._cluster.command("ingest", str(folder), *options)
        if sent["summary"]["ready"] != 1:
            raise Unavailable(f"not read on the Ray cluster: {sent}", hint="Read its logs.")
        self._keep(str(sent["files"][0]["document_id"]), word, text)

    def _keep(self, document: str, word: str, text: str) -> None:
        self._originals[document], self._words[document] = text.encode(), word

    def unread(self) -> list[str]:
        """Acknowledged documents that some replica does not find by their word, or whose bytes are
        not those that were sent."""
        missing = []
        for document, word in self._words.items():
            question = {"query": f"{word} unit", "hardware": CHIP}
            for replica in self._cluster.replicas:
                answer = replica.client.post("/retrieve", json=question).json()
                if document not in {e["document"]["id"] for e in answer["excerpts"]}:
                    missing.append(f"{word} is not found at {replica.url}")
            stored = self._cluster.replicas[0].client.get(f"/documents/{document}/file")
            if stored.content != self._originals[document]:
                missing.append(f"the original of {word} differs from the upload")
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
        search = self._search(part)
        known = set(self._words)
        self.ingest(f"{name}before")
        watch.start()
        say(f"{part.name} is killed")
        part.kill()
        upload = Call(lambda: self.ingest(f"{name}meanwhile"))
        time.sleep(AWAY_SECONDS)
        began = time.monotonic()
        part.start()
        loss.started = time.monotonic() - began
        loss.upload = upload.result()
        self.settle()
        loss.ready = time.monotonic() - began
        loss.run = search.end(loss.wrong)
        watch.stop()
        loss.answers, loss.silent = watch.answers, watch.silent
        loss.wrong += self.unread()
        self._forget(set(self._words) - known)
        loss.wrong += differences(before, contents_of(self._cluster.replicas, self._originals))
        say(f"{part.name}: {loss}")
        return loss

    def _search(self, part: Part) -> Search:
        """One that the part has to do with."""
        if isinstance(part, RayNode | RayHead):
            return self._searches.on_ray()
        return self._searches.by_replica()


def _shown(
    search: Mapping[str, Any], losses: Sequence[Loss], options: argparse.Namespace
) -> list[str]:
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
        f"PostgreSQL, a Chroma server, an S3 server (SeaweedFS), {options.replicas} replicas, and a"
        f" Ray cluster of a head and {options.nodes} nodes on one machine. Each part gets SIGKILL"
        f" with all its processes and is started {AWAY_SECONDS:.0f} s later. `make cluster`, or"
        " `python -m benchmarks.cluster.losses`.",
        "Before: a document was sent by `kernlore ingest --ray`, whose nodes read beside the"
        f" replicas, and a search of `{PROBLEM}` by `kernlore optimize --ray` ended with"
        f" `{search['ended']}`.",
        table(header, rows),
        "Seconds are from the new start, but for the silence, which is the longest time in which a"
        " caller that goes from replica to replica got no answer. Answers: `same` byte for byte,"
        " `by words` where the answer says that vectors are missing, `refused` with 503 or no"
        " connection. Lost is what differs between before and after: documents, their originals,"
        " finished runs, answers of each replica (after the two documents of the loss were deleted"
        " again), a document acknowledged just before the kill and one sent meanwhile, which every"
        " replica had to find, the stored nodes of the run that was under way: at replica 1, or"
        " for a part of Ray by a command on the cluster.",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--nodes", type=int, default=3, help="of the Ray cluster, beside its head")
    parser.add_argument("--only", default="", help="lose the parts alone whose name has this in it")
    parser.add_argument("--knowledge", type=Path, help="folder in place of all that is built in")
    parser.add_argument("--models", type=Path, help="folder with the exported embedding model")
    parser.add_argument("--output", type=Path, help="Markdown file for the result")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # with all that was started
    with (
        tempfile.TemporaryDirectory(prefix="kernlore-cluster-") as folder,
        installation(
            Path(folder), options.replicas, options.nodes, options.knowledge, options.models
        ) as cluster,
    ):
        session = Losses(cluster)
        session.ingest("first")
        say("a document and a search on the Ray cluster")
        session.ingest_on_ray(Path(folder) / "manuals", "fabric")
        search = cluster.optimize(PROBLEM, *SEARCH)
        losses = [session.lose(part) for part in cluster.parts if options.only in part.name]
        session.close()
    write_result(options.output, TITLE, _shown(search, losses, options))
    if any(loss.wrong or loss.answers["different"] for loss in losses):
        raise SystemExit(1)


# -- searches that run while a part is killed

SETTLE_SECONDS = 900.0
LOOK_SECONDS = 0.2
PROBLEM = "map_id"
GOAL = {"language": "cpp", "candidates": 1, "knowledge": False}
ON_RAY = ("--language", "cpp", "--candidates", "3")
RUNNING = ("starting", "running")


class Call:
    """A call in its own thread."""

    def __init__(self, call: Callable[[], str]) -> None:
        self._result: str | BaseException = "never ended"
        self._call = call
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._call()
        except BaseException as error:  # raised by `result`
            self._result = error

    @property
    def over(self) -> bool:
        """Whether it has returned or raised."""
        return not self._thread.is_alive()

    def result(self) -> str:
        """What it returned or raised."""
        self._thread.join()
        if isinstance(self._result, BaseException):
            raise self._result
        return self._result


def wait_until(done: Callable[[], bool], what: str) -> None:
    """Returns once `done` is true. Raises Unavailable."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while not done():
        if time.monotonic() > deadline:
            raise Unavailable(f"waited in vain: {what}", hint="Read the logs of the replicas.")
        time.sleep(LOOK_SECONDS)


class Searches:
    """Starts searches and reports how they ended."""

    def __init__(self, cluster: Installation, balancer: Balancer) -> None:
        self._cluster, self._balancer = cluster, balancer

    def by_replica(self) -> Search:
        """A run of the first replica that measures its first candidate."""
        body = {"problem": PROBLEM, "goal": GOAL}
        sent = self._cluster.replicas[0].client.post("/runs", json=body)
        run_id = str(sent.raise_for_status().json()["id"])
        wait_until(lambda: bool(self.nodes(run_id)), f"{run_id} begins")
        return Search(self, run_id, None)

    def on_ray(self) -> Search:
        """A search by command whose candidates are being evaluated on the nodes."""
        before = self._runs()
        call = Call(lambda: str(self._cluster.optimize(PROBLEM, *ON_RAY)["ended"]))
        new: set[str] = set()

        def evaluates() -> bool:
            if call.over:  # before it was seen: raises where it failed
                call.result()
            new.update(self._runs() - before)
            return any(self._evaluating(run_id) for run_id in new)

        wait_until(evaluates, "a search on the Ray cluster begins")
        return Search(self, new.pop(), call)

    def resume(self, run_id: str, on_ray: bool) -> None:
        """Resume a run whose process has ended."""
        options = ("--ray", self._cluster.ray) if on_ray else ()
        self._cluster.command("runs", "resume", run_id, *options)

    def row(self, run_id: str) -> dict[str, Any]:
        """The run as the service shows it."""
        answer = self._balancer.insist("GET", f"/runs/{run_id}").json()
        return dict(answer)

    def nodes(self, run_id: str) -> list[Any]:
        """The nodes of its tree that are stored."""
        answer = self._balancer.insist("GET", f"/runs/{run_id}/tree")
        return list(answer.json()["nodes"]) if answer.status_code == 200 else []

    def _runs(self) -> set[str]:
        return {run["id"] for run in self._balancer.insist("GET", "/runs").json()["runs"]}

    def _evaluating(self, run_id: str) -> bool:
        """Whether nodes of the cluster are at its candidates; the first node is the reference."""
        at = (self.row(run_id).get("cluster") or {}).get("nodes", {})
        return bool(self.nodes(run_id)) and any(node["evaluating"] for node in at.values())


class Search:
    """One search: what it has stored by now, and the command that carries it out, if one does."""

    def __init__(self, searches: Searches, run_id: str, command: Call | None) -> None:
        self._searches, self._id, self._command = searches, run_id, command
        self._stored = searches.nodes(run_id)

    def end(self, wrong: list[str]) -> str:
        """How the run ended, resumed if its process has ended. Lost nodes are added to `wrong`."""
        searches, run_id, how = self._searches, self._id, "went on"
        if self._command is not None:
            try:
                self._command.result()
            except Unavailable:
                how = "the command ended"
        else:
            wait_until(lambda: _is_over(searches.row(run_id)), f"{run_id} ends")
        if searches.row(run_id)["state"] != "finished":
            how = f"resumed at node {len(searches.nodes(run_id))}"
            searches.resume(run_id, self._command is not None)
        row, nodes = searches.row(run_id), searches.nodes(run_id)
        if row["state"] != "finished" or nodes[: len(self._stored)] != self._stored:
            wrong.append(f"{run_id} is {row['state']}, with other nodes than before")
        lost = (row.get("cluster") or {}).get("lost")
        again = "" if lost is None else f", {lost} evaluations begun again"
        return f"{how}{again}, finished with {len(nodes)} nodes"


def _is_over(row: Mapping[str, Any]) -> bool:
    """Whether a run has no process any more, according to its note after a kill."""
    return row["state"] not in RUNNING or "note" in row


if __name__ == "__main__":
    ended(main)
