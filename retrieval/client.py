"""The Python client of a Kernlore service: one module, standard library and httpx, nothing else.

Also the distribution `kernlore-client`: imports nothing of this repository, runs on Python 3.10.
Fields that a newer service adds are ignored; fields that an older one lacks have their default.
The records of answers and most methods are generated, between marks, from the operations of the
service (`python -m api.operations`); a test keeps them current.

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
MOST_WAITS, MOST_SECONDS = 5, 60.0  # after 429: attempts, and the longest wait for the next

Json = Mapping[str, Any]
T = TypeVar("T")
_segment = partial(quote, safe="")  # an id as one part of a path


class KernloreClientError(Exception):
    """A refused or failed request. `hint` advises on the next step; `status` is the HTTP status,
    None without an answer. `code` is that of the service (`unknown_hardware`, ...) or of the
    client: unreachable, timeout, connection_lost, unexpected_answer, invalid_url, invalid_key,
    invalid_request."""

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
        # pickle restores an exception from `args`.
        super().__init__(code, message, hint, self.details, status)

    def __str__(self) -> str:
        return f"{self.code}: {self.message}" + (f" ({self.hint})" if self.hint else "")


# -- generated records: `python -m api.operations` writes them from the records of the service


@dataclass(frozen=True)
class SignalFinding:
    """A signal that holds. `confidence` is A (a vendor's rule), B (a peer's code), C (a heuristic)
    or "given" when the caller named the signal. Each piece of `evidence` is the JSON of a value
    that a rule relied on, or of a log line that a signature matched."""

    id: str
    confidence: str = ""
    evidence: tuple[Json, ...] = ()


@dataclass(frozen=True)
class HotLines:
    """Lines of a kernel that take a large part of its time, or whose accesses move much in vain.

    `place` names them: `file` and the lines `first` to `last`, both 0 if the profile only has
    instructions. `share_pct` is their part of the kernel in `unit`; `stall` is their leading stall
    reason with `stall_pct` of their own stalls. `cause` is the id of the rule that explains them,
    `signals` and `confidence` are those of the cause, `finding` is the sentence. `instructions` are
    the hottest, {address, text, share_pct}; `awaited` is the instruction whose result they wait
    for. `source` quotes the lines with their numbers, if their text is known.
    """

    place: str
    file: str = ""
    first: int = 0
    last: int = 0
    share_pct: float = 0.0
    unit: str = ""
    stall: str = ""
    stall_pct: float = 0.0
    cause: str = ""
    signals: tuple[str, ...] = ()
    confidence: str = ""
    finding: str = ""
    instructions: tuple[Json, ...] = ()
    awaited: str = ""
    source: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """The diagnosis, root causes first; empty if no problem is known.

    `unrecognised` are metric names that no rule knows, `ruled_out` are signals that were refuted or
    explained away ({signal, rule, evidence}), `abstained` are rules that lacked some of their
    evidence ({rule, signal, missing}), `measure_next` are canonical metric names that would settle
    the open questions, and `signatures` are the known error texts of the log, the leading one
    first: {id, signal, class, title, remedy, line, line_number, extracted, quantities, advice,
    validity}.
    `class` is the kind of failure: compiler_crash, limit, run_time_fault, host_error,
    broken_environment, user_mistake or warning_only, null where the signature of a chip leaves it
    open. `quantities` are {needed, limit, unit, excess, factor, source} where the line exceeds a
    limit by known numbers, else null; `advice` is the sentence of the message that names a way out
    or a condition, else null; `validity` are the versions of tools that print it. `lines` are the
    hot lines of a profile by line, the hottest first.
    """

    signals: tuple[SignalFinding, ...] = ()
    unrecognised: tuple[str, ...] = ()
    ruled_out: tuple[Json, ...] = ()
    abstained: tuple[Json, ...] = ()
    measure_next: tuple[str, ...] = ()
    signatures: tuple[Json, ...] = ()
    hint: str = ""
    lines: tuple[HotLines, ...] = ()

    @property
    def signal_ids(self) -> tuple[str, ...]:
        """The ids of the signals, the leading one first."""
        return tuple(finding.id for finding in self.signals)

    @property
    def primary(self) -> str:
        """The id of the leading signal, or "unknown"."""
        return self.signals[0].id if self.signals else "unknown"


@dataclass(frozen=True)
class ProfileRead:
    """The metrics read from the profiler output of a request.

    `kind` is the profiler. `metrics` are those of `kernel`, the one that takes most of the time, by
    the profiler's own names; `unread` counts the counters that no rule knows. `kernels` and
    `functions` of the host are rows {name, calls, us, pct}, the longest first; `notes` say what the
    profile shows and what it lacks.
    """

    kind: str
    kernel: str = ""
    metrics: Mapping[str, float | str] = field(default_factory=dict)
    unread: int = 0
    kernels: tuple[Json, ...] = ()
    functions: tuple[Json, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Uplift:
    """The measured gain of a context for a class of readers: `with_context` and `without` in `unit`
    (more is better), and `placebo` with another context of the same size, None if that was not
    measured. `operator` is a kind of operator or `any`; `interval` the 95 % interval of the ratio,
    `n` the number of problems or cells, `tokens` by how much the context made the prompt longer,
    None if that was not recorded. `source` is the page that records the measurement."""

    chip: str
    operator: str = ""
    language: str = ""
    reader: str = ""
    model: str = ""
    with_context: float = 0.0
    without: float = 0.0
    unit: str = ""
    n: int = 0
    date: str = ""
    command: str = ""
    source: str = ""
    placebo: float | None = None
    tokens: int | None = None
    interval: tuple[float, ...] | None = None


@dataclass(frozen=True)
class NamedFact:
    """A fact of the chip that the question names: `value` as people write it, `number` in `unit`
    (None for a text), `source` where it was read or measured, `hardware` its owner."""

    id: str
    key: str = ""
    value: str = ""
    number: float | None = None
    unit: str = ""
    hardware: str = ""
    kind: str = ""
    source: str = ""
    url: str | None = None


@dataclass(frozen=True)
class DocumentRef:
    """The document of an excerpt, in the version that is current."""

    id: str
    title: str = ""
    version: int = 0


@dataclass(frozen=True)
class Validity:
    """The versions of a tool with which an entry was checked, both bounds included: "3.8" means
    3.8 with every later part, "" no bound. With `holds` false it fails with them. Without a tool it
    depends on none, as a figure of a datasheet. `target` is the chip, or the architecture that it
    was compiled for, `driver` the driver's version, `date` the day of the check."""

    tool: str
    min: str = ""
    max: str = ""
    target: str = ""
    driver: str = ""
    checked: str = ""
    date: str = ""
    holds: bool = False


