"""Selection of moves: their predicates are evaluated over the signals of the diagnosis, the
metrics, the chip's facts and the problem.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from kb.answers import Move
from kb.catalog.facts import Fact
from kb.catalog.knowledge.moves import StoredMove
from kb.predicates import Bindings, PredicateResult, Value, compile_predicate
from kb.problem_terms import ROLES
from retrieval.search.language_words import foreign_words, is_common

MAX_MOVES = 8  # of any role, and again of the roles in the request
MAX_FOR_PROBLEMS = 2  # of moves that hold for certain problems only, if there are no others
NO_ROLES: Mapping[str, Collection[str]] = MappingProxyType({})
LANGUAGE = "problem.language"  # a reader knows the language even if the problem is unknown


def fitting_moves(
    moves: Sequence[StoredMove],
    signals: Sequence[str],
    metrics: Mapping[str, float],
    facts: Mapping[str, Fact],
    problem: Mapping[str, Value | None],
    lineage: Sequence[str],
    roles: Sequence[str] = (),
    languages: Sequence[str] = (),
    chip_languages: tuple[str, ...] = (),
    mending: Mapping[str, Collection[str]] = NO_ROLES,
    settings: Mapping[str, int] = MappingProxyType({}),
) -> tuple[Move, ...]:
    """The moves for a diagnosis: first those that hold or need only the language, then those for
    which a value is missing; within these by the rank of their signal, those with a condition on a
    measured value before others, and the chip's own before general ones. Moves that depend on the
    problem (its operator, dtype or rules) are listed only if there are no others, at most
    MAX_FOR_PROBLEMS. A move for low occupancy that raises another limit than the least one is left
    out, and one that needs more of a resource that the kernel has used up follows the others.

    Of several moves with the same change (role, direction and value) the first is listed. At most
    MAX_MOVES of any role are followed by at most MAX_MOVES further ones of `roles`, so that moves
    of other roles cannot crowd them out. A move without signals depends on values alone, so it is
    listed only if it holds.

    `signals` are ids, the leading one first, `metrics` canonical values, and `lineage` the hardware
    with its families, nearest first. If the problem names no language, moves that hold in none of
    `languages` are left out, and so are general ones about machines that have none of the
    `chip_languages`. A chip that is neither GPU nor CPU gets general moves only if it has none of
    its own. `mending` maps a signal to the roles that can fix it, if the error determines them;
    moves of other roles are left out. `settings` are the launch options of the kernel by name, like
    num_stages; a move to a value that is set, or a decrease of a 1, is left out.
    """
    values = {key: fact.value for key, fact in facts.items()}
    bindings = [
        Bindings(
            signals=set(signals), metrics=metrics, facts=values, problem=known, parameters=settings
        )
        for known in _in_each_language(problem, languages)
    ]
    decided: list[tuple[tuple[Any, ...], Move]] = []
    least = _least_limits(metrics)
    for order, move in enumerate(moves):
        outcome = _outcome(move.predicate, bindings)
        if outcome.value is False or (not move.signals and outcome.value is not True):
            continue
        if _is_set(move, settings):
            continue
        if _is_foreign(move, lineage, chip_languages) or not _mends(move, signals, mending):
            continue
        if least and not least & _limits_raised(move, signals, least):
            continue
        used_up = _used_up(move, metrics, facts)
        place = [lineage.index(h) for h in move.hardware if h in lineage]
        nearness = min(place, default=len(lineage))
        leading = min((signals.index(s) for s in move.signals if s in signals), default=99)
        measured = outcome.value is True and _reads(move.predicate, metrics)
        # A reader knows the language, so a move that needs it stays with its signal.
        certain = 0 if set(outcome.missing) <= {LANGUAGE} else _certainty(outcome)
        first = (certain, used_up is not None)
        key = (first, leading, _certainty(outcome), not measured, nearness, order)
        move = move if used_up is None else _needing(move, *used_up)
        decided.append((key, _answer(move, outcome.value, outcome.missing, facts)))
    if chip_languages and not is_common(chip_languages):
        decided = _own_if_any(decided, len(lineage))
    changes: dict[tuple[object, ...], Move] = {}
    for _, answer in _without_superseded(sorted(decided, key=lambda pair: pair[0]), len(lineage)):
        changes.setdefault(_change_key(answer), answer)
    ordered = _few_for_problems(list(changes.values()))
    further = [answer for answer in ordered[MAX_MOVES:] if answer.change.get("role") in roles]
    return tuple(ordered[:MAX_MOVES] + further[:MAX_MOVES])


# Parameters whose values are powers of two.
TILES = frozenset(("tile_m", "tile_n", "tile_k", "block", "threads", "warps", "vector"))


MOST_STAGES = 8  # of the configurations that autotuners usually try


def too_small(move: Move, factor: float, settings: Mapping[str, int]) -> bool:
    """Whether the move sets stages to a number that frees too little of a resource exceeded
    `factor` times: with more than the stages in use, or than usual where those are unknown."""
    to = move.change.get("to")
    if move.change.get("role") != "stages" or not isinstance(to, int | float):
        return False
    return to * factor > settings.get("num_stages", MOST_STAGES)


def shrunk(move: Move, factor: float) -> Move:
    """The move with the least shrink factor of its parameter for a resource exceeded `factor`
    times; unchanged if it shrinks nothing, or to a given value."""
    role, known = move.change.get("role"), {"to", "factor"} & move.change.keys()
    if move.change.get("direction") != "decrease" or role not in {*TILES, "stages"} or known:
        return move
    least = 2 ** math.ceil(math.log2(factor)) if role in TILES else math.ceil(100 * factor) / 100
    return replace(move, change={**move.change, "factor": max(least, 1)})


def move_in_words(name: str, change: Mapping[str, Any]) -> str:
    """A move as a sentence for people: its name, then the change of a parameter."""
    part, direction = ROLES[str(change["role"])], str(change["direction"])
    value, factor = change.get("to"), change.get("factor")
    if value is not None and not isinstance(value, int | float):
        text = f"{part}: {str(value).replace('_', ' ')}"
    else:
        text = f"use {part}" if direction == "add" else f"{direction} the {part}"
        if value is not None:
            text += f" to {value:g}"
        elif factor:
            text += f" by a factor of {max(factor, 1 / factor):.3g} or more"
    return f"{name.replace('-', ' ').capitalize()} ({text})."


# Launch options as logs print them, and the roles whose values they are.
_OPTION = re.compile(
    r"\b(num_stages|num_warps|block(?:_size)?_[mnk])\b[\"'`]?\s?[:=]\s?(\d{1,5})\b", re.IGNORECASE
)
_ROLE_OF = {"num_stages": "stages", "num_warps": "warps"}


def settings_of(log: str) -> dict[str, int]:
    """The launch options that a log prints with one value each; several values are those of an
    autotuner's configurations."""
    found: dict[str, set[int]] = {}
    for name, value in _OPTION.findall(log):
        found.setdefault(name.lower(), set()).add(int(value))
    return {name: values.pop() for name, values in found.items() if len(values) == 1}


