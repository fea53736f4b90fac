"""The request of /retrieve, defined once: fields, help, limits and checks.

The HTTP parameters, the HTTP body and the command line derive from this definition or are tested
against it. Plain data: does not know the web framework, pydantic or how an answer is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from kb.answers import ANSWER_FIELDS
from kb.errors import InvalidRequest, unknown_word
from kb.predicates import Value
from kb.problem_terms import ROLES, canonical_dtype, canonical_op, problem_terms
from kb.scope import ALL_ACCESS, CATEGORIES, AccessScope
from kb.validity import checked_versions
from retrieval.profiles.lines import LineRow
from retrieval.profiles.profile import Advised

MAX_NAME = 200  # characters of an id or name
MAX_NAMES = 50  # in one list
MAX_QUERY = 20_000  # characters
MAX_METRICS = 5_000
MAX_QUANTITIES = 50
MAX_K = 200
MAX_TOKENS = 100_000
MAX_EXCLUDED = 1_000
Task = Literal["write", "repair", "speed_up", "ask"]
TASKS: tuple[Task, ...] = get_args(Task)
READERS = ("strong", "small")
SKILL_STATES = ("candidate", "active", "suspect", "retired", "quarantined")

# Value types. text, names: str, tuple of str; count: int; metrics: name -> a profiler's number or
# text; quantities: name -> number or text; output: a program's output, as text or JSON; versions:
# tool -> version.
Kind = Literal["text", "names", "count", "metrics", "quantities", "output", "versions"]


@dataclass(frozen=True)
class FieldSpec:
    """One field of a request, from which interfaces are built. `limit` is the largest number of
    characters of a text, of entries of names, metrics and quantities, or the largest count; None if
    the service's settings limit it. `choices` returns the accepted words of a closed list."""

    name: str
    kind: Kind
    help: str
    limit: int | None
    choices: Callable[[], tuple[str, ...]] | None


def _field(
    kind: Kind,
    help: str,
    *,
    default: Any = None,
    limit: int | None = MAX_NAME,
    choices: Callable[[], tuple[str, ...]] | None = None,
) -> Any:
    described = {"kind": kind, "help": help, "limit": limit, "choices": choices}
    return field(default=default, metadata=described)


def _names(help: str, *, default: Any = (), choices: Any = None) -> Any:
    return _field("names", help, default=default, limit=MAX_NAMES, choices=choices)


