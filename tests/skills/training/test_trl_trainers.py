"""The exported files in TRL's own trainers: one step each of a tiny model, drawn at random."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset, disable_progress_bars, load_dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer
from trl.data_utils import is_conversational

from skills.training.rows import FORMATS, SHAPES, Format, Shape, shaped, write_rows
from tests.skills.training.judged import SAMPLES, TYPE

MARKS = ["<pad>", "<end>"]
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
# A reward is worked out of these.
REWARDED = ("problem_source", "best_known", "language", "hardware")

# TRL asks for options by names that transformers has given new ones.
pytestmark = [pytest.mark.slow(seconds=30), pytest.mark.filterwarnings("ignore::FutureWarning")]


@pytest.fixture(autouse=True)
def _repeatable() -> None:
    disable_progress_bars()
    torch.manual_seed(0)


def exported(shape: Shape, format: Format, folder: Path) -> Dataset:
    path = write_rows(shaped(SAMPLES, shape).rows, shape, format, folder / "out")
    kind = "json" if format == "jsonl" else "parquet"
    return load_dataset(kind, data_files=str(path), split="train", cache_dir=str(folder / "cache"))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_files_are_loaded_as_they_were_written(
    shape: Shape, format: Format, tmp_path: Path
) -> None:
    rows, loaded = shaped(SAMPLES, shape).rows, exported(shape, format, tmp_path)
    assert len(loaded) == len(rows) > 0
    for row, expected in zip(loaded, rows, strict=True):
        assert is_conversational(row)
        assert {name: row[name] for name in TYPE[shape]} == {n: expected[n] for n in TYPE[shape]}


def tokenizer() -> PreTrainedTokenizerFast:
    """Bytes, so that any text is in it."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = Tokenizer(models.BPE({token: at for at, token in enumerate([*MARKS, *alphabet])}, []))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=plain, pad_token="<pad>", eos_token="<end>"
    )
    fast.chat_template = TEMPLATE
    return fast


def model(folder: Path) -> LlamaForCausalLM:
    """From a folder, as users have theirs: a trainer loads the reference model from there again."""
    drawn = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(MARKS) + 256,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=512,
            pad_token_id=0,
            eos_token_id=1,
        )
    )
    drawn.save_pretrained(folder / "model")
    tokenizer().save_pretrained(folder / "model")
    return LlamaForCausalLM.from_pretrained(folder / "model")


def settings(folder: Path) -> dict[str, Any]:
    return {
        "output_dir": str(folder / "trained"),
        "max_steps": 1,
        "per_device_train_batch_size": 2,
        "learning_rate": 1e-3,
        "report_to": [],
        "save_strategy": "no",
        "use_cpu": True,
        "bf16": False,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }


def changed(net: LlamaForCausalLM, before: dict[str, torch.Tensor]) -> bool:
    return any(not torch.equal(before[name], value) for name, value in net.state_dict().items())


def copied(net: LlamaForCausalLM) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in net.state_dict().items()}


@pytest.mark.parametrize(
    ("trainer", "config", "shape", "format"),
    [(SFTTrainer, SFTConfig, "sft", "jsonl"), (DPOTrainer, DPOConfig, "dpo", "parquet")],
)
def test_a_step_is_made_over_the_files(
    trainer: Any, config: Any, shape: Shape, format: Format, tmp_path: Path
) -> None:
    net = model(tmp_path)
    before = copied(net)
    made = trainer(
        model=net,
        args=config(**settings(tmp_path)),
        train_dataset=exported(shape, format, tmp_path),
        processing_class=tokenizer(),
    ).train()
    assert made.training_loss > 0
    assert changed(net, before)


def test_rewards_are_told_what_they_need(tmp_path: Path) -> None:
    """A reward function gets columns by name: the problem to evaluate on, the best known."""
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
