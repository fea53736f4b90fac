"""Rows as a file of JSON lines or Parquet, with a manifest that accounts for every candidate."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from kb.errors import Conflict, Unavailable

Format = Literal["jsonl", "parquet"]
FORMATS: tuple[Format, ...] = ("jsonl", "parquet")
MANIFEST = "manifest.json"
_MESSAGES = ("prompt", "completion", "chosen", "rejected")
_NUMBERS = ("reward", "rejected_reward", "best_known")
# Without rows a file still has its columns.
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "sft": ("prompt", "completion"),
    "dpo": ("prompt", "chosen", "rejected"),
    "grpo": ("prompt",),
}


def write_rows(rows: Sequence[Mapping[str, Any]], shape: str, format: Format, folder: Path) -> Path:
    """The file. Raises Conflict where the folder has files, Unavailable without pyarrow."""
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
    """Beside the file, with its hash."""
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    told = {**manifest, "file": str(file), "sha256": digest, "bytes": file.stat().st_size}
    text = json.dumps({**told, "file": file.name}, indent=1, sort_keys=True)
    (file.parent / MANIFEST).write_text(text + "\n", encoding="utf-8")
    return told


def _table(rows: Sequence[Mapping[str, Any]], shape: str) -> Any:
    """With explicit types: a column of empty lists or of nulls would else get none."""
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