@dataclass(frozen=True)
class Excerpt:
    """One passage or several of a section. `hardware` lists its scope, empty for any.

    `page` is {index, label} of its first page (the index counts from 0) or None. `score` is the
    fused score it was ranked by, `channels` are the parts of it: lexical and dense. `text` is empty
    where `context` quotes it, unless the request gives `k` or names `excerpts` in `fields`.
    `validity` are the versions of tools for which it was seen to hold, and `mark` says that a model
    drafted it, or what the versions of the request lack, such as "needs Triton 3.8; yours is 3.6".
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
    validity: tuple[Validity, ...] = ()
    mark: str = ""


@dataclass(frozen=True)
class Move:
    """A change of a kernel whose predicate holds, or could not be decided because the values named
    in `missing` are unknown (then `applies` is None).

    `change` is {role, direction} and, where known, {to, factor}; `limit` is the fact that bounds
    the change, {fact, value, unit, source}; `source` is the passage it rests on, `mark` is that of
    an excerpt.
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
    mark: str = ""


@dataclass(frozen=True)
class SkillAnswer:
    """A skill that fits. `score` holds the parts of its rank and their product `total`; `evidence`
    is None without measurements on this installation. `effect` describes the measured effect of the
    skill and who measured it; `untested` skills come last. `mark` is that of an excerpt."""

    name: str
    summary: str = ""
    tier: str = ""
    state: str = ""
    score: Mapping[str, float] = field(default_factory=dict)
    evidence: Json | None = None
    effect: str = ""
    mark: str = ""


