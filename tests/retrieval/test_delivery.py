"""Whole kernels in contexts: selected by operator, shortened by value, delivered for every chip,
language and operator with a shipped kernel; and what strong models do not need.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.cli.target import CommandTarget, read_settings
from ingestion.builtin.samples import shipped_samples
from kb.answers import Answer
from kb.errors import InvalidKnowledge, Unavailable
from kb.prompt_tokens import count_tokens
from kb.scope import ALL_ACCESS
from retrieval import readers
from retrieval.answer import AnswerConfig, answer
from retrieval.compose.context import load_surprises
from retrieval.compose.kernels import (
    REMARK,
    KernelRequest,
    chosen_kernels,
    cut_code,
    kernels_of,
    main_parts,
    parts_of,
)
from retrieval.coverage import delivered_kernels
from retrieval.knowledge_base import KnowledgeBase
from retrieval.operators import OperatorTraits, load_operators
from retrieval.readers import CommonKnowledge, CommonMark, gains, reader_of, uplift_of
from retrieval.request import RetrieveRequest
from tests.catalogs import copy_data_dir
from tests.shared import BUILTIN

SAMPLES = shipped_samples(BUILTIN)
CHIPS = ("h100", "b200", "mi355x", "trainium2", "riscv-v-128", "apple-m4", "gaudi3")
EIGHT = [(chip, op) for chip in ("h100", "b200", "mi355x") for op in ("matmul", "attention")]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, read_builtin: Path) -> Iterator[KnowledgeBase]:
    home = copy_data_dir(read_builtin, tmp_path_factory.mktemp("delivery"))
    local = CommandTarget(read_settings(home))
    yield local.services
    local.close()


def ask(base: KnowledgeBase, **given: object) -> Answer:
    request = RetrieveRequest(**{"max_tokens": 24_000, **given})  # type: ignore[arg-type]
    snapshot = base.retriever.snapshots.current()
    return answer(snapshot, request, AnswerConfig(embed=None)).answer


def kinds(op: str | None, *texts: str, **given: object) -> tuple[str, ...]:
    return load_operators().of(op, texts, **given).kinds  # type: ignore[arg-type]


# -- operator traits


@pytest.mark.parametrize(
    ("op", "kind"),
    [
        ("GEMM", "product"),
        ("bmm", "batched_product"),
        ("moe", "grouped_product"),
        ("fused_moe_w4a16", "grouped_product"),
        ("w4a16", "quantised_product"),
        ("spmm", "sparse_product"),
        ("swiglu", "fused_mlp"),
        ("hstu", "attention_pointwise"),
        ("window_sink_attention", "attention_window"),
        ("varlen attention", "attention_jagged"),
        ("flash_attention_backward", "attention_backward"),
        ("paged_attention", "attention_decode"),
        ("MLA decode", "attention_latent"),
        ("gated_delta_rule", "linear_attention"),
        ("selective scan", "state_space"),
        ("causal_conv1d", "depthwise_convolution"),
        ("int4 TBE", "embedding_bag"),
        ("wukong", "factorization_machine"),
        ("mbdt", "bucketize"),
        ("segment_sum", "jagged"),
        ("top_k", "sort"),
        ("rms_norm", "norm"),
    ],
)
def test_operator_is_recognised_by_its_names(op: str, kind: str) -> None:
    assert kinds(op)[0] == kind


def test_operator_traits_from_words_dtypes_sizes_and_source() -> None:
    assert kinds("attention", "for a paged cache") == ("attention_decode",)
    assert kinds("attention", sizes={"query_length": 1}) == ("attention_decode",)
    assert kinds("attention", sizes={"query_length": 4096}) == ("attention_forward",)
    assert kinds("matmul", dtypes=("float8_e4m3fn",)) == ("quantised_product",)
    assert kinds("matmul", sizes={"product_narrow": 4}) == ("skinny_product",)
    assert kinds(None, "write a grouped GEMM for experts") == ("grouped_product",)
    assert kinds(None, "why is my loop slow?") == ()
    assert load_operators().of("moe", dtypes=("fp8",)) == OperatorTraits(
        ("grouped_product",), "fp8"
    )


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: s.path)
def test_source_of_a_shipped_kernel_matches_its_operator(sample) -> None:  # type: ignore[no-untyped-def]
    operators = load_operators()
    stated = operators.of_title(sample.operator, sample.title, sample.shapes).kinds
    read = operators.of(None, code=sample.code).kinds
    assert not read or operators.relation(stated[0], read) > 0, (stated, read)


def test_title_may_name_two_operators() -> None:
    both = load_operators().of_title("softmax", "RMS norm and softmax of rows")
    assert both.kinds == ("softmax", "norm")
    one = load_operators().of_title("matmul", "BF16 GEMM with priorities and scheduling barriers")
    assert one.kinds == ("product",)


# -- cutting


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: s.path)
def test_shortened_kernel_has_its_main_loop_and_names_rest(sample) -> None:  # type: ignore[no-untyped-def]
    parts = parts_of(sample.code, sample.language)
    assert "\n".join(part.text for part in parts) == "\n".join(sample.code.splitlines())
    every = count_tokens(sample.code)
    main = main_parts(sample.code, sample.language)
    assert main and all(part in sample.code for part in main)
    needed = sum(count_tokens(part) + REMARK + 2 for part in main) + REMARK
    cut = cut_code(sample.code, sample.language, min(needed, every))
    assert cut.text and count_tokens(cut.text) <= needed
    if needed < every:
        assert cut.main and all(part in cut.text for part in main)
        left_out = {part.name for part in parts if part.name} - set(cut.without)
        assert all(name in cut.text for name in left_out)
    small = cut_code(sample.code, sample.language, needed // 2)
    assert count_tokens(small.text) <= needed // 2 and not small.main


# -- delivery


@pytest.mark.slow(seconds=15)
@pytest.mark.parametrize("task", ["write", "speed_up"])
def test_every_shipped_kernel_reaches_contexts_of_its_operator(
    base: KnowledgeBase, task: str
) -> None:
    """Complete answers for some chips; the next test checks the selection for all of them."""
    chips = CHIPS if task == "write" else CHIPS[:1]
    for chip in chips:
        table = delivered_kernels(base, hardware=chip, task=task)  # type: ignore[arg-type]
        assert len(table.kernels) >= 2
        missing = [cell for cell in table.kernels if cell.arrives not in ("whole", "main loop")]
        assert not missing and table.holes == 0
        assert all(cell.tokens <= 24_000 for cell in table.kernels)


@pytest.mark.slow
def test_kernel_of_operator_kind_is_first_on_every_chip(base: KnowledgeBase) -> None:
    snapshot = base.retriever.snapshots.current()
    chips = snapshot.knowledge.chips()
    cells = 0
    for chip, spec in chips.all().items():
        lineage, facts = chips.lineage(chip), chips.effective_facts(chip).keys()
        for language in spec.languages:
            offered = kernels_of(snapshot, lineage, (language,), ALL_ACCESS)
            for kind in sorted({kind for kernel in offered for kind in kernel.traits.kinds}):
                traits = OperatorTraits((kind,))
                wanted = KernelRequest(traits, lineage, (language,), facts, ALL_ACCESS)
                chosen = chosen_kernels(snapshot, wanted)
                if not chosen:  # the only kernel needs an extension that the chip lacks
                    assert all("AMX" in k.title for k in offered if kind in k.traits.kinds)
                    continue
                assert kind in chosen[0].traits.kinds or "amx" in str(offered).lower()
                assert chosen[0].language == language
                cells += 1
    assert cells > 400


@pytest.mark.parametrize(("chip", "op"), EIGHT)
@pytest.mark.slow
def test_audited_cells_are_filled(base: KnowledgeBase, chip: str, op: str) -> None:
    for language in ("hip",) if chip == "mi355x" else ("cuda", "triton"):
        got = ask(base, hardware=chip, language=language, op=op, task="write")
        samples = [part for part in got.parts if part.kind == "sample"]
        assert sum(part.tokens for part in samples) > 1_000
        order = [part.kind for part in got.parts]
        assert order.index("sample") < order.index("guidance")


@pytest.mark.slow
def test_kernel_of_own_lineage_is_first(base: KnowledgeBase) -> None:
    def first(chip: str, language: str, op: str) -> str:
        got = ask(base, hardware=chip, language=language, op=op, task="write")
        return next(part.citation for part in got.parts if part.kind == "sample")

    assert "wgmma" in first("h200", "cuda", "matmul")
    assert "tcgen05" in first("b200", "cuda", "matmul")
    assert "memory to LDS" in first("mi355x", "hip", "matmul")
    assert "MFMA" in first("mi300x", "hip", "matmul")
    assert "AMX" in first("granite-rapids", "cpp", "matmul")
    assert "amx" not in first("zen5", "cpp", "matmul").lower()
    assert "NVFP4" in first("b200", "triton", "nvfp4_gemm")


@pytest.mark.slow
def test_small_budget_gets_main_loop_and_reference_to_rest(base: KnowledgeBase) -> None:
    got = ask(base, hardware="h100", language="cuda", op="matmul", task="write", max_tokens=6_000)
    assert got.context_tokens <= 6_000
    assert "left out here: " in got.context and "`kernlore knowledge samples" in got.context
    kernel = next(s for s in SAMPLES if s.file == "gemm-tma-wgmma-cooperative.cu")
    assert all(part in got.context for part in main_parts(kernel.code, "cuda"))


@pytest.mark.slow
def test_listed_names_are_those_used_by_kernels(base: KnowledgeBase) -> None:
    got = ask(base, hardware="h100", language="cuda", op="attention", task="write")
    names = got.context.partition("## Names of the language")[2]
    assert "mbarrier.arrive.expect_tx" in names.partition("\n## ")[0]


@pytest.mark.slow
def test_recommendation_operators_have_their_section(base: KnowledgeBase) -> None:
    for op, title in (
        ("factorization_machine", "half of square of sum"),
        ("map_id", "direct table, hash table or sorted list"),
        ("truncate", "Truncation of a batch of lists"),
    ):
        got = ask(base, hardware="h200", language="triton", op=op, task="write")
        guides = [part.citation for part in got.parts if part.kind == "guidance"]
        assert title in guides[0], (op, guides[:2])


# -- unexpected behaviour


def test_every_surprise_names_shipped_section() -> None:
    texts = {}
    for path in (BUILTIN / "hardware").glob("*/*.md"):
        text = path.read_text(encoding="utf-8")
        title = next(line for line in text.splitlines() if line.startswith("title:"))
        texts[title.partition(":")[2].strip().strip('"')] = text
    for row in load_surprises():
        assert f"\n## {row.section}\n" in texts[row.document], row.section


@pytest.mark.slow
def test_surprises_come_first_and_only_for_their_chip(base: KnowledgeBase) -> None:
    got = ask(base, hardware="h100", language="cuda", op="matmul", task="write")
    assert got.parts[0].kind == "surprises"
    assert got.context.index("MEMBAR.ALL.GPU") < got.context.index("shared memory per block:")
    other = ask(base, hardware="mi300x", language="hip", op="matmul", task="write")
    assert "MEMBAR.ALL.GPU" not in other.context and "32 banks" in other.context


@pytest.mark.slow
def test_rates_of_vector_and_matrix_units_have_different_names(base: KnowledgeBase) -> None:
    """AWS rates a Trainium2 at 181 TFLOP/s in FP32; 8 are those of its Vector Engines."""
    got = ask(base, hardware="trainium2", language="nki", op="attention", task="write")
    assert "- peak vector fp32: 8 Tflop/s" in got.context
    assert "- peak matrix fp32: 181 Tflop/s" in got.context


# -- model classes


@pytest.mark.slow
def test_strong_model_gets_short_context_without_measured_gain(base: KnowledgeBase) -> None:
    about: dict[str, object] = {"hardware": "h200", "language": "cuda", "op": "attention"}
    strong = ask(base, **about, task="write", reader="strong")
    assert strong.context_tokens <= 2_000 and "`setmaxnreg` needs" in strong.context
    assert not [part for part in strong.parts if part.kind == "sample"]
    named = [part for part in strong.parts if part.kind == "description"]
    assert len(named) == 1 and f"id {named[0].id}." in strong.context
    assert "```" not in strong.context and "The closest follow" not in strong.context
    full = ask(base, **about, task="write")
    assert full.context == ask(base, **about, task="write", reader="small").context
    assert full.context_tokens > 6_000
    log = "ptxas error : Entry function 'k' uses too much shared data (0x41000 bytes, 0x38c00 max)"
    repair = ask(base, **about, log=log, reader="strong")
    assert repair.context_tokens <= 2_000 and "0x41000" in repair.context


@pytest.mark.slow
def test_unknown_language_is_explained_to_every_model(base: KnowledgeBase) -> None:
    about = {"hardware": "trainium2", "language": "nki", "op": "matmul", "task": "write"}
    strong = ask(base, **about, reader="strong")
    assert strong.context == ask(base, **about).context
    assert gains(strong.uplift) and strong.uplift[0].without == 0


@pytest.mark.slow
def test_answer_has_measured_gain_of_its_context(base: KnowledgeBase) -> None:
    got = ask(base, hardware="h200", language="triton", op="softmax", task="write")
    assert [row.operator for row in got.uplift] == ["softmax", "any", "any"]
    newest = got.uplift[1]
    assert (newest.with_context, newest.without, newest.date) == (4.90, 4.93, "2026-11-28")
    assert not gains(got.uplift)  # not significant on one problem
    assert ask(base, hardware="mi300x", language="hip", op="matmul", task="write").uplift == ()
    assert uplift_of(("h100",), "triton", (), "small", False) == ()


def test_model_class_follows_from_its_name() -> None:
    assert reader_of("anthropic/claude-opus-4-5") == "strong"
    assert reader_of("openai/gpt-5-mini") == "small"
    assert reader_of("hosted_vllm/Qwen2.5-Coder-7B-Instruct") == "small"
    assert reader_of("openai/scripted") is None


@pytest.mark.slow
def test_known_passages_are_omitted_only_for_their_model_class(
    base: KnowledgeBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    about: dict[str, object] = {"hardware": "h200", "language": "cuda", "signal": "bank_conflict"}
    before = ask(base, **about, reader="strong", op="matmul")
    cited = next(part for part in before.parts if part.kind == "hardware")
    document, _, section = cited.citation.partition(" (v1), ")
    mark = CommonMark(document, section, "", "strong", "a-model", "2026-11-29")
    known = CommonKnowledge([mark])
    monkeypatch.setattr(
        "retrieval.compose.composer.common_for",
        lambda reader: known if reader == "strong" else CommonKnowledge(()),
    )
    after = ask(base, **about, reader="strong", op="matmul")
    assert cited.citation not in [part.citation for part in after.parts]
    full = ask(base, **about, op="matmul")
    assert cited.citation in [part.citation for part in full.parts]


def test_known_statement_is_cut_out_of_its_section() -> None:
    mark = CommonMark("D", "S", "Warps have 32 lanes.", "strong", "m", "2026-11-29", "How many?")
    known = CommonKnowledge([mark])
    text = "A block is cut into warps. Warps have\n32 lanes. Banks are 4 bytes."
    assert known.without("D", text) == "A block is cut into warps. Banks are 4 bytes."
    assert known.without("E", text) == text and not known.has("D", "S")


def test_shipped_marks_are_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for mark in readers.load_marks():
        assert mark.reader in ("strong", "small") and mark.model and mark.date
    broken = tmp_path / "common.json"
    broken.write_text('[{"document": "D"}]')
    monkeypatch.setattr(readers, "COMMON_FILE", broken)
    with pytest.raises(InvalidKnowledge, match=r"common\.json: .*section"):
        readers.load_marks()


@pytest.mark.slow
def test_kernels_of_other_operators_do_not_follow_own_ones(base: KnowledgeBase) -> None:
    got = ask(base, hardware="h100", language="cuda", op="attention", task="write")
    titles = [part.citation for part in got.parts if part.kind == "sample"]
    assert titles and not any("ecode" in title for title in titles)
    assert "No whole kernel for this operator" not in got.context


@pytest.mark.slow
def test_missing_kernel_is_reported_before_related_ones(base: KnowledgeBase) -> None:
    got = ask(base, hardware="b200", language="cuda", op="attention_backward", task="write")
    head, _, rest = got.context.partition(
        "No whole kernel for this operator (attention, backward, in cuda)"
    )
    assert rest and "```cuda" not in head and "```cuda" in rest


@pytest.mark.slow
def test_guides_and_names_are_those_of_operator(base: KnowledgeBase) -> None:
    got = ask(base, hardware="h100", language="cuda", op="matmul", task="write")
    guides = [part.citation for part in got.parts if part.kind == "guidance"]
    assert guides and all("Matmul" in citation for citation in guides)
    code = "\n".join(re.findall(r"```cuda\n(.*?)```", got.context, re.S))
    names = got.context.partition("## Names of the language")[2].partition("\n## ")[0]
    listed = re.findall(r"^- `(?:\w+ )*(\w+)\(", names, re.M)
    assert listed and all(name in code for name in listed)


def test_directory_without_documents_has_hint_on_loading(tmp_path: Path) -> None:
    target = CommandTarget(read_settings(tmp_path))
    try:
        with pytest.raises(Unavailable) as raised:
            delivered_kernels(target.services)
    finally:
        target.close()
    assert "ingest --builtin" in (raised.value.hint or "")


# -- skills and guides left out beside a kernel


def test_skills_beside_kernel_are_of_operator_and_not_shown_twice(base: KnowledgeBase) -> None:
    hstu = ask(base, hardware="h100", language="triton", op="hstu", task="write")
    assert "triton-online-softmax-attention" not in hstu.context  # a kind with softmax
    ffn = ask(base, hardware="h200", language="triton", op="ffn", task="write")
    assert "Recipe triton-" not in ffn.context  # beside a sample those that have not helped
    product = ask(base, hardware="b200", language="triton", op="bmm", task="write")
    assert "Recipe triton-tiled-batched-matmul" in product.context
    assert "- triton-tiled-batched-matmul (" not in product.context


def test_guides_beside_kernel_name_no_unrelated_operator(base: KnowledgeBase) -> None:
    product = ask(base, hardware="h100", language="cuda", op="matmul", task="write")
    assert "Convolution as a matmul" not in product.context
    assert "Matmul tiling and epilogues" in product.context
    hstu = ask(base, hardware="h100", language="triton", op="hstu", task="write")
    guides = [part.citation for part in hstu.parts if part.kind == "guidance"]
    assert guides and all(title.startswith("Attention") for title in guides)  # of its kin
    nki = ask(base, hardware="trainium2", language="nki", op="attention", task="write")
    assert "Attention on a CPU" not in nki.context


def test_question_about_code_gets_sections_that_name_it(base: KnowledgeBase) -> None:
    about = {"hardware": "h100", "language": "cuda"}
    got = ask(base, **about, query="ptxas reports C7514, wgmma is serialised. Why?")
    sections = [part.id for part in got.parts if part.kind in ("hardware", "guidance")]
    for number in sections:
        text = got.context.partition(f'id="{number}"')[2].partition("</excerpt>")[0]
        assert "C7514" in text
    assert sections
    other = ask(base, **about, query="ptxas reports C9999, wgmma is serialised. Why?")
    assert [part for part in other.parts if part.kind == "hardware"]


def test_checks_of_kernel_are_stated_once(base: KnowledgeBase) -> None:
    got = ask(base, hardware="h100", language="triton", op="mamba", task="write")
    assert "Checked: " not in got.context and "right (Triton" in got.context


def test_strong_reader_is_not_described_a_recipe_that_was_slower(base: KnowledgeBase) -> None:
    given: dict[str, object] = {"op": "layernorm", "language": "triton", "task": "write"}
    context = ask(base, hardware="h200", reader="strong", **given).context
    assert "triton-resident-row-layernorm" not in context
    # It stays a kernel for a reader that needs one, with what was measured instead of "never run".
    whole = ask(base, hardware="h200", reader="small", **given).context
    head = next(line for line in whole.splitlines() if "harms: " in line)
    assert "never run" not in head
