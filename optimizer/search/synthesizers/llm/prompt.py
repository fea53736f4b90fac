"""The prompt for a context, or a briefing for an external proposer, within a token budget.

Over budget, excerpts are left out first, then earlier kernels, their sources, and parts of the log.
Facts, moves and the source to change always stay.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from kb.prompt_tokens import count_tokens
from optimizer.search.floor import floor_of
from optimizer.search.knowledge import ShownExcerpt
from optimizer.search.records import Node
from optimizer.search.synthesizers.base import ProposalContext
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
# If correct ones were written already, which may be changed instead.
ANOTHER = f"{FIRST[:-1]}, faster than what was written so far."
NEXT = (
    "Answer with the JSON object and the files: one complete candidate, the kernel above changed."
)


@dataclass(frozen=True)
class ModelPrompt:
    """A rendered prompt. `shown` are the ids that a model may claim to have used, `alternatives`
    numbers the correct kernels that it may start from instead of the parent.

    `tokens` are those of one tokenizer (kb/prompt_tokens.py); newer models count fewer. `left_out`
    lists in words the parts that did not fit.
    """

    system: str
    user: str
    shown: frozenset[str]
    tokens: int
    left_out: str
    alternatives: tuple[int, ...] = ()


@dataclass(frozen=True)
class Briefing:
    """A context in words for an external proposer.

    `task` is equal in a run: problem, policy, judging, hardware, interface, and knowledge about the
    chip. `step` is the kernel to start from with its verdict, earlier kernels, and knowledge about
    them. `shown` are the ids of the knowledge.
    """

    task: str
    step: str
    shown: tuple[str, ...]


@dataclass(frozen=True)
class _Variable:
    """The parts of a prompt that may be left out. `base` is the correct kernel to continue from if
    the parent is the reference: its source stays, like that of a parent."""

    excerpts: tuple[ShownExcerpt, ...]
    seen: tuple[Node, ...]
    sources: tuple[Node, ...]
    log_chars: int
    base: Node | None = None

    def less(self) -> _Variable | None:
        if self.excerpts:
            return replace(self, excerpts=self.excerpts[:-1])
        if self.seen:
            return replace(self, seen=self.seen[:-1])
        if self.sources[-1:] not in ((), (self.base,)):
            return replace(self, sources=self.sources[:-1])
        if self.log_chars > LEAST_LOG_CHARS:
            return replace(self, log_chars=max(LEAST_LOG_CHARS, self.log_chars // 2))
        return None


def compose(context: ProposalContext, fence: Fence, *, budget: int, tools: bool) -> ModelPrompt:
    """The prompt for a context.

    `budget` bounds the tokens of moves, skills, earlier kernels and log together; moves and skills
    stay even beyond it. The composed knowledge has its own bound; a budget of 0 leaves it out.
    `tools` mentions that tools may be called.
    """
    context, whole, fitting = _fitted(context, fence, budget)
    system = _system(context, fence)
    user = _user(context, fitting, fence, tools)
    shown = ids(context, fitting.excerpts)
    tokens = count_tokens(system + user)
    return ModelPrompt(
        system, user, shown, tokens, _left_out(whole, fitting), _further_kernels(fitting)
    )


def brief(context: ProposalContext, fence: Fence, *, budget: int) -> Briefing:
    """The content of a prompt without the form of the answer. `budget` is as in `compose`."""
    context, _, fitting = _fitted(context, fence, budget)
    values = _values(context, fitting, fence)
    note = rendered("quoted.md", {"boundary": fence.boundary, "end": fence.end})
    task = [note, *(f"# {title}\n{values[name]}" for title, name in _TASK), values["target"]]
    step = [*(f"# {title}\n{values[name]}" for title, name in _STEP)]
    step += [values["memory"], values["knowledge"]]
    return Briefing(_joined(task), _joined(step), tuple(sorted(ids(context, fitting.excerpts))))


_TASK = (
    ("Problem", "problem"),
    ("What is allowed", "policy"),
    ("How it is judged", "judging"),
    ("Hardware", "hardware"),
    ("Interface", "interface"),
)
_STEP = (
    ("The kernel to start from", "parent"),
    ("What was measured about it", "verdict"),
)


def _joined(parts: Iterable[str]) -> str:
    return "\n\n".join(part.strip() for part in parts if part.strip())


def _fitted(
    context: ProposalContext, fence: Fence, budget: int
) -> tuple[ProposalContext, _Variable, _Variable]:
    """The context within the budget, all its variable parts, and those that fit."""
    packed = context.knowledge.target or context.knowledge.situation
    sources = results.worth_showing(context)
    first = context.parent.proposal is None and sources and sources[0].correct
    whole = _Variable(
        context.knowledge.excerpts if context.with_knowledge and not packed else (),
        tuple(node for node in context.seen if node.proposal is not None),
        sources,
        LOG_CHARS,
        base=sources[0] if first else None,
    )
    if budget <= 0:  # the model's window is smaller than the composed knowledge
        context = replace(context, knowledge=replace(context.knowledge, target="", situation=""))
    fitting: _Variable = whole
    while count_tokens(_spent(context, fitting, fence)) > budget:
        fewer = fitting.less()
        if fewer is None:
            break
        fitting = fewer
    return context, whole, fitting


def _spent(context: ProposalContext, fitting: _Variable, fence: Fence) -> str:
    log = context.parent.evaluation.log if context.parent.evaluation is not None else ""
    # The composed knowledge has its own budget, and the kernel to continue from has none.
    unpacked = replace(context, knowledge=replace(context.knowledge, situation=""))
    fitting = replace(
        fitting, sources=tuple(node for node in fitting.sources if node is not fitting.base)
    )
    return "".join(
        [
            known(unpacked, fitting.excerpts, fence),
            _memory(context, fitting, fence),
            log[: fitting.log_chars] if not context.parent.correct else "",
        ]
    )


def _system(context: ProposalContext, fence: Fence) -> str:
    language = wanted(context)
    main = default_main(language, context)
    values = {"language": language, "main": main, "entry": own_entry(language, main, context)}
    return rendered("system.md", {**values, "boundary": fence.boundary, "end": fence.end})


def _user(context: ProposalContext, fitting: _Variable, fence: Fence, tools: bool) -> str:
    task = NEXT
    if context.parent.proposal is None:
        task = ANOTHER if _further_kernels(fitting) else FIRST
    values = {"task": task, "tools": TOOLS_NOTE if tools else ""}
    return rendered("user.md", {**_values(context, fitting, fence), **values})


def _values(context: ProposalContext, fitting: _Variable, fence: Fence) -> dict[str, str]:
    """The parts of a prompt by the names of their placeholders."""
    return {
        "problem": sections.problem(context, fence),
        "policy": sections.policy(context.problem, fence, wanted(context)),
        "judging": sections.judging(context),
        "hardware": sections.hardware(context, fence),
        "interface": sections.interface(context),
        "parent": results.parent(context, fence, fitting.sources),
        "verdict": _measured(context, fitting, fence),
        "memory": _memory(context, fitting, fence),
        "target": sections.target(context, fence),
        "knowledge": known(context, fitting.excerpts, fence),
    }


def _measured(context: ProposalContext, fitting: _Variable, fence: Fence) -> str:
    """Verdict of the parent; with those of correct kernels if the parent is the reference."""
    chars, baseline = fitting.log_chars, context.baseline
    own = results.verdict(context.parent, fence, chars, baseline)
    floor = floor_of(context.tried)
    if floor is not None:
        own = f"{own}\n{floor.sentence()}"
    right = [node for node in fitting.sources if node.correct]
    if context.parent.proposal is not None or not right:
        return own
    others = (f"Node {n.number}:\n{results.verdict(n, fence, chars, baseline)}" for n in right)
    return "\n".join([f"The reference:\n{own}", *others])


def _memory(context: ProposalContext, fitting: _Variable, fence: Fence) -> str:
    # Earlier kernels that the budget leaves out have a line among the lessons.
    remembered = replace(context, seen=fitting.seen)
    parts = [
        results.under_way(context, fence),
        results.lessons(remembered, fence),
        results.seen(fitting.seen, fence, context.baseline),
        results.best(remembered, fence),
        results.sources(
            fitting.sources, fence, min(fitting.log_chars, results.MAX_MESSAGE), context.baseline
        ),
    ]
    text = "\n".join(part for part in parts if part)
    return f"# Earlier kernels (one of them again, unchanged, is refused)\n{text}" if text else ""


def _further_kernels(fitting: _Variable) -> tuple[int, ...]:
    """The numbers of correct kernels whose source is shown, except the parent's."""
    return tuple(node.number for node in fitting.sources if node.correct)


def _left_out(whole: _Variable, fitting: _Variable) -> str:
    excerpts = len(whole.excerpts) - len(fitting.excerpts)
    seen = len(whole.seen) - len(fitting.seen)
    sources = len(whole.sources) - len(fitting.sources)
    log = (
        ""
        if fitting.log_chars == whole.log_chars
        else f", log cut to {fitting.log_chars} characters"
    )
    more = f", {sources} of their sources" if sources else ""
    return f"{excerpts} excerpts, {seen} earlier kernels{more}{log}"