@dataclass(frozen=True)
class ContextPart:
    """One part of a context: its kind (manual, sample, symbols, section, ...), the id to exclude it
    by, its size in tokens and its citation, empty for lines of this program."""

    kind: str
    id: str = ""
    tokens: int = 0
    citation: str = ""


@dataclass(frozen=True)
class Answer:
    """`excerpts` is the ranked list, `context` the text packed for a prompt, `hints` advise how to
    improve the request. Outcomes are reported under `retrieval_id`.

    `task` is the purpose of the context. Its first `context_stable` characters stay equal in every
    request about the same chip, language, operator and budget that excludes nothing (0 if a small
    budget leaves no room for it); moves and skills begin at character `context_actions`. `parts`
    lists its contents, and `unknown_names` the names of the draft without a card. `profile` lists
    the metrics read from a given profile. `uplift` are measured gains of contexts on this chip, the
    closest first; empty if none is known. `versions` are those of the caller's tools, given or as
    the log prints them; they decide which entries are marked or left out. `facts` are those of the
    chip that the question names, the closest first.
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
    uplift: tuple[Uplift, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    facts: tuple[NamedFact, ...] = ()
    raw: Json = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class Upload:
    """The result of an upload. `job_id` is None if nothing has to be read (unchanged,
    duplicate_of, included: the text is in the document of the file that includes it)."""

    document_id: str
    outcome: str
    job_id: str | None = None
    name: str = ""
    group: str | None = None
    raw: Json = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class JobError:
    """The reason for which a job failed, in the shape of all errors."""

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
    """The progress of reading a document, or of a check of the knowledge with a new version of a
    tool (`kind` is `check`). `stage` is None unless a document is being read. Of `passages`,
    None until the document is read, `passages_done` have a vector. `seconds` is the running time so
    far. `progress` and `result` count the contents read from the document."""

    id: str
    state: str
    kind: str = ""
    stage: str | None = None
    document_id: str | None = None
    document: JobDocument | None = None
    title: str = ""
    group: str | None = None
    passages_done: int = 0
    passages: int | None = None
    ahead: int | None = None
    attempts: int = 0
    created_at: str = ""
    started_at: str | None = None
    finished_at: str | None = None
    seconds: float | None = None
    error: JobError | None = None
    progress: Json = field(default_factory=dict)
    result: Json = field(default_factory=dict)
    raw: Json = field(default_factory=dict, repr=False, compare=False)

    @property
    def finished(self) -> bool:
        return self.state in ("ready", "partial", "failed")


@dataclass(frozen=True)
class JobCounts:
    """Counts of all jobs of the hardware and group in the request: jobs in each state, running jobs
    that are embedding, their known passages, and those with a vector. `seconds_left` is estimated
    from the work of the last ten minutes; None while nothing is left or known."""

    queued: int = 0
    running: int = 0
    ready: int = 0
    partial: int = 0
    failed: int = 0
    embedding: int = 0
    passages_done: int = 0
    passages: int = 0
    seconds_left: float | None = None


@dataclass(frozen=True)
class Jobs:
    """Jobs, newest first. `cursor` asks for those after them; None at the end."""

    jobs: tuple[Job, ...] = ()
    counts: JobCounts = field(default_factory=JobCounts)
    cursor: str | None = None
    raw: Json = field(default_factory=dict, repr=False, compare=False)


# -- end of generated records


@dataclass(frozen=True)
class Part:
    """One field of a multipart body; a file when it has a `file_name`."""

    name: str
    content: str | bytes | BinaryIO
    file_name: str | None = None


class Backend(Protocol):
    """Carries one request to a service, over HTTP or inside one process.

    Answers the status and the decoded JSON body, None for an empty one. An error of the service is
    an answer too: a status from 400 up with the body `{code, message, hint, details}`.
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
    """Pooled connections to a service; may be shared between threads. `key` defaults to that of the
    environment. A request that is refused with 429 is repeated after the time that the service
    names."""

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
            # A proxy named in the environment cannot reach this machine's own loopback.
            trust_env=parsed.host not in ("127.0.0.1", "localhost", "::1"),
        )

    def send(
        self, method: str, path: str, *, files: Sequence[Part] | None = None, **carried: Any
    ) -> tuple[int, Any]:
        for _ in range(MOST_WAITS):
            answer = self._request(method, path, files, carried)
            seconds = _retry_seconds(answer)
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
        """The answer to a request for a file."""
        return self._request("GET", path, None, {"params": params or None})

    def close(self) -> None:
        self._http.close()


