"""Samples as rows of the three shapes that TRL's trainers load (its documented dataset types, all
conversational): prompt-completion for SFTTrainer, preference with an explicit prompt for
DPOTrainer, prompt-only for GRPOTrainer, whose further columns reach reward functions by name.

Columns beside those of the type hold texts and numbers only, so that every row of a file has the
same columns and types; what is nested is JSON text.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Literal

from skills.training.samples import Prompt, Sample

Shape = Literal["sft", "dpo", "grpo"]
SHAPES: tuple[Shape, ...] = ("sft", "dpo", "grpo")
Row = dict[str, Any]
Message = dict[str, str]


@dataclass(frozen=True)
class Rows:
    """left_out: how many samples are in no row, by reason."""

    rows: tuple[Row, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)


def shaped(samples: Sequence[Sample], shape: Shape) -> Rows:
    return _SHAPES[shape](samples)


def _sft(samples: Sequence[Sample]) -> Rows:
    """What is worth imitating: right, faster than the reference for certain, and not certainly
    slower than what it changes."""
    rows, left_out = [], Counter[str]()
    for sample in samples:
        over = sample.reward.over_parent
        if not faster(sample):
            left_out["not faster than the reference for certain"] += 1
            continue
        if over is not None and over.high < 1.0:
            left_out["slower than what it changes for certain"] += 1
            continue
        rows.append(
            {
                "prompt": messages(sample.prompt),
                "completion": _answer(sample.completion),
                **_about(sample),
            }
        )
    return Rows(tuple(rows), left_out)


def _dpo(samples: Sequence[Sample]) -> Rows:
    """Pairs of the same parent. The prompt is that of the earlier proposal, which cannot have seen
    the other one."""
    rows: list[Row] = []
    used: set[str] = set()
    for group in _siblings(samples):
        for one, other in combinations(group, 2):
            better = preferred(one, other)
            if better is None:
                continue
            chosen, rejected, by = better
            earlier = min(one, other, key=lambda sample: sample.node)
            used |= {one.id, other.id}
            rows.append(
                {
                    "prompt": messages(earlier.prompt),
                    "chosen": _answer(chosen.completion),
                    "rejected": _answer(rejected.completion),
                    **_about(chosen),
                    "preferred_by": by,
                    "rejected_id": rejected.id,
                    "rejected_reward": rejected.reward.value,
                    "rejected_provenance": _json(rejected.provenance()),
                }
            )
    rest = sum(sample.id not in used for sample in samples)
    return Rows(tuple(rows), {"without a sibling of certain difference": rest} if rest else {})


def _grpo(samples: Sequence[Sample]) -> Rows:
    """One row for each distinct prompt; a trainer draws the answers and a reward function evaluates
    them, with what the columns tell of problem and hardware. best_known: the highest certain
    speed-up that was found from this state."""
    groups: dict[tuple[str, str], list[Sample]] = {}
    for sample in samples:
        groups.setdefault((sample.prompt.system, sample.prompt.user), []).append(sample)
    rows = []
    for group in groups.values():
        first = group[0]
        known = [s.reward.value for s in group if s.reward.value is not None]
        rows.append(
            {
                "prompt": messages(first.prompt),
                **_about(first),
                "problem_source": first.problem_source,
                "problem_toml": first.problem_toml or "",
                "parent_files": _json(first.state["parent"]["files"]),
                "best_known": max(known, default=None),
            }
        )
    again = len(samples) - len(rows)
    return Rows(tuple(rows), {"the same prompt as another": again} if again else {})


def faster(sample: Sample) -> bool:
    found = sample.reward.speedup
    return sample.reward.validity == "correct" and found is not None and found.low > 1.0


def preferred(one: Sample, other: Sample) -> tuple[Sample, Sample, str] | None:
    """(better, worse, why) where that is certain: their intervals over the same cases do not
    overlap; or one is right and faster than the reference, and the other is not right."""
    for better, worse in ((one, other), (other, one)):
        high, low = better.reward.speedup, worse.reward.speedup
        if high is not None and low is not None and _comparable(better, worse):
            if high.low > low.high:
                return better, worse, "speed-up"
        elif faster(better) and worse.reward.value == 0.0:
            return better, worse, "validity"
    return None


def _comparable(one: Sample, other: Sample) -> bool:
    def clock(sample: Sample) -> tuple[Any, ...]:
        found = sample.reward
        return (found.cases, found.device, found.timing, found.harness, sample.hardware)

    return clock(one) == clock(other)


def _siblings(samples: Sequence[Sample]) -> Iterator[list[Sample]]:
    groups: dict[tuple[str, int], list[Sample]] = {}
    for sample in samples:
        groups.setdefault((sample.trajectory, sample.parent), []).append(sample)
    yield from groups.values()


def messages(prompt: Prompt) -> list[Message]:
    return [
        {"role": "system", "content": prompt.system},
        {"role": "user", "content": prompt.user},
    ]


def _answer(text: str) -> list[Message]:
    return [{"role": "assistant", "content": text}]


def _about(sample: Sample) -> Row:
    """None of these names means anything to a trainer: no `text`, `messages`, `image`, `label`."""
    return {
        "id": sample.id,
        "prompt_origin": sample.prompt.origin,
        "problem": sample.problem,
        "hardware": sample.hardware,
        "language": sample.language,
        "reward": sample.reward.value,
        "state": _json(sample.state),
        "provenance": _json(sample.provenance()),
    }


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


_SHAPES: Mapping[Shape, Callable[[Sequence[Sample]], Rows]] = {
    "sft": _sft,
    "dpo": _dpo,
    "grpo": _grpo,
}
