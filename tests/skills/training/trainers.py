"""A tiny random model and the other inputs of TRL's trainers. Tests import this inside functions,
because transformers and TRL take seconds to import.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, load_dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from skills.training.export import Format, Shape, shaped, write_rows
from tests.skills.training.judged import SAMPLES

MARKS = ["<pad>", "<end>"]
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def exported(shape: Shape, format: Format, folder: Path) -> Dataset:
    path = write_rows(shaped(SAMPLES, shape)[0], shape, format, folder / "out")
    kind = "json" if format == "jsonl" else "parquet"
    return load_dataset(kind, data_files=str(path), split="train", cache_dir=str(folder / "cache"))


def tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer, so that it covers any text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = Tokenizer(models.BPE({token: at for at, token in enumerate([*MARKS, *alphabet])}, []))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=plain, pad_token="<pad>", eos_token="<end>"
    )
    fast.chat_template = TEMPLATE
    return fast


def model(folder: Path) -> LlamaForCausalLM:
    """From a folder, as users have it: a trainer loads the reference model from there again."""
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