def _is_set(move: StoredMove, settings: Mapping[str, int]) -> bool:
    """Whether the move sets a value that is set, or decreases what is 1."""
    role, direction = str(move.change.get("role")), move.change.get("direction")
    values = [v for n, v in settings.items() if _ROLE_OF.get(n, f"tile_{n[-1]}") == role]
    if direction == "decrease":
        return values == [1]
    return direction == "set" and values != [] and values == [move.change.get("to")]


def _mends(
    move: StoredMove, signals: Sequence[str], mending: Mapping[str, Collection[str]]
) -> bool:
    """Whether the role of the move can fix one of its signals."""
    role = move.change.get("role")
    own = [signal for signal in move.signals if signal in signals]
    return not own or any(signal not in mending or role in mending[signal] for signal in own)


# What limits the resident blocks, with the metrics that count the blocks that each allows.
_BLOCKS_ALLOWED = {
    limit: f"occupancy_limit_{limit}" for limit in ("registers", "shared_mem", "warps", "blocks")
}
_LOST_TO = {"registers": "insufficient_registers_pct", "shared_mem": "insufficient_lds_pct"}
_LOSES = 25  # per cent of the dispatches' waves; below it a single figure names no limit


def _least_limits(metrics: Mapping[str, float]) -> frozenset[str]:
    """The limits of the occupancy that bind, by the numbers of a report; none if it has no two of
    them to compare and none that binds by itself."""
    allowed = {limit: metrics[name] for limit, name in _BLOCKS_ALLOWED.items() if name in metrics}
    if len(allowed) > 1:
        return frozenset(limit for limit, n in allowed.items() if n == min(allowed.values()))
    lost = {limit: metrics[name] for limit, name in _LOST_TO.items() if name in metrics}
    most = max(lost.values(), default=0)
    if most < _LOSES:
        return frozenset()
    return frozenset(limit for limit, share in lost.items() if share == most)


