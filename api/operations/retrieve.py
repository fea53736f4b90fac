"""Questions to the knowledge base, and the outcomes of its answers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import IsFinite, MaxLen

from api.operations import Media, operation
from kb.answers import Answer
from kb.errors import InvalidRequest, PayloadTooLarge
from kb.plain import Doc
from retrieval.diagnose.signals import load_signals
from retrieval.request_body import RetrieveBody, RetrieveQuery, body_of_query, read_body, request_of
from retrieval.stages import watching

if TYPE_CHECKING:
    from api.services import Services


# -- bodies of `POST /retrieve` for the description of the interface

_LOG = (
    "triton.runtime.errors.OutOfResources: out of resource: shared memory, "
    "Required: 294912, Hardware limit: 232448. Reducing block sizes or `num_stages` may help."
)
_METRICS = {
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": 91.4,
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": 22.8,
    "launch__registers_per_thread": 64,
}


def retrieve_examples() -> dict[str, Any]:
    """An example for every signal, then one for every other way to ask."""
    examples: dict[str, Any] = {
        signal.id: {
            "summary": f"signal, {signal.group}: {signal.title}",
            "value": {"signal": signal.id, "hardware": "h100"},
        }
        for signal in load_signals()
    }
    question = "How do I overlap global loads with matrix instructions?"
    ways = {
        "raw log": {"log": _LOG, "hardware": "h100", "language": "triton"},
        "profiler metrics": {"metrics": _METRICS, "hardware": "h100", "op": "softmax"},
        "question": {"query": question, "hardware": "mi300x", "categories": ["hardware"]},
        "combination": {
            "signal": "memory_bound",
            "metrics": _METRICS,
            "query": question,
            "hardware": "h200",
            "op": "matmul",
            "language": "triton",
            "dtype": "bf16",
            "k": 10,
            "max_tokens": 3000,
        },
        "several signals, and roles that can be changed": {
            "signals": ["register_spill", "memory_bound"],
            "roles": ["tile_m", "tile_n", "warps"],
            "hardware": "h100",
        },
        "a first kernel": {
            "task": "write",
            "hardware": "h100",
            "op": "softmax",
            "language": "cuda",
            "max_tokens": 24000,
        },
    }
    return examples | {name: {"summary": name, "value": value} for name, value in ways.items()}


declared = partial(operation, tag="retrieve")


@declared("GET /retrieve", "Ask by signal or words", computes=True)
def retrieve_by_query(services: Services, query: RetrieveQuery) -> Answer:
    """Cited passages, moves and skills about a signal or a question. Equal requests give the same
    `context` byte for byte, as long as nothing was ingested."""
    return _answer(services, read_body(body_of_query(query)))


@declared(
    "POST /retrieve",
    "Ask with a log, metrics, a question or a signal",
    role="reader",
    reads=True,
    computes=True,
    media=(
        Media(
            ("text/plain",),
            "A raw log; the other fields are query parameters.",
            "ptxas error : Entry function uses too much shared data (0x10400 bytes, 0xc000 max)",
            read=lambda log, query: body_of_query(query, log=log),
            query=RetrieveQuery,
            what="log",
            limit="max_log_bytes",
        ),
    ),
    examples=retrieve_examples,
)
def retrieve(services: Services, request: RetrieveBody) -> Answer:
    """Takes JSON, or a raw log as text/plain with the other fields as query parameters."""
    return _answer(services, request)


def _answer(services: Services, body: RetrieveBody) -> Answer:
    settings = services.settings
    most = settings.default_max_tokens * (2 if vars(body).get("task") == "write" else 1)
    defaults = {"k": settings.default_k, "max_tokens": most}
    request = request_of(body, defaults, services.access)
    if request.log is not None and len(request.log.encode()) > settings.max_log_bytes:
        raise PayloadTooLarge(
            f"the log is over the limit of {settings.max_log_bytes:,} bytes",
            hint="Send the part around the first error, or raise KERNLORE_MAX_LOG_BYTES.",
            details={"limit": settings.max_log_bytes},
        )
    if not 1 <= request.k <= settings.max_k:
        raise InvalidRequest(f"k is {request.k}", hint=f"Use 1 to {settings.max_k}.")
    with watching(services.metrics.stage):
        answer = services.retriever.retrieve(request)
    services.metrics.retrieval(answer)
    by_default = not request.fields and vars(body).get("k") is None
    return answer.short() if by_default else answer


@dataclass(frozen=True)
class StoredOutcome:
    """An outcome was stored under its retrieval."""

    retrieval_id: str
    outcome_id: str


@declared(
    "POST /retrievals/{retrieval_id}/outcome",
    "Report the outcome of an answer",
    role="reader",
    status=201,
    body=("OutcomeBody", "The use of an answer, and the resulting kernel."),
    example={"used": ["any-split-k-skinny-matmul"], "correct": True, "speedup": 1.4},
)
def report_outcome(
    services: Services,
    retrieval_id: str,
    used: Annotated[
        list[Annotated[str, MaxLen(200)]],
        Doc("Ids of the excerpts, moves and skills acted on."),
        MaxLen(1000),
    ] = [],  # noqa: B006  never changed
    correct: Annotated[bool | None, Doc("Whether the kernel's results were correct.")] = None,
    speedup: Annotated[
        IsFinite[float] | None, Doc("Speed-up of the kernel; 2.0 means twice as fast.")
    ] = None,
    baseline_speedup: Annotated[
        IsFinite[float] | None,
        Doc(
            "Speed-up of the kernel before the change, where both are over the same reference;"
            " otherwise left out."
        ),
    ] = None,
    note: Annotated[str, MaxLen(4000)] | None = None,
) -> StoredOutcome:
    """Reported outcomes decide how skills are ranked later; `used` lists the ids of the answer that
    were acted on. Report once for each kernel that the answer led to: every report counts as one
    outcome, also a second one for the same answer."""
    outcome = services.retriever.journal.report(
        retrieval_id,
        used=used,
        correct=correct,
        speedup=speedup,
        baseline_speedup=baseline_speedup,
        note=note,
        access_scope=services.access,
    )
    services.report_skill_use(used)
    return StoredOutcome(retrieval_id, outcome)
