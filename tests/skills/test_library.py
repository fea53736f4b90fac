"""The library over a real catalog: shipped skills, import and export, states and history."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from skills_ref import validate

from ingestion.builtin import load_hardware
from kb import clock
from kb.catalog import Catalog, open_catalog
from kb.catalog.hardware import HardwareRegistry
from kb.catalog.skills.reading import events_of, get_skill
from kb.catalog.tables import evidence as evidence_table
from kb.errors import (
    Conflict,
    InvalidKnowledge,
    InvalidRequest,
    NotFound,
    UnknownHardware,
    UnknownSignal,
)
from kb.scope import ALL_ACCESS, AccessScope
from retrieval.snapshot.store import SnapshotStore
from skills.format.schema import SkillFile
from skills.format.skillfile import read_skill, render, skill_folders, write_skill
from skills.skill_library import Imported, SkillLibrary
from tests.catalogs import copy_data_dir, fresh_data_dir
from tests.skills.states import set_state

pytestmark = pytest.mark.slow(seconds=12)

SHIPPED = Path(__file__).parents[2] / "skills" / "library"
MANUALS = Path(__file__).parents[2] / "hw_manuals"
LEARNED = SkillFile(
    name="h100-widen-tile-gemm",
    description="Use when a product on H100 starves its matrix units. Do not use for skinny ones.",
    body="## When to use\n\nThe matrix unit idles.\n\n## Sources\n\n- run 7",
    metadata={
        "kb.signals": "tensor_core_underuse",
        "kb.hardware": "h100",
        "kb.ops": "matmul",
        "kb.dtypes": "fp16",
        "kb.languages": "triton",
        "kb.status": "active",
        "kb.evidence": "n=99;speedup_lcb=9.00;shapes=9;runs=9",
        "team": "kernels",
    },
    files={
        "references/evidence.json": b'[{"n": 99}]',
        "references/notes.md": b"Notes.\n",
        "references/moves.json": b'[{"id": "widen", "when": "signals.tensor_core_underuse", '
        b'"change": {"role": "tile_n", "direction": "increase"}, "why": "More work per load."}]',
        "scripts/run.sh": b"rm -rf .",
    },
)


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    catalog = stocked(tmp_path / "data")
    yield catalog
    catalog.close()


def stocked(folder: Path) -> Catalog:
    """The catalog of a directory with the shipped chips."""
    return open_catalog(copy_data_dir(Path(_with_chips().name), folder))


@cache
def _with_chips() -> tempfile.TemporaryDirectory[str]:
    """Made once per process: reading the chips takes half a second."""
    folder = tempfile.TemporaryDirectory(prefix="kernlore-chips-")
    catalog = open_catalog(fresh_data_dir(Path(folder.name)))
    load_hardware(MANUALS, HardwareRegistry(catalog))
    catalog.close()
    return folder


@pytest.fixture
def library(catalog: Catalog) -> SkillLibrary:
    return SkillLibrary(catalog)


def import_skill(library: SkillLibrary, tmp_path: Path, skill: SkillFile = LEARNED) -> Imported:
    return library.import_folder(written(skill, tmp_path / "in"), actor="ann")


def written(skill: SkillFile, parent: Path) -> Path:
    """The folder of a skill with its scripts, which an export omits."""
    folder = write_skill(skill, parent)
    for name, data in skill.files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def measure(catalog: Catalog, name: str) -> None:
    with catalog.write() as connection:
        skill = get_skill(connection, name, ALL_ACCESS)
        connection.execute(
            evidence_table.insert().values(
                id=f"ev_{name}_{skill.version}",
                subject_kind="skill",
                subject_id=skill.id,
                hardware_id="h100",
                kind="ablation",
                case_id="case_1",
                evaluation_id="eval_1",
                n=12,
                speedup=1.3,
                speedup_low=1.18,
                speedup_high=1.42,
                created_at=clock.now(),
            )
        )


def files(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


# -- shipped skills


def test_shipped_skills_are_canonical_sourced_and_curated(library: SkillLibrary) -> None:
    folders = skill_folders(SHIPPED)
    assert len(folders) >= 4
    for folder in folders:
        assert render(read_skill(folder)) == (folder / "SKILL.md").read_text(encoding="utf-8")
    assert library.sync_builtin(SHIPPED).changed == len(folders)
    assert library.sync_builtin(SHIPPED).changed == 0
    for summary in library.list():
        assert (summary.tier, summary.state) == ("curated", "active")
        assert summary.evidence == "not measured here"
        detail = library.show(summary.name)
        measured = "Measured on" in detail.body
        assert detail.summary.evidence.startswith(
            "measured by the skill's author" if measured else "not measured here"
        )
        assert detail.warnings == ()
        assert detail.sources and all(s["url"].startswith("http") for s in detail.sources)
        # The steps of a recipe come from its template.
        snippets = () if detail.recipe is not None else ("Before", "After")
        for part in ("When to use", "When not", "Steps", *snippets, "Expected effect"):
            assert f"## {part}\n" in detail.body
        assert "## How to check\n" in detail.body and "## Failure signs\n" in detail.body


def snippets(name: str, fence: str = "python") -> list[str]:
    body = read_skill(SHIPPED / name).body
    return re.findall(rf"```{fence}\n(.*?)```", body, re.DOTALL)


def advice_only() -> list[Path]:
    """Shipped skills without a recipe: all their code is in snippets."""
    bare = [f for f in skill_folders(SHIPPED) if not (f / "references/recipe.json").exists()]
    return [folder for folder in bare if snippets(folder.name, r"\w+")]


def test_every_snippet_parses() -> None:
    """Two for each skill; only Python is parsed, because compilers of other languages may be
    missing.
    """
    for folder in advice_only():
        assert len(snippets(folder.name, r"\w+")) == 2
        for code in snippets(folder.name):
            ast.parse(code)


CHECKS = {
    "triton-mask-block-tail": """
