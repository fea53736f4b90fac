"""The built-in knowledge: loaded parents first, read again when its files change, removed with
them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ingestion.builtin import (
    BuiltinReport,
    builtin_documents,
    builtin_hardware,
    front_matter,
    load_builtin,
    load_hardware,
)
from ingestion.findings.front_matter import moves_of
from kb.errors import InvalidKnowledge
from kb.hardware.lineage import registry_problems
from kb.hardware.schema import parse_hardware
from tests.fixtures import hardware_toml

pytestmark = pytest.mark.slow(seconds=5)

if TYPE_CHECKING:
    from tests.fixtures import Store

SHIPPED = Path(__file__).resolve().parents[3] / "hw_manuals"
DOCUMENT = "---\ntitle: {title}\nlanguages: [triton]\nsources: []\n---\n# {title}\n\n{text}\n"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A chip whose folder sorts before its parent's."""
    root = tmp_path / "manuals"
    write(
        root / "hardware/alpha/hardware.toml",
        hardware_toml("alpha", "Zeta Alpha", "zeta", "accelerator"),
    )
    write(root / "hardware/zeta/hardware.toml", hardware_toml("zeta", "Zeta", None, "vendor"))
    write(root / "hardware/alpha/clocks.md", DOCUMENT.format(title="Clocks", text="It runs fast."))
    write(root / "constraints/bounds.md", DOCUMENT.format(title="Bounds", text="Mask the tail."))
    write(root / "guidance/banks.md", DOCUMENT.format(title="Banks", text="Pad the rows."))
    return root


def load(store: Store, folder: Path) -> BuiltinReport:
    return load_builtin(folder, store.registry, store.uploads, store.documents)


def test_path_and_front_matter_give_scope(store: Store, folder: Path) -> None:
    assert load(store, folder) == BuiltinReport(hardware=2, documents=3, changed=3, removed=0)
    found = {d.title: d for d in store.documents.find()}
    assert {title: (d.category, d.hardware, d.languages) for title, d in found.items()} == {
        "Banks": ("guidance", (), ("triton",)),
        "Bounds": ("constraint", (), ("triton",)),
        "Clocks": ("hardware", ("alpha",), ("triton",)),
    }
    assert store.registry.lineage("alpha") == ("alpha", "zeta")


def test_loading_again_changes_nothing(store: Store, folder: Path) -> None:
    load(store, folder)
    store.worker().drain()
    rows = store.rows("passages")
    assert load(store, folder).changed == 0
    assert store.worker()._step() is False
    assert store.rows("passages") == rows == 3


def test_own_chip_named_like_a_built_in_alias_survives_restart(store: Store) -> None:
    load_hardware(SHIPPED, store.registry)
    alias = store.registry.all()["nvidia"].aliases[0]
    own = parse_hardware({"id": alias.replace("-", "_"), "name": "Ours", "vendor": "us"}, "test")
    assert store.registry.put(own, "user") == "created"
    load_hardware(SHIPPED, store.registry)
    assert store.registry.resolve(own.id) == own.id
    assert store.registry.get(own.id).name == "Ours"


def test_changed_files_are_read_again_and_missing_ones_removed(store: Store, folder: Path) -> None:
    mine = store.submit("mine.md", "# Mine\n\nAn upload stays.\n")
    load(store, folder)
    write(folder / "guidance/banks.md", DOCUMENT.format(title="Banks", text="Swizzle the rows."))
    (folder / "constraints/bounds.md").unlink()
    report = load(store, folder)
    assert (report.documents, report.changed, report.removed) == (2, 1, 1)
    store.worker().drain()
    assert store.by_words("swizzle") and not store.by_words("pad") and not store.by_words("mask")
    assert store.documents.get(mine.document_id).passages == 1


@pytest.mark.parametrize(
    "loading", (load, lambda store, folder: load_hardware(folder, store.registry))
)
@pytest.mark.parametrize("state", ("gone", "empty", "chips alone"))
def test_folder_without_documents_is_refused_and_removes_nothing(
    store: Store, folder: Path, tmp_path: Path, state: str, loading: Callable[[Store, Path], object]
) -> None:
    load(store, folder)
    store.worker().drain()
    other = tmp_path / "unmounted"
    if state != "gone":
        other.mkdir()
    if state == "chips alone":
        chip = "hardware/alpha/hardware.toml"
        write(other / chip, (folder / chip).read_text(encoding="utf-8"))
    problem = "does not exist" if state == "gone" else "holds no document"
    with pytest.raises(InvalidKnowledge, match=f"unmounted, {problem}") as refused:
        loading(store, other)
    assert "KERNLORE_KNOWLEDGE_DIR" in refused.value.hint
    assert len(store.documents.find()) == 3 and store.by_words("pad")


def test_upload_of_same_bytes_is_a_separate_document(store: Store, folder: Path) -> None:
    """Its uploader can delete it."""
    text = (folder / "guidance/banks.md").read_text(encoding="utf-8")
    mine = store.submit("banks.md", text, category="guidance", languages=("triton",))
    assert mine.outcome == "created"
    assert load(store, folder).changed == 3
    assert {d.origin for d in store.documents.find() if d.title in ("Banks", "banks")} == {
        "builtin",
        "upload",
    }
    again = store.submit("again.md", text, category="guidance", languages=("triton",))
    assert (again.outcome, again.document_id) == ("duplicate_of", mine.document_id)


def test_errors_in_folder_name_file(folder: Path) -> None:
    write(
        folder / "hardware/beta/hardware.toml",
        hardware_toml("gamma", "Zeta Gamma", "zeta", "family"),
    )
    with pytest.raises(InvalidKnowledge, match="beta"):
        builtin_hardware(folder)
    for text in ("# No front matter\n", "---\na: [\n---\n# X\n", "---\njust words\n---\n# X\n"):
        with pytest.raises(InvalidKnowledge, match=r"banks\.md"):
            front_matter(text, "banks.md")


def test_shipped_knowledge_is_consistent() -> None:
    specs = builtin_hardware(SHIPPED)
    assert registry_problems({spec.id: spec for spec in specs}) == []
    documents = builtin_documents(SHIPPED)
    assert len({d.source_key for d in documents}) == len(documents) > 10
    for document in documents:
        front = front_matter(document.data.decode(), document.name)
        names = [move.name for move in moves_of(front)]
        assert len(names) == len(set(names)), document.source_key
