"""The Python client of a Kernlore service: one module, standard library and httpx, nothing else.

Also the distribution `kernlore-client`: imports nothing of this repository, runs on Python 3.10.
Fields a newer service adds are ignored, fields an older one lacks keep their default.

    with Kernlore() as kernlore:
        answer = kernlore.retrieve(log=compiler_output, hardware="h100")
        prompt = answer.context
        kernlore.report(answer.retrieval_id, used=["psg_..."], correct=True, speedup=1.4)
"""

from __future__ import annotations

import math
import os
import secrets
import time
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, BinaryIO, Protocol, SupportsFloat, TypeVar
from urllib.parse import quote

import httpx

__version__ = "0.1.0"
DEFAULT_URL = "http://127.0.0.1:8321"
KEY_VARIABLE = "KERNLORE_KEY"
MOST_WAITS, MOST_SECONDS = 5, 60.0  # of a 429 answer: retries, and the longest wait before one

Json = Mapping[str, Any]
T = TypeVar("T")
_segment = partial(quote, safe="")  # quote an id as one path segment


class KernloreClientError(Exception):
    """A request failed. `hint` says how to fix it, `status` is the HTTP status or None without a
    response. `code` is the service's (`unknown_hardware`, ...) or the client's: unreachable,
    timeout, connection_lost, unexpected_answer, invalid_url, invalid_request.
    """

    def __init__(
        self,
        code: str,
        message: str,
        hint: str = "",
        details: Json | None = None,
        status: int | None = None,
    ) -> None:
        self.code = code
        self.message = message
        self.hint = hint
        self.details = dict(details or {})
        self.status = status
        # Pass all fields as args, because pickle restores exceptions from args.
        super().__init__(code, message, hint, self.details, status)

    def __str__(self) -> str:
        return f"{self.code}: {self.message}" + (f" ({self.hint})" if self.hint else "")