def _limits_raised(
    move: StoredMove, signals: Sequence[str], least: frozenset[str]
) -> frozenset[str]:
    """The limits of the occupancy that the move can raise, by the fact that limits it: more warps
    in a block divide its registers and fill the block slots, fewer leave less of the warp slots
    free. `least` for a move that is for another signal or limited by something else."""
    fact, direction = move.limit_fact or "", move.change.get("direction")
    if [signal for signal in move.signals if signal in signals] != ["occupancy_limited"]:
        return least
    if fact.startswith("max_threads"):
        return frozenset({"warps"} if direction == "decrease" else {"registers", "blocks"})
    if fact.startswith(("registers_per", "max_registers")):
        return frozenset({"registers"})
    return frozenset({"shared_mem"}) if fact.startswith("shared_memory_per") else least


# The metrics and the facts of resources, and the roles whose growth takes more of each.
_RESOURCES = (
    ("shared_memory_per_block_bytes", ("shared_memory_per_block", "shared_memory_per_unit")),
    ("registers_per_thread", ("max_registers_per_thread",)),
)
_TAKES = {"pad": (0,), "stages": (0,), "tile_m": (0, 1), "tile_n": (0, 1), "tile_k": (0,)}
_TAKES["unroll"] = (1,)
_ROOM = 33 / 32  # a pad takes about this much of a row of an operand


def _used_up(
    move: StoredMove, metrics: Mapping[str, float], facts: Mapping[str, Fact]
) -> tuple[Fact, float] | None:
    """The fact and the used amount of a resource of which the move needs more than is free."""
    role, direction = str(move.change.get("role")), move.change.get("direction")
    if direction not in ("increase", "add") and not (role == "pad" and direction == "set"):
        return None
    for metric, keys in (_RESOURCES[index] for index in _TAKES.get(role, ())):
        fact = next((facts[key] for key in keys if key in facts), None)
        used = metrics.get(metric)
        if fact and fact.number and used and used * _ROOM > fact.number:
            return fact, used
    return None


def _needing(move: StoredMove, fact: Fact, used: float) -> StoredMove:
    words = fact.key.replace("_", " ")
    why = f"{move.why} It needs free {words}: the kernel uses {used:g} of {fact.number:g}."
    return replace(move, limit_fact=fact.key, why=why)


def _own_if_any(
    decided: list[tuple[tuple[Any, ...], Move]], general: int
) -> list[tuple[tuple[Any, ...], Move]]:
    """The moves of the chip and its families, or else all moves. `general` is the nearness, fifth
    in a key, of moves that are about no chip."""
    own = [pair for pair in decided if pair[0][4] < general]
    return own or decided


# Roles that are remedies of one cause: a layout of shared memory is padded or permuted, not both.
ALTERNATIVES = {"pad": "bank layout", "swizzle": "bank layout"}


