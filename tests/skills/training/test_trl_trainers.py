"""The exported files in TRL's own trainers: one step each of a tiny random model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from skills.training.export import FORMATS, SHAPES, Format, Shape, shaped
from tests.skills.training.judged import SAMPLES, TYPE

# Rewards are computed from these.
REWARDED = ("problem_source", "best_known", "language", "hardware")

# TRL passes options by names that transformers has renamed.
pytestmark = [pytest.mark.slow(seconds=30), pytest.mark.filterwarnings("ignore::FutureWarning")]


@pytest.fixture(autouse=True)
def _repeatable() -> None:
    from datasets import disable_progress_bars

    disable_progress_bars()
    torch.manual_seed(0)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("shape", SHAPES)
def test_files_load_as_written(shape: Shape, format: Format, tmp_path: Path) -> None:
    from trl.data_utils import is_conversational

    from tests.skills.training.trainers import exported

    rows, loaded = shaped(SAMPLES, shape)[0], exported(shape, format, tmp_path)
    assert len(loaded) == len(rows) > 0
    for row, expected in zip(loaded, rows, strict=True):
        assert is_conversational(row)
        assert {name: row[name] for name in TYPE[shape]} == {n: expected[n] for n in TYPE[shape]}


@pytest.mark.parametrize(
    ("trainer", "config", "shape", "format"),
    [("SFTTrainer", "SFTConfig", "sft", "jsonl"), ("DPOTrainer", "DPOConfig", "dpo", "parquet")],
)
def test_trainer_makes_step_with_files(
    trainer: str, config: str, shape: Shape, format: Format, tmp_path: Path
) -> None:
    import trl

    from tests.skills.training.trainers import changed, copied, exported, model, settings, tokenizer

    net = model(tmp_path)
    before = copied(net)
    made = getattr(trl, trainer)(
        model=net,
        args=getattr(trl, config)(**settings(tmp_path)),
        train_dataset=exported(shape, format, tmp_path),
        processing_class=tokenizer(),
    ).train()
    assert made.training_loss > 0
    assert changed(net, before)


def test_reward_functions_get_their_columns(tmp_path: Path) -> None:
    """A reward function gets columns by name: the problem to evaluate on, the best known kernel."""
    from trl import GRPOConfig, GRPOTrainer

    from tests.skills.training.trainers import changed, copied, exported, model, settings, tokenizer

    received: dict[str, Any] = {}

    def reward(completions: list[Any], **columns: Any) -> list[float]:
        received.update(columns)
        return [float(number) for number in range(len(completions))]

    net = model(tmp_path)
    before = copied(net)
    trainer = GRPOTrainer(
        model=net,
        reward_funcs=reward,  # type: ignore[arg-type]
        args=GRPOConfig(num_generations=2, max_completion_length=8, **settings(tmp_path)),
        train_dataset=exported("grpo", "jsonl", tmp_path),
        processing_class=tokenizer(),
    )
    trainer.train()
    assert changed(net, before)
    assert all(len(received[name]) == 2 for name in REWARDED)
    assert set(received["language"]) == {"cpp"}
