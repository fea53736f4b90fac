"""A context as a prompt, within a budget: excerpts go first, then earlier kernels, then their
sources, then the log.

Facts, moves and the source to change always stay: without them there is nothing to act on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kb.prompt_tokens import count_tokens
from optimizer.search.knowledge import Excerpt
from optimizer.search.records import Node
from optimizer.search.synthesizers.base import Context
from optimizer.search.synthesizers.llm import results, sections
from optimizer.search.synthesizers.llm.sections import ids, known
from optimizer.search.synthesizers.llm.templates import (
    Fence,
    default_main,
    own_entry,
    rendered,
    wanted,
)

LOG_CHARS = 8_000
LEAST_LOG_CHARS = 500
TOOLS_NOTE = " You may call the tools first; the answer itself is the object and the files."
FIRST = "Answer with the JSON object and the files: one complete kernel in place of the reference."
NEXT = (
    "Answer with the JSON object and the files: one complete candidate, the kernel above changed."
)


@dataclass(frozen=True)
class Prompt:
    """A rendered prompt. `shown` are the ids that a model may say it used.

    `tokens` is counted with one model's tokenizer (kb/prompt_tokens.py); those of newer models give
    fewer. `left_out` says in words what did not fit.
    """

    system: str
    user: str
    shown: frozenset[str]
    tokens: int
    left_out: str


@dataclass(frozen=True)
class _Variable:
    """The parts of a prompt that are given up bit by bit when it is too long."""

    excerpts: tuple[Excerpt, ...]
    seen: tuple[Node, ...]
    sources: tuple[Node, ...]
    log_chars: int

    def less(self) -> _Variable | None:
        if self.excerpts:
            return replace(self, excerpts=self.excerpts[:-1])
        if self.seen:
            return replace(self, seen=self.seen[:-1])
        if self.sources:
            return replace(self, sources=self.sources[:-1])
        if self.log_chars > LEAST_LOG_CHARS:
            return replace(self, log_chars=max(LEAST_LOG_CHARS, self.log_chars // 2))
        return None


def compose(context: Context, fence: Fence, *, budget: int, tools: bool) -> Prompt:
    """The prompt for a context.

    `budget` bounds the tokens of moves, skills, earlier kernels and log together; where moves and
    skills alone take more, they stay and the prompt is longer. What the knowledge base packed has
    its own bound; a budget of 0 leaves it out. `tools` mentions that tools may be called.
    """
    packed = context.knowledge.target or context.knowledge.situation
    whole = _Variable(
        context.knowledge.excerpts if context.with_knowledge and not packed else (),
        tuple(node for node in context.seen if node.proposal is not None),
        results.worth_showing(context),
        LOG_CHARS,
    )
    if budget <= 0:  # the model's window is smaller than what was packed
        context = replace(context, knowledge=replace(context.knowledge, target="", situation=""))
    kept: _Variable = whole
    while count_tokens(_spent(context, kept, fence)) > budget:
        fewer = kept.less()
        if fewer is None:
            break
        kept = fewer
    system = _system(context, fence)
    user = _user(context, kept, fence, tools)
    shown = ids(context, kept.excerpts)
    return Prompt(system, user, shown, count_tokens(system + user), _left_out(whole, kept))


def _spent(context: Context, kept: _Variable, fence: Fence) -> str:
    log = context.parent.evaluation.log if context.parent.evaluation is not None else ""
    # What the knowledge base packed has a budget of its own.
    unpacked = replace(context, knowledge=replace(context.knowledge, situation=""))
    return "".join(
        [
            known(unpacked, kept.excerpts, fence),
            _memory(context, kept, fence),
            log[: kept.log_chars] if not context.parent.correct else "",
        ]
    )


def _system(context: Context, fence: Fence) -> str:
    language = wanted(context)
    main = default_main(language, context)
    values = {"language": language, "main": main, "entry": own_entry(language, main, context)}
    return rendered("system.md", {**values, "boundary": fence.boundary, "end": fence.end})


def _user(context: Context, kept: _Variable, fence: Fence, tools: bool) -> str:
    return rendered(
        "user.md",
        {
            "problem": sections.problem(context.problem, fence),
            "policy": sections.policy(context.problem, fence, wanted(context)),
            "judging": sections.judging(context),
            "hardware": sections.hardware(context, fence),
            "interface": sections.interface(context),
            "parent": results.parent(context.parent, fence),
            "verdict": results.verdict(context.parent, fence, kept.log_chars, context.baseline),
            "memory": _memory(context, kept, fence),
            "target": sections.target(context, fence),
            "knowledge": known(context, kept.excerpts, fence),
            "task": FIRST if context.parent.proposal is None else NEXT,
            "tools": TOOLS_NOTE if tools else "",
        },
    )


def _memory(context: Context, kept: _Variable, fence: Fence) -> str:
    parts = [
        results.under_way(context, fence),
        results.lessons(context, fence),
        results.seen(kept.seen, fence, context.baseline),
        results.best(context, fence),
        results.sources(
            kept.sources, fence, min(kept.log_chars, results.MAX_MESSAGE), context.baseline
        ),
    ]
    text = "\n".join(part for part in parts if part)
    return f"# Earlier kernels (one of them again, unchanged, is refused)\n{text}" if text else ""


def _left_out(whole: _Variable, kept: _Variable) -> str:
    excerpts = len(whole.excerpts) - len(kept.excerpts)
    seen = len(whole.seen) - len(kept.seen)
    sources = len(whole.sources) - len(kept.sources)
    log = "" if kept.log_chars == whole.log_chars else f", log cut to {kept.log_chars} characters"
    more = f", {sources} of their sources" if sources else ""
    return f"{excerpts} excerpts, {seen} earlier kernels{more}{log}"