def _retry_seconds(answer: httpx.Response) -> float | None:
    """Seconds to wait before a request over the rate limit is repeated; None for other answers."""
    seconds = answer.headers.get("retry-after", "")
    if answer.status_code != 429 or not seconds.isdecimal() or float(seconds) > MOST_SECONDS:
        return None
    return float(seconds)


def key_header(key: str | None = None) -> dict[str, str]:
    """The authorization header for a key, by default that of the environment; empty without a key.
    Raises KernloreClientError for a key with characters that a header cannot carry."""
    secret = (os.environ.get(KEY_VARIABLE, "") if key is None else key).strip()
    return {"authorization": f"Bearer {_sendable_key(secret)}"} if secret else {}


def _sendable_key(key: str) -> str:
    if not key.isascii() or not key.isprintable() or " " in key:
        hint = f"Copy the whole line that `kernlore keys create` printed into {KEY_VARIABLE}."
        raise KernloreClientError("invalid_key", "the key has characters that no key has", hint)
    return key


class Kernlore:
    """A Kernlore service, by URL or by any `Backend`. `key` defaults to the environment variable
    KERNLORE_KEY. Every method raises KernloreClientError."""

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
        """Close the connection. A `backend` of the caller stays open."""
        if self._own is not None:
            self._own.close()

    # -- generated methods: `python -m api.operations` writes them from the operations

    def retrieve(
        self,
        *,
        signal: str | None = None,
        log: str | None = None,
        metrics: Mapping[str, SupportsFloat | str] | None = None,
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
        task: str | None = None,
        draft: str | None = None,
        exclude: Sequence[str] | None = None,
        signals: Sequence[str] | None = None,
        profile: str | Mapping[str, Any] | Sequence[Any] | None = None,
        roles: Sequence[str] | None = None,
        reader: str | None = None,
        versions: Mapping[str, str] | str | None = None,
        fields: Sequence[str] | None = None,
    ) -> Answer:
        """Ask with a log, metrics, a question or a signal, or several. The service supplies
        defaults.

        signal: Id of a run-time signal; GET /signals lists them.
        log: Output of the compiler or the run, unchanged.
        metrics: A profiler's own metric names and values.
        query: A question in words.
        hardware: An id, name or alias; GET /hardware lists them.
        op: The operator or its family, like matmul.
        language: Language of the kernel, like triton or cuda.
        dtype: The main element type, like bf16.
        problem: Sizes of the problem, like product_rows or flops. Skills and moves that do not
            fit them are left out.
        k: Number of excerpts, and most sections of a category in `context`. Default: 8.
        max_tokens: Most tokens of `context`. Default: 3,000, and twice as many for the task
            write.
        categories: Only passages of these categories: constraint, guidance, hardware.
        skill_states: Skills in these states. Default: only active skills.
        run_id: Id of the calling run. Excerpts that did not help with its failures are left
            out.
        node_id: Id of the node of that run; it is logged.
        task: Purpose of the context: write a first kernel, repair one that failed, speed_up one
            that is correct, or ask. Default: derived from the other fields.
        draft: Source of the current kernel; its names are compared with the chip's.
        exclude: Ids of excerpts that did not help and are left out.
        signals: Further signals after `signal`, the leading one first.
        profile: Output of a profiler, unchanged, as text or JSON; its metrics are added to
            `metrics`, which take precedence.
        roles: Roles of parameters that the caller can change, like vector or tile_m. Their
            moves are added to the best moves of any role.
        reader: Class of the model that reads `context`. For a strong one, which writes right
            kernels for common chips by itself, it has at most 2,000 tokens of what surprises,
            unless more is known to help (`uplift`). Default: the full context.
        versions: Versions of the caller's tools, like triton 3.6 or cuda 13.0; or a text that
            has them: pip freeze, a lock file, banners of compilers. Those that `log` prints are
            read too. Entries checked with them are preferred, entries checked with other
            versions are marked, and entries that fail with them are left out.
        fields: Parts of the answer to fill; the others are empty. `citations` are excerpts
            without their texts. Default: all where `k` is given; otherwise a short answer:
            without `parts`, `uplift`, texts of excerpts that `context` quotes, and signals that
            were ruled out or not decided.
        """
        json = _sendable_fields(
            signal=signal,
            log=log,
            metrics=metrics,
            query=query,
            hardware=hardware,
            op=op,
            language=language,
            dtype=dtype,
            problem=problem,
            k=k,
            max_tokens=max_tokens,
            categories=_listed(categories),
            skill_states=_listed(skill_states),
            run_id=run_id,
            node_id=node_id,
            task=task,
            draft=draft,
            exclude=_listed(exclude),
            signals=_listed(signals),
            profile=profile,
            roles=_listed(roles),
            reader=reader,
            versions=versions,
            fields=_listed(fields),
        )
        body = self._call("POST", "/retrieve", json=json)
        return _record(Answer, body)

    def report(
        self,
        retrieval_id: str,
        *,
        used: Sequence[str] | None = None,
        correct: bool | None = None,
        speedup: float | None = None,
        baseline_speedup: float | None = None,
        note: str | None = None,
    ) -> None:
        """Report the outcome of an answer.

        Reported outcomes decide how skills are ranked later; `used` lists the ids of the answer
        that were acted on. Report once for each kernel that the answer led to: every report
        counts as one outcome, also a second one for the same answer.

        used: Ids of the excerpts, moves and skills acted on.
        correct: Whether the kernel's results were correct.
        speedup: Speed-up of the kernel; 2.0 means twice as fast.
        baseline_speedup: Speed-up of the kernel before the change, where both are over the same
            reference; otherwise left out.
        """
        json = _sendable_fields(
            used=_listed(used),
            correct=correct,
            speedup=speedup,
            baseline_speedup=baseline_speedup,
            note=note,
        )
        self._call("POST", f"/retrievals/{_segment(retrieval_id)}/outcome", json=json)

    def signals(self) -> list[Json]:
        """List the run-time signals.

        A signal names what went wrong with a kernel, such as `memory_bound`.
        """
        body = self._call("GET", "/signals")
        return _rows(body, "signals")

    def hardware(self) -> list[Json]:
        """List registered hardware.

        Every chip, family and vendor with its lineage, aliases and languages.
        """
        body = self._call("GET", "/hardware")
        return _rows(body, "hardware")

    def facts(
        self,
        hardware_id: str,
        *,
        status: str | None = None,
        key: str | None = None,
        subject: str | None = None,
        subject_kind: str | None = None,
        document: str | None = None,
    ) -> list[Json]:
        """List facts with their sources.

        `conflicts` lists disagreements of sources about this hardware. `other_kinds` lists
        further values of an effective fact, such as a measured bandwidth next to the
        datasheet's.

        status: effective: the facts that hold, inherited ones included. Any other value selects
            among the hardware's own facts by their status.
        key: Only this key.
        subject: A part of what names the subject; empty for facts without a subject.
        subject_kind: Read as about the chip itself, a family above it, or unclear.
        document: The id of a document, or part of its title.
        """
        params = _sendable_fields(
            status=status,
            key=key,
            subject=subject,
            subject_kind=subject_kind,
            document=document,
        )
        body = self._call("GET", f"/hardware/{_segment(hardware_id)}/facts", params=params)
        return _rows(body, "facts")

    def coverage(self, hardware_id: str) -> Json:
        """Show the knowledge about a chip and its gaps.

        Coverage by signal, topic and fact, with the most useful uploads.
        """
        body = self._call("GET", f"/hardware/{_segment(hardware_id)}/coverage")
        return _mapping(body)

    def documents(
        self,
        *,
        hardware: str | None = None,
        category: str | None = None,
        q: str | None = None,
        origin: str | None = None,
        limit: int | None = None,
        offset: int | None = None,
    ) -> list[Json]:
        """List documents.

        Documents by category and title. `total` counts those of all pages.

        hardware: Only documents about exactly this hardware (id, name or alias).
        category: Only documents of this category.
        q: Words that title or source key must have.
        origin: Only built-in documents, or only uploads.
        limit: Documents to return. Default: all.
        offset: Documents to skip.
        """
        params = _sendable_fields(
            hardware=hardware,
            category=category,
            q=q,
            origin=origin,
            limit=limit,
            offset=offset,
        )
        body = self._call("GET", "/documents", params=params)
        return _rows(body, "documents")

    def knowledge(self, path: str | None = None) -> Json:
        """Show one place in the tree of knowledge.

        The levels are category, hardware, topic, document and section, each with counts.

        path: Like hardware/h100/memory. Empty: the root.
        """
        params = _sendable_fields(
            path=path,
        )
        body = self._call("GET", "/knowledge", params=params)
        return _mapping(body)

    def job(self, job_id: str) -> Job:
        """Show how far a job is.

        `state` is queued, running, ready, partial or failed. `error` says why a job failed.
        """
        body = self._call("GET", f"/jobs/{_segment(job_id)}")
        return _record(Job, body)

    def jobs(
        self,
        *,
        state: Sequence[str] | None = None,
        hardware: str | None = None,
        group: str | None = None,
        origin: str | None = None,
        ended_since: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Jobs:
        """List jobs, newest first, with counts.

        `counts` are of all jobs of the hardware, group and origin, independent of the other
        filters: one request shows the progress of an upload. `cursor` asks for the next page,
        and is null on the last.

        state: Only jobs in this state; repeat for several.
        hardware: Only jobs of documents about this hardware (id, name or alias).
        group: Only jobs of this group, which an upload names or is given.
        origin: Only jobs of documents of this origin.
        ended_since: Only jobs with this `finished_at` or a later one.
        limit: Jobs to return.
        cursor: `cursor` of the page before.
        """
        params = _sendable_fields(
            state=_listed(state),
            hardware=hardware,
            group=group,
            origin=origin,
            ended_since=ended_since,
            limit=limit,
            cursor=cursor,
        )
        body = self._call("GET", "/jobs", params=params)
        return _record(Jobs, body)

    # -- end of generated methods

    def search(
        self, query: str, *, hardware: str | None = None, k: int | None = None, **narrowed: Any
    ) -> tuple[Excerpt, ...]:
        """The ranked excerpts for a question with their texts; `narrowed` are further arguments of
        `retrieve`."""
        # Without `fields` an excerpt whose text is in the context comes without it.
        narrowed = {"fields": ("excerpts",), **narrowed}
        return self.retrieve(query=query, hardware=hardware, k=k, **narrowed).excerpts

    def upload(
        self,
        paths: str | Path | Iterable[str | Path],
        *,
        hardware: str | Sequence[str] | None = None,
        category: str | None = None,
        title: str | None = None,
        source_key: str | None = None,
        group: str | None = None,
        replace: bool = False,
    ) -> list[Upload]:
        """Send documents, one request each; follow one with `wait`, all with `jobs(group=...)`.

        A folder means its files, which are named by their paths in it; a ZIP archive is unpacked by
        the service. `group` is a name for files sent together; several files get a new one by
        default. Without `replace`, a file whose text is unrelated to the document of the same name
        replaces nothing: its job fails with `unrelated_version`.

        When one is refused the error's `details` name it and list, as `accepted`, the documents
        sent before it. Sending those again is harmless: they answer `unchanged`.
        """
        several = _named_files([paths] if isinstance(paths, str | Path) else paths)
        if len(several) != 1 and (title or source_key):
            hint = "Upload the files one by one to name them, or leave both out."
            raise KernloreClientError("invalid_request", "one name for several files", hint)
        if group is None and len(several) > 1:
            group = f"upl_{secrets.token_hex(8)}"
        names = {"category": category, "title": title, "source_key": source_key, "group": group}
        about = [Part("hardware", chip) for chip in _listed(hardware) or ()]
        about += [Part(name, value) for name, value in names.items() if value is not None]
        about += [Part("replace", "true")] if replace else []
        sent: list[Upload] = []
        for name, path in several:
            try:
                self._upload_one(path, name, about, sent)
            except KernloreClientError as error:
                error.details.update(path=str(path), accepted=[u.document_id for u in sent])
                raise
        return sent

    def evaluate(
        self,
        problem: str | Path,
        candidate: str | Path,
        *,
        hardware: str = "auto",
        language: str | None = None,
        timeout: float = 600.0,
    ) -> Json:
        """Evaluate the kernel in a file and wait for the result: `validity`, `correct`, `speedup`,
        `timings`, `verdict`, `message`. A wrong kernel is a result.

        `problem` is a problem file, or the name of a built-in problem. `language` is by default
        that of the file's suffix. The service runs the code. After `timeout` seconds, raises
        KernloreClientError with code "timeout".
        """
        kernel = Path(candidate)
        source = _text_of(kernel)
        bundle = {
            "files": {kernel.name: source},
            "main": kernel.name,
            "language": language or _language_of(kernel, source),
        }
        body = {"problem": _problem(problem), "candidate": bundle, "hardware": hardware}
        job = self._call("POST", "/evaluations", json=body)
        job = self._ended(f"/evaluations/{_segment(job['id'])}", ("ready", "failed"), timeout)
        if job["state"] == "failed":
            error = job["error"]
            raise KernloreClientError(error["code"], error["message"], error.get("hint", ""))
        return _mapping(job["result"])

    def optimize(
        self,
        problem: str | Path,
        *,
        hardware: str = "auto",
        timeout: float = 3600.0,
        **goal: Any,
    ) -> Json:
        """Search for a faster kernel and wait for the end: the run with its `state`, `ended` and
        `result`, and the `files` of the best candidate.

        `problem` is as in `evaluate`. `goal` are the fields of a run's goal, such as
        `candidates=20`, `minutes=5`, `language="cpp"` or `target=1.5`. After `timeout` seconds,
        raises KernloreClientError with code "timeout"; the run goes on.
        """
        body = {"problem": _problem(problem), "hardware": hardware, "goal": goal}
        run_id = _segment(self._call("POST", "/runs", json=body)["id"])
        run = self._ended(f"/runs/{run_id}", ("finished", "cancelled", "failed"), timeout)
        files: Json = {}
        if number := run.get("result", {}).get("node"):
            node = self._call("GET", f"/runs/{run_id}/candidates/{number}")
            files = node["proposal"]["bundle"]["files"]
        return {**run, "files": files}

    def _ended(self, path: str, states: Sequence[str], timeout: float) -> Json:
        """What a path answers once its state is one of `states`."""
        deadline = time.monotonic() + timeout
        pause = 0.2
        while (shown := self._call("GET", path))["state"] not in states:
            left = deadline - time.monotonic()
            if left <= 0:
                message = f"{path} is still {shown['state']} after {timeout:g} s"
                raise KernloreClientError(
                    "timeout", message, "It goes on: ask again, or wait longer."
                )
            time.sleep(min(pause, left))
            pause = min(pause * 1.5, 2.0)
        return _mapping(shown)

    def wait(self, job_id: str, timeout: float = 600.0) -> Job:
        """Wait until a job is ready, partial or failed, and return it. After `timeout` seconds,
        raises KernloreClientError with code "timeout"."""
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

    def _upload_one(self, path: Path, name: str, about: Sequence[Part], sent: list[Upload]) -> None:
        """Send one file, and add its document, or those of an archive, to `sent`."""
        try:
            file = path.open("rb")
        except OSError as error:
            message = f"cannot read {path}: {error.strerror}"
            hint = "Give the path of a file or folder that this process may read."
            raise KernloreClientError("invalid_request", message, hint) from error
        with file:
            body = self._call("POST", "/documents", files=[*about, Part("file", file, name)])
        if isinstance(body, list):  # from a service of an earlier version
            body = {"documents": body}
        answers = body.get("documents", [body])
        sent += [_record(Upload, answer) for answer in answers if "error" not in answer]
        for answer in answers:
            if refusal := answer.get("error"):
                message = f"{answer['name']}: {refusal['message']}"
                raise KernloreClientError(refusal["code"], message, refusal.get("hint", ""))

    def _call(self, method: str, path: str, **carried: Any) -> Any:
        status, body = self._backend.send(method, path, **carried)
        if status < 300:
            return body
        if isinstance(body, Mapping) and "code" in body and "message" in body:
            hint, details = body.get("hint", ""), body.get("details")
            raise KernloreClientError(body["code"], body["message"], hint, details, status)
        raise _unexpected(f"{method} {path} answered {status}", body, status)


_SUFFIXES = {".cpp": "cpp", ".cc": "cpp", ".cu": "cuda", ".hip": "hip", ".metal": "metal"}


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        hint = "Give the path of a text file that this process may read."
        message = f"cannot read {path}: {error}"
        raise KernloreClientError("invalid_request", message, hint) from error


def _language_of(path: Path, source: str) -> str:
    if path.suffix == ".py":
        return "triton" if "triton" in source else "torch"
    if path.suffix not in _SUFFIXES:
        message = f"the language of {path.name} is not known by its suffix"
        raise KernloreClientError("invalid_request", message, "Pass language=.")
    return _SUFFIXES[path.suffix]


def _problem(problem: str | Path) -> Any:
    """A problem of a request: a name, or the texts of a file and of the toml next to it."""
    path = Path(problem)
    if path.suffix != ".py":
        return str(problem)
    name = path.parent.resolve().name if path.name == "problem.py" else path.stem
    body = {"source": _text_of(path), "name": name}
    rules = path.with_suffix(".toml")
    return {**body, "toml": _text_of(rules)} if rules.is_file() else body


def _named_files(paths: Iterable[str | Path]) -> list[tuple[str, Path]]:
    """The files of paths and folders, each after the name that it is sent under."""
    named: dict[str, Path] = {}
    files: list[tuple[str, Path]] = []
    for given in map(Path, paths):
        inside = sorted(given.rglob("*")) if given.is_dir() else [given]
        for path in inside:
            below = path.relative_to(given) if given.is_dir() else Path(given.name)
            if given.is_dir() and (
                not path.is_file() or any(part.startswith(".") for part in below.parts)
            ):
                continue
            name = below.as_posix()
            if named.setdefault(name, path) != path:
                message = f"{named[name]} and {path} would both be sent as {name}"
                hint = "Give the folder above both, or upload each with its own source_key."
                raise KernloreClientError("invalid_request", message, hint)
            files.append((name, path))
    if not files:
        raise KernloreClientError("invalid_request", "no files to upload", "Check the paths.")
    return files


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


def _sendable_fields(**fields: Any) -> dict[str, Any]:
    """The given fields as JSON can carry them. None and a number that is not finite are left out,
    so that the service's default holds."""
    known = {name: value for name, value in fields.items() if value is not None}
    return {n: _sendable(v) for n, v in known.items() if not _is_infinite(v)}


def _sendable(value: Any) -> Any:
    """A value as JSON can carry it: NaN and infinity become text, and so do characters that UTF-8
    refuses, which logs decoded with `surrogateescape` hold."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, Mapping):
        return {str(name): _sendable(part) for name, part in value.items()}
    if isinstance(value, Sequence):
        return [_sendable(part) for part in value]
    number = float(value)
    return number if math.isfinite(number) else str(number)


def _is_infinite(value: Any) -> bool:
    number = isinstance(value, SupportsFloat) and not isinstance(value, int)
    return number and not math.isfinite(value)


def _listed(value: str | Sequence[str] | None) -> list[str] | None:
    return [value] if isinstance(value, str) else None if value is None else list(value)


def _rows(body: Any, key: str) -> list[Json]:
    """A list, bare or under its name."""
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