def _without_superseded(
    decided: Sequence[tuple[tuple[Any, ...], Move]], general: int
) -> list[tuple[tuple[Any, ...], Move]]:
    """Without moves to which a nearer document of the chip has another value: the manual of a
    generation knows its banks better than its vendor's or a general guide. `general` as in
    `_own_if_any`."""
    nearest: dict[tuple[int, object], int] = {}
    for (_, leading, _, _, nearness, _), move in decided:
        if move.change.get("direction") == "set" and nearness < general:
            key = (leading, _remedy(move))
            nearest[key] = min(nearest.get(key, nearness), nearness)
    return [
        (key, move)
        for key, move in decided
        if key[4] <= nearest.get((key[1], _remedy(move)), key[4])
    ]


def _remedy(move: Move) -> object:
    role = move.change.get("role")
    return ALTERNATIVES.get(str(role), role)


def _reads(predicate: str, metrics: Collection[str]) -> bool:
    """Whether a predicate reads a measured value, not only a signal."""
    return any(name in metrics for name in compile_predicate(predicate).names().metrics)


def _certainty(outcome: PredicateResult) -> int:
    """0 for a move that holds, 1 if a value is missing, 2 if that is a value of the problem."""
    if outcome.value is not None:
        return 0
    return 2 if _waits_for_problem(outcome.missing) else 1


def _waits_for_problem(missing: Sequence[str]) -> bool:
    return any(name.startswith("problem.") and name != LANGUAGE for name in missing)


def _few_for_problems(moves: Sequence[Move]) -> list[Move]:
    """Without moves that depend on the problem: a list of advice on attention, convolutions and FP8
    is of no use for one kernel."""
    waiting = [m for m in moves if m.applies is None and _waits_for_problem(m.missing)]
    listed = {move.id for move in moves} - {move.id for move in waiting}
    listed = listed or {move.id for move in waiting[:MAX_FOR_PROBLEMS]}
    return [move for move in moves if move.id in listed]


def _is_foreign(move: StoredMove, lineage: Sequence[str], languages: tuple[str, ...]) -> bool:
    """Whether a move that is about no chip uses words of machines with other languages."""
    if any(place in lineage for place in move.hardware):
        return False
    return foreign_words([f"{move.name} {move.why} {move.section}"], languages) > 0


def _in_each_language(
    problem: Mapping[str, Value | None], languages: Sequence[str]
) -> list[Mapping[str, Value | None]]:
    if problem.get("language") is not None or not languages:
        return [problem]
    return [{**problem, "language": language} for language in languages]


def _outcome(predicate: str, bindings: Sequence[Bindings]) -> PredicateResult:
    """The result of the predicate if it is equal in every language, else undecided."""
    compiled = compile_predicate(predicate)
    if len(bindings) > 1 and "language" not in compiled.names().problem:
        bindings = bindings[:1]
    outcomes = [compiled.evaluate(values) for values in bindings]
    if len({outcome.value for outcome in outcomes}) == 1:
        return outcomes[0]
    missing = dict.fromkeys(name for outcome in outcomes for name in outcome.missing)
    undecided = tuple(dict.fromkeys((*missing, "problem.language")))
    return replace(outcomes[0], value=None, missing=undecided)


def _change_key(move: Move) -> tuple[object, ...]:
    """Equal for moves that a search would apply in the same way."""
    return (move.change.get("role"), move.change.get("direction"), str(move.change.get("to")))


def _answer(
    move: StoredMove, applies: bool | None, missing: tuple[str, ...], facts: Mapping[str, Fact]
) -> Move:
    limit = None
    if move.limit_fact is not None:
        fact = facts.get(move.limit_fact)
        limit = {
            "fact": move.limit_fact,
            "value": fact.value if fact else None,
            "unit": fact.unit if fact else None,
            "source": f"{fact.title}, {fact.locator}" if fact else None,
        }
    return Move(
        id=move.id,
        name=move.name,
        when=move.predicate,
        applies=applies,
        change=move.change,
        limit=limit,
        why=move.why,
        missing=missing,
        source={
            "document": move.document_title or "",
            "document_id": move.document_id,
            "section": move.section,
        },
    )
