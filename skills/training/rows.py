"""Samples as rows of the three shapes that TRL's trainers load, and the files that hold them.

The shapes are its documented dataset types, all conversational: prompt-completion for SFTTrainer,
preference with an explicit prompt for DPOTrainer, prompt-only for GRPOTrainer, whose other columns
reach reward functions by name. Other columns hold texts and numbers only, so that all rows of a
file have the same columns and types; nested values are JSON text. A file is JSON lines or Parquet.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

from kb.errors import Conflict, Unavailable
from skills.training.samples import TrainingPrompt, TrainingSample

Shape = Literal["sft", "dpo", "grpo"]
SHAPES: tuple[Shape, ...] = ("sft", "dpo", "grpo")
Row = dict[str, Any]
Message = dict[str, str]


# Rows of one shape, and the number of samples that are in no row, by reason.
RowsAndRest = tuple[list[Row], Mapping[str, int]]


def shaped(samples: Sequence[TrainingSample], shape: Shape) -> RowsAndRest:
    return {"sft": _sft, "dpo": _dpo, "grpo": _grpo}[shape](samples)


def _sft(samples: Sequence[TrainingSample]) -> RowsAndRest:
    """Samples worth imitating: correct, certainly faster than the reference, and not certainly
    slower than their parent."""
    rows: list[Row] = []
    left_out = Counter[str]()
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
    return rows, left_out


def _dpo(samples: Sequence[TrainingSample]) -> RowsAndRest:
    """Pairs of the same parent. The prompt is that of the earlier proposal, so it cannot contain
    the later one."""
    rows: list[Row] = []
    used: set[str] = set()
    for group in _siblings(samples):
        for first, second in combinations(group, 2):
            better = preferred(first, second)
            if better is None:
                continue
            chosen, rejected, by = better
            earlier = min(first, second, key=lambda sample: sample.node)
            used |= {first.id, second.id}
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
    return rows, {"without a sibling of certain difference": rest} if rest else {}


def _grpo(samples: Sequence[TrainingSample]) -> RowsAndRest:
    """One row for each distinct prompt. A trainer draws answers, and a reward function evaluates
    them with the columns on problem and hardware. `best_known` is the highest lower bound of a
    speed-up that was measured from this state."""
    groups: dict[tuple[str, str], list[TrainingSample]] = {}
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
                "problem_source": first.problem.source,
                "problem_toml": first.problem_toml or "",
                "parent_files": _json(first.state["parent"]["files"]),
                "best_known": max(known, default=None),
            }
        )
    again = len(samples) - len(rows)
    return rows, {"the same prompt as another": again} if again else {}


def faster(sample: TrainingSample) -> bool:
    """Whether a sample is correct and certainly faster than the reference."""
    speedup = sample.reward.speedup
    return sample.reward.validity == "correct" and speedup is not None and speedup.low > 1.0


def preferred(
    first: TrainingSample, second: TrainingSample
) -> tuple[TrainingSample, TrainingSample, str] | None:
    """(better, worse, reason) if that is certain: their intervals over the same cases do not
    overlap, or one is correct and faster than the reference and the other is not correct."""
    for better, worse in ((first, second), (second, first)):
        high, low = better.reward.speedup, worse.reward.speedup
        if high is not None and low is not None and _comparable(better, worse):
            if high.low > low.high:
                return better, worse, "speed-up"
        elif faster(better) and worse.reward.value == 0.0:
            return better, worse, "validity"
    return None


def _comparable(first: TrainingSample, second: TrainingSample) -> bool:
    def clock(sample: TrainingSample) -> tuple[Any, ...]:
        reward = sample.reward
        return (reward.cases, reward.device, reward.timing, reward.harness, sample.hardware)

    return clock(first) == clock(second)


def _siblings(samples: Sequence[TrainingSample]) -> Iterator[list[TrainingSample]]:
    groups: dict[tuple[str, int], list[TrainingSample]] = {}
    for sample in samples:
        groups.setdefault((sample.trajectory, sample.parent), []).append(sample)
    yield from groups.values()


def messages(prompt: TrainingPrompt) -> list[Message]:
    return [{"role": "system", "content": prompt.system}, {"role": "user", "content": prompt.user}]


def _answer(text: str) -> list[Message]:
    return [{"role": "assistant", "content": text}]


def _about(sample: TrainingSample) -> Row:
    """Columns whose names no trainer interprets (as `text`, `messages`, `image`, `label`)."""
    return {
        "id": sample.id,
        "prompt_origin": sample.prompt.origin,
        "problem": sample.problem.name,
        "hardware": sample.hardware,
        "language": sample.proposal.bundle.language,
        "reward": sample.reward.value,
        "state": _json(sample.state),
        "provenance": _json(sample.provenance()),
    }


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


# -- files

Format = Literal["jsonl", "parquet"]
FORMATS: tuple[Format, ...] = ("jsonl", "parquet")
MANIFEST = "manifest.json"
_MESSAGES = ("prompt", "completion", "chosen", "rejected")
_NUMBERS = ("reward", "rejected_reward", "best_known")
# The columns of a file without rows.
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "sft": ("prompt", "completion"),
    "dpo": ("prompt", "chosen", "rejected"),
    "grpo": ("prompt",),
}


def write_rows(rows: Sequence[Mapping[str, Any]], shape: str, format: Format, folder: Path) -> Path:
    """Write rows as one file of a new folder; returns its path. Raises Conflict for a folder with
    files, and Unavailable without pyarrow."""
    if folder.exists() and any(folder.iterdir()):
        raise Conflict(f"{folder} is not empty", hint="Give a new folder.")
    table = _table(rows, shape) if format == "parquet" else None
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{shape}.{format}"
    if table is not None:
        from pyarrow import parquet

        parquet.write_table(table, path)
        return path
    with path.open("w", encoding="utf-8") as stream:
        for row in rows:
            stream.write(json.dumps(row, ensure_ascii=False) + "\n")
    return path


def write_manifest(manifest: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Write the manifest into the file's folder, with its hash and size; returns it."""
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    complete = {**manifest, "file": str(file), "sha256": digest, "bytes": file.stat().st_size}
    text = json.dumps({**complete, "file": file.name}, indent=1, sort_keys=True)
    (file.parent / MANIFEST).write_text(text + "\n", encoding="utf-8")
    return complete


def _table(rows: Sequence[Mapping[str, Any]], shape: str) -> Any:
    """An Arrow table with explicit types, which a column of nulls or empty lists needs."""
    try:
        import pyarrow
    except ImportError as missing:
        raise Unavailable(
            "Parquet needs pyarrow, which is not installed",
            hint="Install kernlore[train], or export --format jsonl.",
        ) from missing
    message = pyarrow.struct([("role", pyarrow.string()), ("content", pyarrow.string())])
    names = list(rows[0]) if rows else list(COLUMNS[shape])

    def kind(name: str) -> Any:
        if name in _MESSAGES:
            return pyarrow.list_(message)
        return pyarrow.float64() if name in _NUMBERS else pyarrow.string()

    schema = pyarrow.schema([(name, kind(name)) for name in names])
    return pyarrow.Table.from_pylist([dict(row) for row in rows], schema=schema)