@dataclass(frozen=True)
class RetrieveRequest:
    """Any combination of signals, log, metrics, profile, query and draft; at least one of them, or
    the task `write` with a hardware. All other fields narrow the answer or are logged.
    `access_scope` is set by the interface, not by the caller. Only the built-in search sets
    `operators` (of the reference, by torch's names), `dtypes` (all of the problem), `lacks`
    (extensions of the processor's family that it does not have, see kb/hardware/extensions.toml),
    `about` (name and summary of the problem, which tell its kind of operator), `draw` (the text
    that skills are withheld by in place of `run_id`, equal in runs that repeat each other) and
    `facts_apart` (the reader gets the facts of the device beside `context`).
    `lines` are rows of a profile by line, whose samples are in `line_unit`; `notes` are sentences
    about a profile, `by_words` its metrics that a text names in words, and `advised` are signals
    that the profiler's own rules name."""

    signal: str | None = _field("text", "Id of a run-time signal; GET /signals lists them.")
    log: str | None = _field("text", "Output of the compiler or the run, unchanged.", limit=None)
    metrics: Mapping[str, float | str] | None = _field(
        "metrics", "A profiler's own metric names and values.", limit=MAX_METRICS
    )
    query: str | None = _field("text", "A question in words.", limit=MAX_QUERY)
    hardware: str | None = _field("text", "An id, name or alias; GET /hardware lists them.")
    op: str | None = _field("text", "The operator or its family, like matmul.")
    language: str | None = _field("text", "Language of the kernel, like triton or cuda.")
    dtype: str | None = _field("text", "The main element type, like bf16.")
    problem: Mapping[str, float | str] | None = _field(
        "quantities",
        "Sizes of the problem, like product_rows or flops. Skills and moves that do not fit them"
        " are left out.",
        limit=MAX_QUANTITIES,
        choices=lambda: tuple(problem_terms().quantities),
    )
    k: int = _field(
        "count",
        "Number of excerpts, and most sections of a category in `context`. Default: 8.",
        default=20,
        limit=MAX_K,
    )
    max_tokens: int = _field(
        "count",
        "Most tokens of `context`. Default: 3,000, and twice as many for the task write.",
        default=6000,
        limit=MAX_TOKENS,
    )
    categories: tuple[str, ...] | None = _names(
        "Only passages of these categories: constraint, guidance, hardware.",
        default=None,
        choices=lambda: CATEGORIES,
    )
    skill_states: tuple[str, ...] = _names(
        "Skills in these states. Default: only active skills.", choices=lambda: SKILL_STATES
    )
    run_id: str | None = _field(
        "text", "Id of the calling run. Excerpts that did not help with its failures are left out."
    )
    node_id: str | None = _field("text", "Id of the node of that run; it is logged.")
    access_scope: AccessScope = ALL_ACCESS
    task: str | None = _field(
        "text",
        "Purpose of the context: write a first kernel, repair one that failed, speed_up one that"
        " is correct, or ask. Default: derived from the other fields.",
        choices=lambda: TASKS,
    )
    draft: str | None = _field(
        "text",
        "Source of the current kernel; its names are compared with the chip's.",
        limit=None,
    )
    exclude: tuple[str, ...] = _field(
        "names",
        "Ids of excerpts that did not help and are left out.",
        default=(),
        limit=MAX_EXCLUDED,
    )
    signals: tuple[str, ...] = _names("Further signals after `signal`, the leading one first.")
    profile: str | None = _field(
        "output",
        "Output of a profiler, unchanged, as text or JSON; its metrics are added to `metrics`,"
        " which take precedence.",
        limit=None,
    )
    roles: tuple[str, ...] = _names(
        "Roles of parameters that the caller can change, like vector or tile_m. Their moves are"
        " added to the best moves of any role.",
        choices=lambda: tuple(sorted(ROLES)),
    )
    reader: str | None = _field(
        "text",
        "Class of the model that reads `context`. For a strong one, which writes right kernels for"
        " common chips by itself, it has at most 2,000 tokens of what surprises, unless more is"
        " known to help (`uplift`). Default: the full context.",
        choices=lambda: READERS,
    )
    versions: Mapping[str, str] | None = _field(
        "versions",
        "Versions of the caller's tools, like triton 3.6 or cuda 13.0; or a text that has them:"
        " pip freeze, a lock file, banners of compilers. Those that `log` prints are read too."
        " Entries checked with them are preferred, entries checked with other versions are marked,"
        " and entries that fail with them are left out.",
        limit=MAX_NAMES,
    )
    fields: tuple[str, ...] = _names(
        "Parts of the answer to fill; the others are empty. `citations` are excerpts without their"
        " texts. Default: all where `k` is given; otherwise a short answer: without `parts`,"
        " `uplift`, texts of excerpts that `context` quotes, and signals that were ruled out or not"
        " decided.",
        choices=lambda: ANSWER_FIELDS,
    )
    operators: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    about: str = ""
    draw: str = ""
    facts_apart: bool = False
    lines: tuple[LineRow, ...] = ()
    line_unit: str = "samples"
    notes: tuple[str, ...] = ()
    by_words: tuple[str, ...] = ()
    advised: tuple[Advised, ...] = ()

    @property
    def given_signals(self) -> tuple[str, ...]:
        """`signal` and `signals`, each once."""
        return tuple(dict.fromkeys(filter(None, (self.signal, *self.signals))))

    @property
    def in_words(self) -> bool:
        """Whether the request contains words to search for other than names of signals, metrics and
        the operator."""
        return bool(self.query or self.log or self.draft)

    @property
    def problem_values(self) -> dict[str, Value | None]:
        """The values of `problem.<name>` in predicates, in canonical terms."""
        return {
            **(self.problem or {}),
            "op": canonical_op(self.op) if self.op else None,
            "language": self.language,
            "dtype": canonical_dtype(self.dtype) if self.dtype else None,
        }


def request_fields() -> Iterator[FieldSpec]:
    """The fields that a caller may give, in the order of their definition."""
    for part in fields(RetrieveRequest):
        if part.metadata:
            yield FieldSpec(name=part.name, **part.metadata)


def help_of(name: str) -> str:
    """The help text of a field. Raises KeyError for an unknown one."""
    return {spec.name: spec.help for spec in request_fields()}[name]


def check_request(request: RetrieveRequest) -> None:
    """Raise InvalidRequest for a request without a subject, a count out of range, or a word that is
    not among a field's choices."""
    given = (
        *(request.given_signals, request.log, request.metrics, request.profile),
        *(request.query, request.draft),
    )
    to_write = request.task == "write" and request.hardware
    if not any(given) and not to_write:
        raise InvalidRequest(
            "nothing to retrieve for",
            hint="Give a signal, a log, metrics, a profile, a question (`query`, in a URL `q`)"
            " or a draft, in any combination; or task=write with a hardware.",
        )
    for spec in request_fields():
        value = getattr(request, spec.name)
        if spec.kind == "count" and not 1 <= value <= (spec.limit or value):
            raise InvalidRequest(f"{spec.name} is {value}", hint=f"Use 1 to {spec.limit}.")
        if spec.choices is not None and value:
            words = (value,) if isinstance(value, str) else value
            _check_words(spec.name, words, spec.choices())
    checked_versions(request.versions or {})


_WORD_OF = {
    "categories": "category",
    "skill_states": "skill state",
    "roles": "role",
    "problem": "quantity of a problem",
}


def _check_words(name: str, words: Any, known: tuple[str, ...]) -> None:
    for word in words:
        if word not in known:
            raise unknown_word(_WORD_OF.get(name, name), word, known)