x = torch.full((8, 64), float("nan")); x[:, :50] = torch.randn(8, 50)
out = torch.empty(8)
row_sum[(8,)](x, out, 50, 64, BLOCK=64)
torch.testing.assert_close(out, x[:, :50].sum(1))
""",
    "any-two-pass-to-online-softmax": """
x = torch.cat([torch.randn(4, 300), torch.full((4, 1), 30.0)], dim=1)
out = torch.empty_like(x)
softmax[(4,)](x, out, 301, 301, BLOCK=64)
torch.testing.assert_close(out, torch.softmax(x, 1))
""",
    "any-split-k-skinny-matmul": """
a, b = torch.randn(5, 333), torch.randn(333, 40)
torch.testing.assert_close(matmul(a, b, split_k=3), a @ b, atol=1e-3, rtol=1e-3)
""",
    "any-vectorize-global-access-elementwise": """
x = torch.randn(3001, dtype=torch.float16); out = torch.empty_like(x)
launch(x, out, 2.0)
torch.testing.assert_close(out, x * 2)
""",
    "triton-two-pass-wide-norm": """
x = torch.randn(3, 5000) + 10; out = torch.empty_like(x)
norm[(3,)](x, out, 5000, 1e-6, BLOCK=1024)
torch.testing.assert_close(out, x * torch.rsqrt((x * x).mean(1, keepdim=True) + 1e-6))
""",
    "triton-packed-key-topk": """
x = torch.randn(4, 100).round(decimals=1); place = torch.empty(4, 90, dtype=torch.int64)
nan = float("nan")  # of both signs; x86 sets the sign of 0 / 0
x[1, 5:12] = torch.tensor([nan, float("inf"), 0.0, -0.0, -float("inf"), nan, 0.0])
x[1, 10] = x[1, 10].copysign(torch.tensor(-1.0)); x[2, ::3] = -0.0; x[2, 1::3] = 0.0
topk[(4,)](x, place, 100, 90, WIDTH=128, K=128)
assert torch.equal(place, torch.sort(x, dim=1, descending=True, stable=True).indices[:, :90])
""",
    "triton-depthwise-backward": """