@dataclass(frozen=True)
class SignalFinding:
    """A detected signal. `confidence` is A (a vendor's rule), B (a peer's code), C (a heuristic) or
    "given" if the caller named the signal.
    """

    id: str
    confidence: str = ""
    evidence: tuple[Json, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """The diagnosis: signals, root causes first. `measure_next` lists metrics that would settle the
    open questions.
    """

    signals: tuple[SignalFinding, ...] = ()
    unrecognised: tuple[str, ...] = ()
    ruled_out: tuple[Json, ...] = ()
    abstained: tuple[Json, ...] = ()
    measure_next: tuple[str, ...] = ()
    signatures: tuple[Json, ...] = ()
    hint: str = ""


@dataclass(frozen=True)
class ProfileRead:
    """Contents of a profile: the profiler, the kernel that takes most of the time, its metrics, and
    the times of all kernels.
    """

    kind: str
    kernel: str = ""
    metrics: Mapping[str, float | str] = field(default_factory=dict)
    unread: int = 0
    kernels: tuple[Json, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class DocumentRef:
    """The document of an excerpt."""

    id: str
    title: str = ""
    version: int = 0


@dataclass(frozen=True)
class Excerpt:
    """One cited piece of a document. `hardware` lists the chips that it is about; empty for any
    chip.
    """

    id: str
    category: str
    text: str
    document: DocumentRef
    hardware: tuple[str, ...] = ()
    section: str = ""
    page: Json | None = None
    score: float = 0.0
    channels: Mapping[str, float] = field(default_factory=dict)
    passages: tuple[str, ...] = ()
    citation: str = ""


@dataclass(frozen=True)
class Move:
    """A change of a kernel, as data. `applies` is None if values named in `missing` are needed to
    decide it.
    """

    id: str
    name: str = ""
    when: str = ""
    applies: bool | None = None
    change: Json = field(default_factory=dict)
    limit: Json | None = None
    why: str = ""
    missing: tuple[str, ...] = ()
    source: Json = field(default_factory=dict)


@dataclass(frozen=True)
class SkillAnswer:
    """A measured transformation that fits; `score` holds the components of its rank."""

    name: str
    summary: str = ""
    tier: str = ""
    state: str = ""
    score: Mapping[str, float] = field(default_factory=dict)
    evidence: Json | None = None


@dataclass(frozen=True)
class ContextPart:
    """A part of a context: its kind, the id to exclude it by, its tokens and its citation."""

    kind: str
    id: str = ""
    tokens: int = 0
    citation: str = ""


@dataclass(frozen=True)
class Answer:
    """`context` is packed for a prompt, `excerpts` is the plain ranked list and `raw` the whole
    JSON.

    The first `context_stable` characters of `context` are equal in every request about the same
    chip, language, operator and budget that excludes nothing (0 if a small budget leaves room for
    the question only). Moves and skills start at character `context_actions`. `parts` lists the
    contents of `context`.
    """

    retrieval_id: str
    context: str
    diagnosis: Verdict = field(default_factory=Verdict)
    hardware: Json | None = None
    excerpts: tuple[Excerpt, ...] = ()
    skills: tuple[SkillAnswer, ...] = ()
    moves: tuple[Move, ...] = ()
    context_tokens: int = 0
    skills_withheld: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    task: str = ""
    context_stable: int = 0
    context_actions: int = 0
    parts: tuple[ContextPart, ...] = ()
    unknown_names: tuple[Json, ...] = ()
    profile: ProfileRead | None = None
    raw: Json = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class Upload:
    """The result of an upload. `outcome` is created, new_version, unchanged or duplicate_of.
    `job_id` is None if nothing has to be read. `group` is shared by files uploaded together.
    """

    document_id: str
    outcome: str
    job_id: str | None = None
    group: str | None = None
    raw: Json = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class JobError:
    """The reason for which a job failed; `hint` says what to do next."""

    code: str
    message: str = ""
    hint: str = ""
    details: Json = field(default_factory=dict)


@dataclass(frozen=True)
class JobDocument:
    """The document that a job reads."""

    id: str
    title: str = ""
    hardware: tuple[str, ...] = ()


@dataclass(frozen=True)
class Job:
    """An ingestion job. `state` is queued, running, ready, partial or failed; `stage` of a running
    job is reading or embedding. `passages` is None until the document is read. `seconds` is the
    running time so far.
    """

    id: str
    state: str
    progress: Json = field(default_factory=dict)
    result: Json = field(default_factory=dict)
    error: JobError | None = None
    stage: str | None = None
    document: JobDocument | None = None
    group: str | None = None
    passages_done: int = 0
    passages: int | None = None
    attempts: int = 0
    created_at: str = ""
    started_at: str | None = None
    finished_at: str | None = None
    seconds: float | None = None
    raw: Json = field(default_factory=dict, repr=False, compare=False)

    @property
    def finished(self) -> bool:
        return self.state in ("ready", "partial", "failed")


@dataclass(frozen=True)
class JobCounts:
    """Number of jobs in each state, number of running jobs that are embedding, and their passages:
    known, and with a vector.
    """

    queued: int = 0
    running: int = 0
    ready: int = 0
    partial: int = 0
    failed: int = 0
    embedding: int = 0
    passages_done: int = 0
    passages: int = 0


@dataclass(frozen=True)
class Jobs:
    """A page of jobs, newest first. `counts` cover all jobs of the hardware and group; `cursor`
    selects the next page and is None on the last.
    """

    jobs: tuple[Job, ...] = ()
    counts: JobCounts = field(default_factory=JobCounts)
    cursor: str | None = None
    raw: Json = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class Part:
    """One field of a multipart body; a file if it has a `file_name`."""

    name: str
    content: str | bytes | BinaryIO
    file_name: str | None = None


class Backend(Protocol):
    """Sends one request to a service, over HTTP or in process. Returns the status and the decoded
    JSON body, None for an empty one. An error of the service is returned too: a status of 400 or
    above with the body `{code, message, hint, details}`.
    """

    def send(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        json: Any | None = None,
        files: Sequence[Part] | None = None,
    ) -> tuple[int, Any]: ...


class HttpBackend:
    """A connection pool for one service; safe to share between threads. Without `key`, the key in
    the environment is sent, if there is one. Retries a 429 response after the time that the service
    states.
    """

    def __init__(
        self,
        url: str,
        timeout: float,
        transport: httpx.BaseTransport | None,
        key: str | None = None,
    ) -> None:
        parsed = _parse_url(url)
        headers = {"user-agent": f"kernlore-client/{__version__}", **key_header(key)}
        self.url = str(parsed)
        self._http = httpx.Client(
            base_url=parsed,
            timeout=timeout,
            transport=transport,
            headers=headers,
            # A proxy named in the environment cannot reach the loopback interface.
            trust_env=parsed.host not in ("127.0.0.1", "localhost", "::1"),
        )

    def send(
        self, method: str, path: str, *, files: Sequence[Part] | None = None, **carried: Any
    ) -> tuple[int, Any]:
        for _ in range(MOST_WAITS):
            answer = self._request(method, path, files, carried)
            seconds = _retry_after(answer)
            if seconds is None:
                break
            time.sleep(seconds)
        if not answer.content and answer.is_success:
            return answer.status_code, None
        try:
            return answer.status_code, answer.json()
        except ValueError as error:
            message = f"{method} {self.url}{path} answered {answer.status_code} without JSON"
            raise _unexpected(message, answer.text, answer.status_code) from error

    def _request(
        self, method: str, path: str, files: Sequence[Part] | None, carried: Mapping[str, Any]
    ) -> httpx.Response:
        for part in files or ():
            if not isinstance(part.content, str | bytes):
                part.content.seek(0)
        parts = [(part.name, (part.file_name, part.content)) for part in files or ()] or None
        try:
            return self._http.request(method, path, files=parts, **carried)
        except httpx.RequestError as error:
            raise _no_answer(error, self.url, f"{method} {path}") from error

    def download(self, path: str, params: Mapping[str, Any] | None = None) -> httpx.Response:
        """The response with the contents of a file."""
        return self._request("GET", path, None, {"params": params or None})

    def close(self) -> None:
        self._http.close()


def _retry_after(answer: httpx.Response) -> float | None:
    """Seconds to wait before a rate-limited request is repeated; None for other responses."""
    seconds = answer.headers.get("retry-after", "")
    if answer.status_code != 429 or not seconds.isdecimal() or float(seconds) > MOST_SECONDS:
        return None
    return float(seconds)


def key_header(key: str | None = None) -> dict[str, str]:
    """The header with a key, by default the key in the environment, if there is one. Raises
    KernloreClientError for a key that no header can carry.
    """
    secret = (os.environ.get(KEY_VARIABLE, "") if key is None else key).strip()
    return {"authorization": f"Bearer {_sendable_key(secret)}"} if secret else {}


def _sendable_key(key: str) -> str:
    if not key.isascii() or not key.isprintable() or " " in key:
        hint = f"Copy the whole line that `kernlore keys create` printed into {KEY_VARIABLE}."
        raise KernloreClientError("invalid_key", "the key has characters that no key has", hint)
    return key


class Kernlore:
    """Client of a Kernlore service, by URL or by any `Backend`; the same calls give the same
    answers. `key` defaults to the environment variable KERNLORE_KEY.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        timeout: float = 30.0,
        transport: httpx.BaseTransport | None = None,
        backend: Backend | None = None,
        key: str | None = None,
    ) -> None:
        self._own: HttpBackend | None = None
        if backend is None:
            backend = self._own = HttpBackend(url, timeout, transport, key)
        self._backend = backend

    def __enter__(self) -> Kernlore:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. A backend that the caller passed stays open."""
        if self._own is not None:
            self._own.close()

    def retrieve(
        self,
        *,
        signal: str | None = None,
        log: str | None = None,
        metrics: Mapping[str, SupportsFloat | str] | None = None,
        profile: str | Mapping[str, Any] | Sequence[Any] | None = None,
        query: str | None = None,
        hardware: str | None = None,
        op: str | None = None,
        language: str | None = None,
        dtype: str | None = None,
        problem: Mapping[str, float | str] | None = None,
        k: int | None = None,
        max_tokens: int | None = None,
        categories: Sequence[str] | None = None,
        skill_states: Sequence[str] | None = None,
        run_id: str | None = None,
        node_id: str | None = None,
        signals: Sequence[str] | None = None,
        roles: Sequence[str] | None = None,
        task: str | None = None,
        draft: str | None = None,
        exclude: Sequence[str] | None = None,
    ) -> Answer:
        """Retrieve by signals, a raw log, a profiler's metrics or output, a question, or several of
        them.

        `task` is the purpose of the context: write, repair, speed_up or ask; by default it is
        derived from the other fields. `draft` is the source of the current kernel, `exclude` the
        ids of parts and excerpts that did not help. `profile` is a profiler's output, as text or
        JSON; `metrics` override it. `signals` follow `signal`, the leading one first. `roles` are
        the parameter roles that the caller can change (like vector): moves of these are returned in
        addition to the best of any role. `problem` holds further quantities by name, `k` is the
        number of excerpts, `max_tokens` the budget of `context`. A field that is left out has the
        service's default. Raises KernloreClientError.
        """
        lists = {"categories": categories, "skill_states": skill_states, "signals": signals}
        lists |= {"roles": roles, "exclude": exclude}
        body = {
            "signal": signal,
            "log": None if log is None else _sendable(log),
            "metrics": None if metrics is None else {n: _metric(v) for n, v in metrics.items()},
            "profile": _sendable(profile) if isinstance(profile, str) else profile,
            "query": None if query is None else _sendable(query),
            "hardware": hardware,
            "op": op,
            "language": language,
            "dtype": dtype,
            "problem": problem,
            "k": k,
            "max_tokens": max_tokens,
            "run_id": run_id,
            "node_id": node_id,
            "task": task,
            "draft": None if draft is None else _sendable(draft),
            **{name: _listed(names) for name, names in lists.items() if names is not None},
        }
        return _record(Answer, self._call("POST", "/retrieve", json=_given(body)))

    def search(
        self, query: str, *, hardware: str | None = None, k: int | None = None, **narrowed: Any
    ) -> tuple[Excerpt, ...]:
        """The ranked excerpts for a question; `narrowed` are further arguments of `retrieve`."""
        return self.retrieve(query=query, hardware=hardware, k=k, **narrowed).excerpts

    def report(
        self,
        retrieval_id: str,
        *,
        used: Sequence[str] = (),
        correct: bool | None = None,
        speedup: float | None = None,
        baseline_speedup: float | None = None,
    ) -> None:
        """Report the outcome of an answer. `used` are ids of the excerpts, moves and skills that
        were applied. `speedup` is relative to the reference (2.0 is twice as fast),
        `baseline_speedup` is that of the kernel before the change. Raises KernloreClientError.
        """
        figures = {"speedup": speedup, "baseline_speedup": baseline_speedup}
        known = _given({"used": _listed(used), "correct": correct} | figures)
        # omit NaN
        outcome = {n: v for n, v in known.items() if n not in figures or math.isfinite(v)}
        self._call("POST", f"/retrievals/{_segment(retrieval_id)}/outcome", json=outcome)

    def signals(self) -> list[Json]:
        """Every run-time signal that a request may name."""
        return _rows(self._call("GET", "/signals"), "signals")

    def hardware(self) -> list[Json]:
        """Every registered hardware."""
        return _rows(self._call("GET", "/hardware"), "hardware")

    def facts(self, hardware_id: str) -> list[Json]:
        """Every number known about a hardware, its own and inherited, each with its source."""
        return _rows(self._call("GET", f"/hardware/{_segment(hardware_id)}/facts"), "facts")

    def coverage(self, hardware_id: str) -> Json:
        """The knowledge that the service has about a hardware, and the gaps in it."""
        return _mapping(self._call("GET", f"/hardware/{_segment(hardware_id)}/coverage"))

    def documents(self, *, hardware: str | None = None, category: str | None = None) -> list[Json]:
        """Documents, optionally only those about a hardware or of a category."""
        params = _given({"hardware": hardware, "category": category})
        return _rows(self._call("GET", "/documents", params=params), "documents")

    def knowledge(self, path: str = "") -> Json:
        """One node of the knowledge tree, such as `hardware/h100/memory`."""
        return _mapping(self._call("GET", "/knowledge", params={"path": path}))

    def upload(
        self,
        paths: str | Path | Iterable[str | Path],
        *,
        hardware: str | Sequence[str] | None = None,
        category: str | None = None,
        title: str | None = None,
        source_key: str | None = None,
        group: str | None = None,
    ) -> list[Upload]:
        """Upload documents, one request each; follow one with `wait`, all with `jobs(group=...)`.

        `group` names the files uploaded together; several files get a new group by default. If a
        file is refused, the error's `details` name it and list the documents uploaded before it as
        `accepted`. Uploading those again is harmless: the outcome is `unchanged`.
        """
        several = [Path(p) for p in ([paths] if isinstance(paths, str | Path) else paths)]
        if len(several) != 1 and (title or source_key):
            hint = "Upload the files one by one to name them, or leave both out."
            raise KernloreClientError("invalid_request", "one name for several files", hint)
        if group is None and len(several) > 1:
            group = f"upl_{secrets.token_hex(8)}"
        names = {"category": category, "title": title, "source_key": source_key, "group": group}
        named = _given(names)
        about = [Part("hardware", chip) for chip in _listed(hardware or ())]
        about += [Part(name, value) for name, value in named.items()]
        sent: list[Upload] = []
        for path in several:
            try:
                sent.append(self._upload_one(path, about))
            except KernloreClientError as error:
                error.details.update(path=str(path), accepted=[u.document_id for u in sent])
                raise
        return sent

    def job(self, job_id: str) -> Job:
        """The current state of a job."""
        return _record(Job, self._call("GET", f"/jobs/{_segment(job_id)}"))

    def jobs(
        self,
        *,
        state: str | Sequence[str] | None = None,
        hardware: str | None = None,
        group: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Jobs:
        """Current and past jobs, newest first, with counts by state. `group` is that of an upload,
        `cursor` that of the previous page.
        """
        states = None if state is None else _listed(state)
        asked = {"state": states, "hardware": hardware, "group": group}
        params = _given({**asked, "limit": limit, "cursor": cursor})
        return _record(Jobs, self._call("GET", "/jobs", params=params))

    def wait(self, job_id: str, timeout: float = 600.0) -> Job:
        """Wait until the job is ready, partial or failed, and return it; the caller checks its
        state. `timeout` is in seconds; then a KernloreClientError with code "timeout" is raised.
        """
        deadline = time.monotonic() + timeout
        pause = 0.1
        while True:
            job = self.job(job_id)
            if job.finished:
                return job
            left = deadline - time.monotonic()
            if left <= 0:
                message = f"job {job_id} is still {job.state} after {timeout:g} s"
                raise KernloreClientError("timeout", message, "It goes on: wait again, longer.")
            time.sleep(min(pause, left))
            pause = min(pause * 1.5, 2.0)

    def _upload_one(self, path: Path, about: Sequence[Part]) -> Upload:
        try:
            file = path.open("rb")
        except OSError as error:
            message = f"cannot read {path}: {error.strerror}"
            hint = "Give the path of a file, not of a folder, that this process may read."
            raise KernloreClientError("invalid_request", message, hint) from error
        with file:
            body = self._call("POST", "/documents", files=[*about, Part("file", file, path.name)])
        return _record(Upload, body[0] if isinstance(body, list) and len(body) == 1 else body)

    def _call(self, method: str, path: str, **carried: Any) -> Any:
        status, body = self._backend.send(method, path, **carried)
        if status < 300:
            return body
        if isinstance(body, Mapping) and "code" in body and "message" in body:
            hint, details = body.get("hint", ""), body.get("details")
            raise KernloreClientError(body["code"], body["message"], hint, details, status)
        raise _unexpected(f"{method} {path} answered {status}", body, status)


def _no_answer(error: httpx.RequestError, url: str, request: str) -> KernloreClientError:
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        code, message = "unreachable", f"no Kernlore service answers at {url}"
        hint = "Start one with `kernlore serve`, or give the URL of a running one."
    elif isinstance(error, httpx.TimeoutException):
        code, message = "timeout", f"{request} took longer than the client's timeout"
        hint = "Give Kernlore(timeout=...) more seconds, or read the service's log."
    else:
        code, message = "connection_lost", f"the connection broke during {request}"
        hint = "Repeat the request; if it breaks again, read the service's log."
    details = {"url": url, "request": request, "reason": str(error)}
    return KernloreClientError(code, message, hint, details)


def _parse_url(url: str) -> httpx.URL:
    try:
        parsed = httpx.URL(url.rstrip("/"))
    except httpx.InvalidURL:
        parsed = httpx.URL()
    if parsed.scheme not in ("http", "https") or not parsed.host:
        hint = f"Write it in full, as {DEFAULT_URL}."
        raise KernloreClientError("invalid_url", f"{url!r} is no http URL", hint)
    return parsed


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Without the fields that the caller left out, so that the service's defaults apply."""
    return {name: value for name, value in fields.items() if value is not None}


def _listed(value: str | Sequence[str]) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def _sendable(text: str) -> str:
    """Replace characters that UTF-8 cannot encode, as in logs decoded with `surrogateescape`."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _metric(value: SupportsFloat | str) -> int | float | str:
    """A profiler's value as JSON: NaN and infinity, which JSON lacks, become text."""
    if isinstance(value, str | int):
        return value
    number = float(value)
    return number if math.isfinite(number) else str(number)


def _rows(body: Any, key: str) -> list[Json]:
    """A list, bare or under its key."""
    rows = body.get(key) if isinstance(body, Mapping) else body
    if not isinstance(rows, list):
        raise _unexpected(f"no list of {key} in the answer", body)
    return [_mapping(row) for row in rows]


def _record(cls: Callable[..., T], body: Any) -> T:
    row = _mapping(body)
    hints = _hints(cls)
    known: Any = {n: _value(hint, row[n]) for n, hint in hints.items() if row.get(n) is not None}
    if "raw" in hints:
        known["raw"] = row
    try:
        return cls(**known)
    except TypeError as error:
        raise _unexpected(f"the answer lacks something: {error}", body) from error


def _value(hint: Any, value: Any) -> Any:
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, list | tuple):
            raise _unexpected("a single value where a list is due in the answer", value)
        return tuple(_value(typing.get_args(hint)[0], part) for part in value)
    records = (h for h in (hint, *typing.get_args(hint)) if isinstance(h, type) and is_dataclass(h))
    record = next(records, None)
    return value if record is None else _record(record, value)


@cache
def _hints(cls: Any) -> dict[str, Any]:
    resolved = typing.get_type_hints(cls)
    return {part.name: resolved[part.name] for part in fields(cls)}


def _mapping(body: Any) -> Json:
    if isinstance(body, Mapping):
        return body
    raise _unexpected("no JSON object in the answer", body)


def _unexpected(message: str, body: Any, status: int | None = None) -> KernloreClientError:
    hint = "Check that the URL is Kernlore's and that service and client are of one age."
    shown = {"body": str(body)[:300]}
    return KernloreClientError("unexpected_answer", message, hint, shown, status)
