"""A large store for measurements: the built-in knowledge and changed copies of its documents.

    python -m benchmarks.retrieval.grown_store DATA_DIR --copies 12

In the prose of a copy one word in five is replaced by another word of the same document, so that
copies are neither duplicates nor repeats of each other. Headings and code stay as they are. The
copies are uploaded and read like documents of users. They are not embedded, which would take 3
minutes each on two cores: a passage of a copy gets the vector of a built-in passage with noise
(cosine about 0.9).
"""

from __future__ import annotations

import argparse
import random
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from api.cli.target import read_settings
from api.services import Services, open_services
from benchmarks.report import say
from ingestion.builtin import front_matter, load_hardware
from ingestion.uploads import FileUpload
from kb.catalog.knowledge import embeddings
from kb.catalog.meta import bump_vectors

WORD = re.compile(r"[A-Za-z]{4,}")
REPLACED = 0.2
NOISE = 0.5  # its length; that of a vector is 1


def changed(text: str, rng: random.Random) -> str:
    """The document with one word in five of its prose replaced."""
    words = WORD.findall(text)
    lines, in_code = [], False
    for line in text.splitlines():
        in_code ^= line.startswith("```")
        if words and not in_code and not line.startswith(("#", "```", "|")):
            line = WORD.sub(
                lambda m: rng.choice(words) if rng.random() < REPLACED else m.group(), line
            )
        lines.append(line)
    return "\n".join(lines) + "\n"


def copies_of(folder: Path, copy: int) -> Iterator[FileUpload]:
    """One changed copy of each built-in Markdown document."""
    for path in sorted(folder.glob("*/**/*.md")):
        text = path.read_text("utf-8")
        front = front_matter(text, str(path))
        kind = path.relative_to(folder).parts[0]
        hardware = (path.parent.name,) if kind == "hardware" else tuple(front.get("hardware") or ())
        body = changed(text.split("\n---\n", 1)[1], random.Random(f"{copy} {path}"))
        yield FileUpload(
            name=f"{copy}-{path.name}",
            data=body.encode(),
            category="constraint" if kind == "constraints" else kind,
            hardware=hardware,
            languages=tuple(front.get("languages") or ()),
            title=f"{front.get('title') or path.stem}, copy {copy}",
            source_key=f"copies/{copy}/{path.relative_to(folder)}",
        )


def put_noisy_vectors(services: Services, random_state: np.random.Generator) -> None:
    """Give each passage without a vector that of a stored passage, with noise."""
    model = services.embedder.fingerprint
    with services.catalog.write() as connection:
        stored = np.stack(list(embeddings.of_active(connection, model).values()))
        documents = embeddings.pending(connection, model)
        texts = embeddings.missing(connection, model, dict.fromkeys(documents, 1_000_000))
        chosen = stored[random_state.integers(len(stored), size=len(texts))]
        noise = random_state.normal(scale=NOISE / chosen.shape[1] ** 0.5, size=chosen.shape)
        vectors = chosen + noise
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        rows = vectors.astype(np.float32)
        embeddings.put(connection, model, {t.sha256: v for t, v in zip(texts, rows, strict=True)})
        bump_vectors(connection, documents)


def grow(data_dir: Path, copies: int) -> None:
    """Load the built-in knowledge and the copies into a data directory."""
    services = open_services(read_settings(data_dir))
    try:
        folder = services.settings.knowledge_dir
        with services.local_reader() as reader:
            worker = services.worker(reader)
            services.load_builtin(load_hardware(folder, services.registry))
            worker.drain()
            random_state = np.random.default_rng(0)
            for copy in range(1, copies + 1):
                for upload in copies_of(folder, copy):
                    services.uploads.submit(upload)
                worker.read_all(threading.Event())
                put_noisy_vectors(services, random_state)
                say(f"copy {copy}: {services.vectors()[1]:,} passages")
        services.snapshots.publish()
    finally:
        services.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("--copies", type=int, default=12)
    given = parser.parse_args()
    grow(given.data_dir, given.copies)


if __name__ == "__main__":
    main()
