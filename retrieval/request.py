"""A request to /retrieve, defined once: the fields, their help texts and limits, the checks.

HTTP parameters, the HTTP body and the command line derive from this definition or are held against
it by a test. Plain data: it knows no web framework and no model library, and nothing about how an
answer is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from kb.errors import InvalidRequest, nearest
from kb.moves_vocabulary import ROLES
from kb.predicates import Value
from kb.problem_terms import canonical_dtype, canonical_op, problem_terms
from kb.scope import ALL_ACCESS, CATEGORIES, AccessScope

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
SKILL_STATES = ("candidate", "active", "suspect", "retired", "quarantined")

# text and names: str and tuple of str; count: int; metrics: name -> a profiler's number or text;
# quantities: name -> number or text; output: what a program printed, as text or as the JSON it is.
Kind = Literal["text", "names", "count", "metrics", "quantities", "output"]


@dataclass(frozen=True)
class FieldSpec:
    """One field of a request, for whoever builds a door.

    `limit` is the most characters of a text, the most entries of names, metrics and quantities,
    or the largest count; None where the service's settings limit it. `choices` lists the accepted
    words where there are finitely many.
    """

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
    the task `write` with a hardware. Everything else narrows the answer or is for the log.
    `access_scope` is who asks; a door sets it, no caller. What only the built-in search knows has
    no door either: `operators` of the reference by torch's names, all `dtypes` of the problem, and
    what the processor at hand `lacks` of its family's extensions (kb/hardware/extensions.toml).
    """

    signal: str | None = _field("text", "Id of a run-time signal; GET /signals lists them.")
    log: str | None = _field("text", "What the compiler or the run printed, unchanged.", limit=None)
    metrics: Mapping[str, float | str] | None = _field(
        "metrics", "A profiler's own metric names and values.", limit=MAX_METRICS
    )
    query: str | None = _field("text", "A question in words.", limit=MAX_QUERY)
    hardware: str | None = _field("text", "An id, name or alias; GET /hardware lists them.")
    op: str | None = _field("text", "The operator or its family, like matmul.")
    language: str | None = _field("text", "What the kernel is written in, like triton or cuda.")
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
        "Number of excerpts, and most sections of a category in `context`.",
        default=20,
        limit=MAX_K,
    )
    max_tokens: int = _field("count", "Most tokens of `context`.", default=6000, limit=MAX_TOKENS)
    categories: tuple[str, ...] | None = _names(
        "Only passages of these categories: constraint, guidance, hardware.",
        default=None,
        choices=lambda: CATEGORIES,
    )
    skill_states: tuple[str, ...] = _names(
        "Skills in these states. Default: only active skills.", choices=lambda: SKILL_STATES
    )
    run_id: str | None = _field(
        "text", "Id of the run that asks. What was shown for its failures in vain is left out."
    )
    node_id: str | None = _field("text", "Id of the node of that run; it is logged.")
    access_scope: AccessScope = ALL_ACCESS
    task: str | None = _field(
        "text",
        "What the context is for: write a first kernel, repair one that failed, speed_up one that"
        " is right, or ask. Left out, it follows from what is given.",
        choices=lambda: TASKS,
    )
    draft: str | None = _field(
        "text",
        "Source of the kernel in hand; its names are held against the chip's own.",
        limit=None,
    )
    exclude: tuple[str, ...] = _field(
        "names",
        "Ids of excerpts that were shown in vain and are not wanted again.",
        default=(),
        limit=MAX_EXCLUDED,
    )
    signals: tuple[str, ...] = _names("Further signals after `signal`, the leading one first.")
    profile: str | None = _field(
        "output",
        "What a profiler printed, unchanged, as text or JSON; its metrics are added to `metrics`,"
        " which win.",
        limit=None,
    )
    roles: tuple[str, ...] = _names(
        "Roles of parameters that the caller can change, like vector or tile_m. Their moves are"
        " added to the best moves of any role.",
        choices=lambda: tuple(sorted(ROLES)),
    )
    operators: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()

    @property
    def given_signals(self) -> tuple[str, ...]:
        """`signal` and `signals`, each once."""
        return tuple(dict.fromkeys(filter(None, (self.signal, *self.signals))))

    @property
    def in_words(self) -> bool:
        """Whether the caller has given words to look for, beyond the names of signals, metrics and
        the operator.
        """
        return bool(self.query or self.log or self.draft)

    @property
    def problem_values(self) -> dict[str, Value | None]:
        """What predicates read as `problem.<name>`, in canonical words."""
        return {
            **(self.problem or {}),
            "op": canonical_op(self.op) if self.op else None,
            "language": self.language,
            "dtype": canonical_dtype(self.dtype) if self.dtype else None,
        }


def request_fields() -> Iterator[FieldSpec]:
    """Every field that a caller may give, in the order of the definition."""
    for part in fields(RetrieveRequest):
        if part.metadata:
            yield FieldSpec(name=part.name, **part.metadata)


def help_of(name: str) -> str:
    """The help text of a field. Raises KeyError for an unknown one."""
    return {spec.name: spec.help for spec in request_fields()}[name]


def check_request(request: RetrieveRequest) -> None:
    """Raise InvalidRequest for a request without a subject, a count out of range, or a word that is
    not one of a field's choices.
    """
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


_WORD_OF = {
    "categories": "category",
    "skill_states": "skill state",
    "roles": "role",
    "problem": "quantity of a problem",
}


def _check_words(name: str, words: Any, known: tuple[str, ...]) -> None:
    for word in words:
        if word not in known:
            near = nearest(word, known)
            raise InvalidRequest(
                f"unknown {_WORD_OF.get(name, name)} {word!r}",
                hint=f"Use one of {', '.join(known)}"
                + (f"; did you mean {near[0]}?" if near else "."),
            )
