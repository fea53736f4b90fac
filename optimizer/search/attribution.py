"""Attribution: which items of the shown knowledge made a candidate, by proposing again without one.

An item is attributed if the proposer makes another candidate without it. Of two items that ask for
the same change neither is attributed: without the first, the second still makes it. Only
deterministic proposers can propose again. The items that a model claims to have used are reported
as claimed, if a word of the item occurs in a line that the candidate adds.

The parent's request is sent to the knowledge base again. Nothing is attributed if the answer has
other ids than the node records, or if the proposer makes another bundle with all of it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from optimizer.search.knowledge import KnowledgeSource, ShownKnowledge
from optimizer.search.propose import (
    SearchTask,
    compose_context,
    request_for,
    roles_of,
    tree_before,
)
from optimizer.search.records import Node
from optimizer.search.synthesizers.base import ProposalContext, ProposalFailed, Synthesizer
from optimizer.search.tree import Tree

CHANGED = "the knowledge has changed since"
NOT_MADE_AGAIN = (
    "the knowledge or the recipes have changed since: shown all of it again, {} differs"
)
ASKED_A_MODEL = "a model's proposal cannot be made again without asking it"
ABSENT = "its proposer is not here"
# Words of a text that look like code: cp.async, __launch_bounds__, float4x, schedule(static
_CODE = re.compile(r"[A-Za-z_#][\w#]*(?:(?:\.|::|_)\w+)+|\b__\w+|\b[a-z]+\d+\w*\b")


@dataclass(frozen=True)
class Attribution:
    """Origins of one node's candidate, as ids of moves, skills and excerpts.

    `shown` are all items that the proposer saw; `claimed` those that it names and whose words occur
    in its change; `attributed` those without which it makes another candidate; `recorded` those
    that it noted when it made the change. `note` says why nothing is attributed.
    """

    node: int
    shown: tuple[str, ...]
    claimed: tuple[str, ...] = ()
    attributed: tuple[str, ...] = ()
    recorded: tuple[str, ...] = ()
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        """The row of a report."""
        return asdict(self)


def attribution(
    tree: Tree, task: SearchTask, synthesizers: Sequence[Synthesizer], knowledge: KnowledgeSource
) -> list[Attribution]:
    """Attributions of the nodes whose proposers were shown knowledge. `synthesizers` must be
    configured as in the run."""
    by_name = {synthesizer.name: synthesizer for synthesizer in synthesizers}
    roles = roles_of(synthesizers, task.problem)
    answers: dict[int, ShownKnowledge] = {}
    attributions = []
    for node in tree:
        if node.proposal is None or node.parent is None or not _shown(node):
            continue
        if node.parent not in answers:
            answers[node.parent] = knowledge.consult(request_for(task, tree[node.parent], roles))
        answer = answers[node.parent]
        item = _attributed(tree, node, task, by_name.get(node.proposal.synthesizer), answer)
        attributions.append(replace(item, recorded=node.proposal.attributed))
    return attributions


def _attributed(
    tree: Tree,
    node: Node,
    task: SearchTask,
    synthesizer: Synthesizer | None,
    answer: ShownKnowledge,
) -> Attribution:
    assert node.proposal is not None and node.parent is not None
    attribution = Attribution(node.number, _shown(node))
    now = answer.shown()
    same = (now.moves, now.skills, now.excerpts) == (
        node.shown.moves,
        node.shown.skills,
        node.shown.excerpts,
    )
    if node.proposal.origin in ("llm", "external"):
        known = [(i, text) for i, text in _items(answer) if i in node.proposal.claimed]
        added = _added(tree, node, task)
        claimed = tuple(i for i, text in known if _occurs_in(i, text, added))
        note = ASKED_A_MODEL if same else f"{ASKED_A_MODEL}; {CHANGED}"
        return replace(attribution, claimed=claimed, note=note)
    if not same:
        return replace(attribution, note=CHANGED)
    if synthesizer is None:
        return replace(attribution, note=ABSENT)
    context = compose_context(task, tree_before(tree, node), node.parent, answer)
    if _bundle(synthesizer, context) != node.proposal.bundle.sha256:
        return replace(attribution, note=NOT_MADE_AGAIN.format(synthesizer.name))
    attributed = tuple(
        item
        for item in attribution.shown
        if _bundle(synthesizer, replace(context, knowledge=without(answer, item)))
        != node.proposal.bundle.sha256
    )
    return replace(attribution, attributed=attributed)


def without(knowledge: ShownKnowledge, item: str) -> ShownKnowledge:
    """The knowledge without the item of this id."""
    return replace(
        knowledge,
        excerpts=tuple(excerpt for excerpt in knowledge.excerpts if excerpt.id != item),
        moves=tuple(move for move in knowledge.moves if move.id != item),
        skills=tuple(skill for skill in knowledge.skills if skill.name != item),
    )


def _shown(node: Node) -> tuple[str, ...]:
    return (*node.shown.moves, *node.shown.skills, *node.shown.excerpts)


def _bundle(synthesizer: Synthesizer, context: ProposalContext) -> str | None:
    """SHA-256 of the proposed bundle, or None without a proposal."""
    try:
        proposal = synthesizer.propose(context)
    except ProposalFailed:
        return None
    return proposal.bundle.sha256 if proposal is not None else None


# -- claims of models


def _items(knowledge: ShownKnowledge) -> Iterator[tuple[str, str]]:
    """Ids, each with the text whose words may occur in code. A move's role names a parameter."""
    for move in knowledge.moves:
        yield move.id, f"{move.name} {move.why} `{move.change.get('role', '')}`"
    for skill in knowledge.skills:
        yield skill.name, skill.text
    for excerpt in knowledge.excerpts:
        yield excerpt.id, excerpt.text


def _added(tree: Tree, node: Node, task: SearchTask) -> str:
    """Lines that the candidate adds to its parent."""
    assert node.proposal is not None and node.parent is not None
    parent = tree[node.parent].proposal
    before = "\n".join(parent.bundle.files.values()) if parent else task.problem.source
    after = "\n".join(node.proposal.bundle.files.values())
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0)
    return "\n".join(line[1:] for line in lines if line[:1] == "+" and line[:3] != "+++")


def _occurs_in(item: str, text: str, added: str) -> bool:
    words = {item, *_CODE.findall(text), *re.findall(r"`([^`\s]{3,})`", text)}
    return any(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", added, re.I) for word in words)