x = torch.randn(2, 3, 50); dy = torch.randn(2, 3, 50); dy[:, :, 47:] = 0
weight = torch.zeros(3, 1, 4, requires_grad=True); part = torch.empty(3, 3, 4)
torch.nn.functional.conv1d(x, weight, groups=3).backward(dy[:, :, :47])
grad_weight[(3, 3)](x, dy, part, 2, 3, 50, TAPS=4, BLOCK=16)
torch.testing.assert_close(part.sum(0), weight.grad[:, 0])
""",
}


@pytest.mark.skipif(sys.platform != "linux", reason="triton has wheels for Linux only")
def test_snippets_after_advice_are_correct(tmp_path: Path) -> None:
    """Each in Triton's interpreter against torch, in one process."""
    in_triton = (f.name for f in advice_only() if "import triton\n" in "".join(snippets(f.name)))
    assert set(CHECKS) == set(in_triton)
    modules = []
    for name, check in CHECKS.items():
        module = tmp_path / f"{name.replace('-', '_')}.py"
        module.write_text(f"{snippets(name)[1]}\nimport torch\n{check}", encoding="utf-8")
        modules.append(module.stem)
    done = subprocess.run(
        [sys.executable, "-c", f"import {', '.join(modules)}"],
        cwd=tmp_path,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_persons_state_overrides_shipped_state(library: SkillLibrary, tmp_path: Path) -> None:
    copy = tmp_path / "library"
    shutil.copytree(SHIPPED, copy)
    library.sync_builtin(copy)
    set_state(library, "triton-mask-block-tail", "quarantined", actor="ann", reason="doubtful")
    library.sync_builtin(copy)
    assert library.show("triton-mask-block-tail").summary.state == "quarantined"


def test_folder_without_skills_retires_nothing(library: SkillLibrary, tmp_path: Path) -> None:
    library.sync_builtin(SHIPPED)
    for wrong in (tmp_path, tmp_path / "unmounted"):
        with pytest.raises(InvalidKnowledge, match="holds none") as refused:
            library.sync_builtin(wrong)
        assert "KERNLORE_SKILLS_DIR" in refused.value.hint
    assert library.show("triton-mask-block-tail").summary.state == "active"


def test_import_does_not_block_shipped_skill(library: SkillLibrary, tmp_path: Path) -> None:
    """An import made before a release shipped a skill of its name."""
    name = "triton-mask-block-tail"
    import_skill(library, tmp_path, replace(LEARNED, name=name))
    assert library.show(name).summary.state == "candidate"
    library.sync_builtin(SHIPPED)
    shipped = library.show(name)
    assert (shipped.summary.tier, shipped.summary.state) == ("curated", "active")
    assert shipped.body == read_skill(SHIPPED / name).body.strip()
    assert library.sync_builtin(SHIPPED).changed == 0
    with pytest.raises(Conflict, match="already here as curated"):
        import_skill(library, tmp_path, replace(LEARNED, name=name))


def test_skill_no_longer_shipped_is_retired_and_can_return(
    library: SkillLibrary, tmp_path: Path
) -> None:
    copy = tmp_path / "library"
    shutil.copytree(SHIPPED, copy)
    library.sync_builtin(copy)
    shutil.rmtree(copy / "triton-mask-block-tail")
    assert library.sync_builtin(copy).retired == 1
    assert library.show("triton-mask-block-tail").summary.state == "retired"
    library.sync_builtin(SHIPPED)
    detail = library.show("triton-mask-block-tail")
    assert [event.to_state for event in detail.events] == ["active", "retired", "active"]


def test_shipped_skill_without_source_is_refused(library: SkillLibrary, tmp_path: Path) -> None:
    bare = SkillFile("bare", "Use when.", "## Steps\n\nDo.")
    write_skill(bare, tmp_path)
    with pytest.raises(InvalidKnowledge, match="no source"):
        library.sync_builtin(tmp_path)
    assert library.list() == []


# -- import and export


def test_import_is_a_candidate_without_its_claims(library: SkillLibrary, tmp_path: Path) -> None:
    folder = written(LEARNED, tmp_path / "in")
    imported = library.import_folder(folder, actor="ann")
    assert (imported.outcome, imported.state) == ("created", "candidate")
    assert {"kb.status", "kb.evidence", "references/evidence.json", "scripts/run.sh"} == {
        *imported.dropped
    }
    detail = library.show(LEARNED.name)
    assert (detail.summary.tier, detail.summary.evidence) == ("learned", "not measured here")
    assert detail.evidence == ()
    assert detail.moves[0]["id"] == "widen"
    assert detail.files == {"references/notes.md": "Notes.\n"}
    assert detail.events[0].actor == "ann"
    assert library.import_folder(folder, actor="ann").outcome == "unchanged"


def test_export_import_export_is_byte_equal(library: SkillLibrary, tmp_path: Path) -> None:
    import_skill(library, tmp_path)
    (first,) = library.export(tmp_path / "one", [LEARNED.name])
    other = SkillLibrary(stocked(tmp_path / "other"))
    other.import_folder(first, actor="bob")
    (second,) = other.export(tmp_path / "two", [LEARNED.name])
    assert files(first) == files(second)
    assert set(files(first)) == {"SKILL.md", "references/moves.json", "references/notes.md"}


def test_import_drops_only_state_and_evidence(
    library: SkillLibrary, catalog: Catalog, tmp_path: Path
) -> None:
    import_skill(library, tmp_path)
    measure(catalog, LEARNED.name)
    set_state(library, LEARNED.name, "active", actor="ann", reason="measured")
    (first,) = library.export(tmp_path / "one", [LEARNED.name])
    assert "n=12;speedup_lcb=1.18;shapes=1;runs=1" in (first / "SKILL.md").read_text()
    assert "references/evidence.json" in files(first)
    other = SkillLibrary(stocked(tmp_path / "other"))
    other.import_folder(first, actor="bob")
    (second,) = other.export(tmp_path / "two", [LEARNED.name])
    before, after = read_skill(first).metadata, read_skill(second).metadata
    changed = {key for key in {*before, *after} if before.get(key) != after.get(key)}
    assert changed == {"kb.status", "kb.evidence", "kb.verified-at"}


def test_exported_library_passes_reference_validator(library: SkillLibrary, tmp_path: Path) -> None:
    library.sync_builtin(SHIPPED)
    import_skill(library, tmp_path)
    in_use = library.export(tmp_path / "out")
    assert {folder.name for folder in in_use} == {s.name for s in library.list(states=["active"])}
    assert len(in_use) == len(skill_folders(SHIPPED))  # the imported skill is a candidate
    folders = [*in_use, *library.export(tmp_path / "out", [LEARNED.name])]
    assert {folder.name: problems for folder in folders if (problems := validate(folder))} == {}


def test_import_never_overwrites_active_skill(library: SkillLibrary, tmp_path: Path) -> None:
    library.sync_builtin(SHIPPED)
    name = "triton-mask-block-tail"
    shipped = read_skill(SHIPPED / name)
    forged = SkillFile(**{**vars(shipped), "body": "Ignore all masks."})
    with pytest.raises(Conflict) as error:
        import_skill(library, tmp_path, forged)
    assert "another name" in error.value.hint
    assert library.show(name).body == shipped.body


@pytest.mark.parametrize(
    ("metadata", "error"),
    [
        ({"kb.signals": "memory_bund"}, UnknownSignal),
        ({"kb.hardware": "h900"}, UnknownHardware),
        ({"kb.predicate": "metrics.nobody_knows > 1"}, InvalidKnowledge),
        ({"kb.predicate": "signals.memory_bund"}, UnknownSignal),
    ],
)
def test_unknown_ids_are_refused(
    library: SkillLibrary, tmp_path: Path, metadata: dict[str, str], error: type[Exception]
) -> None:
    with pytest.raises(error):
        import_skill(library, tmp_path, SkillFile("odd", "Use when.", "Do.", metadata=metadata))


def test_meaningless_scopes_are_reported(library: SkillLibrary, tmp_path: Path) -> None:
    scoped = library.import_folder(write_skill(LEARNED, tmp_path / "in"), actor="ann")
    assert scoped.warnings == ()
    bare = replace(LEARNED, name="talon-wait", metadata={"kb.ops": "matmul"}, files={})
    taken = library.import_folder(write_skill(bare, tmp_path / "in"), actor="ann")
    assert len(taken.warnings) == 1 and "kb.hardware, kb.languages, kb.signals" in taken.warnings[0]
    again = library.import_folder(tmp_path / "in" / "talon-wait", actor="ann")
    assert (again.outcome, again.warnings) == ("unchanged", taken.warnings)
    assert library.show("talon-wait").warnings == taken.warnings
    odd = replace(bare, name="talon-load", metadata={"kb.languages": "trition,cuda"})
    (warning,) = library.import_folder(write_skill(odd, tmp_path / "in"), actor="ann").warnings
    assert "'trition'" in warning and "triton" in warning.partition("Did you mean")[2]


def test_invalid_moves_are_refused(library: SkillLibrary, tmp_path: Path) -> None:
    for text in (b"not json", b"{}", b'[{"id": "x"}]'):
        odd = SkillFile("odd", "Use when.", "Do.", files={"references/moves.json": text})
        with pytest.raises(InvalidKnowledge):
            import_skill(library, tmp_path, odd)


# -- states


def test_learned_skill_is_not_activated_unmeasured(
    library: SkillLibrary, catalog: Catalog, tmp_path: Path
) -> None:
    import_skill(library, tmp_path)
    with pytest.raises(Conflict, match="no measurement"):
        set_state(library, LEARNED.name, "active", actor="ann", reason="looks good")
    measure(catalog, LEARNED.name)
    event = set_state(library, LEARNED.name, "active", actor="ann", reason="measured")
    assert (event.sequence, event.from_state, event.to_state) == (2, "candidate", "active")


def test_new_text_needs_new_evidence(
    library: SkillLibrary, catalog: Catalog, tmp_path: Path
) -> None:
    import_skill(library, tmp_path)
    measure(catalog, LEARNED.name)
    revised = SkillFile(**{**vars(LEARNED), "body": "Other advice."})
    import_skill(library, tmp_path, revised)
    assert library.show(LEARNED.name).summary.version == 2
    with pytest.raises(Conflict, match="version 2"):
        set_state(library, LEARNED.name, "active", actor="ann", reason="was measured once")


def test_states_follow_life_cycle(library: SkillLibrary, tmp_path: Path) -> None:
    import_skill(library, tmp_path)
    with pytest.raises(Conflict) as error:
        set_state(library, LEARNED.name, "suspect", actor="ann", reason="hm")
    assert "active, quarantined, retired" in error.value.hint
    with pytest.raises(InvalidRequest):
        set_state(library, LEARNED.name, "retired", actor="ann", reason=" ")
    set_state(library, LEARNED.name, "retired", actor="ann", reason="wrong")
    assert [e.event for e in library.show(LEARNED.name).events] == ["created", "state"]


# -- finding


def test_unknown_name_error_lists_nearest(library: SkillLibrary, tmp_path: Path) -> None:
    import_skill(library, tmp_path)
    with pytest.raises(NotFound) as error:
        library.show("h100-widen-tile-gem")
    assert LEARNED.name in error.value.hint


def test_lists_by_state_tier_hardware_and_signal(library: SkillLibrary, tmp_path: Path) -> None:
    library.sync_builtin(SHIPPED)
    import_skill(library, tmp_path)
    everything = {s.name for s in library.list()}
    shipped = everything - {LEARNED.name}
    assert {s.name for s in library.list(states=["candidate"])} == {LEARNED.name}
    assert {s.name for s in library.list(tier="curated")} == shipped
    hopper = {s.name for s in library.list(hardware="H100")}
    assert LEARNED.name in hopper and any(name.startswith("cuda-tma") for name in hopper)
    lineage = {"a100", "ampere", "nvidia"}
    scoped = {s.name: s.scopes for s in library.list(tier="curated")}
    fitting = {
        name
        for name, scopes in scoped.items()
        if (not scopes.hardware or {*scopes.hardware} & lineage)
        and (not scopes.languages or {*scopes.languages} & {"triton", "cuda"})
    }
    assert {s.name for s in library.list(hardware="a100")} == fitting < shipped
    assert not [name for name in fitting if name.startswith(("nki-", "cpp-", "metal-", "pallas-"))]
    in_nki = {s.name for s in library.list(language="nki")}
    assert in_nki == {n for n, s in scoped.items() if not s.languages or "nki" in s.languages}
    assert library.list(hardware="a100", language="nki") == [
        s for s in library.list(hardware="a100") if not s.scopes.languages
    ]
    with pytest.raises(InvalidRequest, match="names the language") as refused:
        library.list(language="trition")
    assert "triton" in refused.value.hint
    underused = {s.name for s in library.list(signal="tensor_core_underuse")}
    assert LEARNED.name in underused and underused < everything
    assert library.list(access_scope=AccessScope("team-a")) == []
    with pytest.raises(InvalidRequest):
        library.list(states=["great"])
    with pytest.raises(UnknownSignal):
        library.list(signal="memory_bund")


FITTING: Sequence[tuple[dict[str, Any], bool]] = (
    ({}, True),
    ({"signals": ["memory_bound"]}, False),
    ({"signals": ["memory_bound", "tensor_core_underuse"]}, True),
    ({"hardware_scopes": ("any",)}, False),
    ({"hardware_scopes": ("hopper", "nvidia", "any")}, False),
    ({"hardware_scopes": ("a100", "nvidia", "any")}, False),
    ({"hardware_scopes": None}, True),
    ({"op": "softmax"}, False),
    ({"op": "matmul", "dtype": "float16", "languages": ["triton"]}, True),
    ({"dtype": "fp32"}, False),
    ({"languages": ["cuda"]}, False),
    ({"states": ("active",)}, False),
    ({"access": AccessScope("team-a")}, False),
)


def test_answers_omit_inapplicable_skills(
    library: SkillLibrary, catalog: Catalog, tmp_path: Path
) -> None:
    import_skill(library, tmp_path)
    knowledge = SnapshotStore(catalog, "model").current().knowledge
    request: dict[str, Any] = {
        "signals": [],
        "hardware_scopes": ("h100", "hopper", "nvidia", "any"),
        "op": None,
        "languages": None,
        "dtype": None,
        "states": ("candidate", "active"),
    }
    for given, fits in FITTING:
        skills = knowledge.fitting_skills(**{**request, **given})
        assert [s.head.name for s in skills] == ([LEARNED.name] if fits else []), given


def test_history_is_not_readable_from_another_scope(
    library: SkillLibrary, catalog: Catalog, tmp_path: Path
) -> None:
    import_skill(library, tmp_path)
    with catalog.read() as connection:
        skill = get_skill(connection, LEARNED.name, ALL_ACCESS)
        assert skill.id.startswith("sk_")
        assert events_of(connection, skill.id, AccessScope("team-a")) == []
        assert connection.execute(sa.text("SELECT count(*) FROM skill_events")).scalar() == 1
