"""Facts in running text: sentences that state one, and sentences that do not."""

from __future__ import annotations

import pytest

from ingestion.findings.facts import (
    UNCLEAR_SUBJECT,
    propose_facts,
    read_sentence,
    statements,
    unread_sentences,
)
from ingestion.formats import parse

KB, MB, GB = 2**10, 2**20, 2**30


def stated(sentence: str) -> dict[str, float | int]:
    return {s.key: s.value for s in read_sentence(sentence)}


@pytest.mark.parametrize(
    ("sentence", "facts"),
    [
        ("Each core has 1464 KiB of L1.", {"l1_size": 1464 * KB}),
        ("Size of Vector register (VLEN) = 4096 bit", {"vector_bits": 4096}),
        ("The size of each vector register is 512 bits.", {"vector_bits": 512}),
        ("Each tile has 624 KB of scratchpad RAM.", {"shared_memory_per_unit": 624 * KB}),
        (
            "Each core has a scratchpad of 256 KiB, of which one workgroup may take 192 KiB.",
            {"shared_memory_per_unit": 256 * KB, "shared_memory_per_block": 192 * KB},
        ),
        (
            "2 HBM stacks with a total device memory capacity of 32GiB and bandwidth of 820 GB/s.",
            {"memory_size": 32 * GB, "memory_bandwidth": 820e9},
        ),
        (
            "A NeuronCore-v2 consists of two memories, a 24MiB SBUF for data and a 2MiB PSUM.",
            {"shared_memory_per_unit": 24 * MB},
        ),
        ("The X9 ASIC contains 80 tiles.", {"compute_units": 80}),
        ("The X90 has 132 SMs and 80 GB of HBM3.", {"compute_units": 132, "memory_size": 80 * GB}),
        ("The chip runs at 1.85 GHz.", {"clock_boost": 1.85e9}),
        (
            "It has HBM2e with 64 GB at 1.6 TB/s.",
            {"memory_size": 64 * GB, "memory_bandwidth": 1.6e12},
        ),
        ("A warp has 32 threads.", {"warp_size": 32}),
        ("Threads run in wavefronts of 64 work-items.", {"warp_size": 64}),
        ("The L2 cache has a capacity of 50 MB.", {"l2_size": 50 * MB}),
        ("L2 cache size: 50 MB", {"l2_size": 50 * MB}),
        (
            "The peak memory bandwidth of the attached HBM2 is 1.2 TB per second.",
            {"memory_bandwidth": 1.2e12},
        ),
        (
            "The peak memory bandwidth of the GPU is 3.2 TB/s (1.6 TB/s per die).",
            {"memory_bandwidth": 3.2e12},
        ),
        (
            "There are a total of 120 compute units, organized in eight shader engines.",
            {"compute_units": 120},
        ),
        (
            "An SM holds up to 64 warps, 2,048 threads and 32 blocks.",
            {"max_warps_per_unit": 64, "max_threads_per_unit": 2048, "max_blocks_per_unit": 32},
        ),
        ("A block may contain up to 1024 threads.", {"max_threads_per_block": 1024}),
        ("A thread can use at most 255 registers.", {"max_registers_per_thread": 255}),
        ("Shared memory is organized into 32 banks.", {"shared_memory_banks": 32}),
        ("Board power is up to 700 W.", {"power": 700}),
        ("The GPU is composed of eight XCDs.", {"chiplets": 8}),
        ("Four stacks of HBM2 for a total of 32 GB feed the GPU.", {"memory_size": 32 * GB}),
        (
            "The X90 has 132 SMs, HBM3 at 3.35 TB/s and 700 W.",
            {"compute_units": 132, "memory_bandwidth": 3.35e12},
        ),
        ("Shared memory per SM: 48 KB", {"shared_memory_per_unit": 48 * KB}),
        ("Max threads per SM: 2048", {"max_threads_per_unit": 2048}),
        ("Memory bandwidth: 3.35 TB/s", {"memory_bandwidth": 3.35e12}),
        ("The vector length is 1024 bits.", {"vector_bits": 1024}),
        ("The vector registers are 128 bytes wide.", {"vector_bits": 1024}),
        ("HVX vector width 1024 bits", {"vector_bits": 1024}),
        ("The streaming vector length (SVL) is 512 bits.", {"vector_bits": 512}),
        ("Best are 64-element vectors for 16-bit data.", {"vector_bits": 1024}),
        ("The vector extension adds 32 vector registers to the ISA.", {"vector_registers": 32}),
        ("The clock is 1.4 GHz.", {"clock_boost": 1.4e9}),
    ],
)
def test_facts_of_a_sentence(sentence: str, facts: dict[str, float]) -> None:
    assert stated(sentence) == facts


@pytest.mark.parametrize(
    "sentence",
    [
        "For example, each core has 48 KB of L1.",
        "If each core has 48 KB of L1, the tile fits.",
        "Each core has 48 KB more L1 than before.",
        "The L2 cache is larger than 40 MB.",
        "The L2 cache is about 50 MB.",
        "The L2 cache is up to 50 MB.",
        "The L2 cache is 40 to 50 MB.",
        "The L2 cache is 40 MB or 50 MB.",
        "The L2 cache is 1 MB in this product and 2 MB in that.",
        "The L2 cache is 2 x 25 MB.",
        "The L2 cache is 4 MB per die.",
        "All units of the die share a 4 MB L2 cache.",
        "The L2 cache has a hit rate of 50.",
        "The L1 instruction cache of each core is 32 KB.",
        "The measured memory bandwidth is 1.4 TB/s.",
        "Each memory channel provides 2 GB of GDDR6 memory.",
        "Two GPUs have 128 GB of HBM memory together, and both devices share it.",
        "The memory clock runs at 1.2 GHz.",
        "A cycle counter exists in the reference domain, running at 27 MHz.",
        "The peak FP8 performance is 3958 TFLOPS with sparsity.",
        "The peak FP64 performance per die is 22.6 TFLOPS.",
        "The output is split into 32 tiles.",
        "The chip has 16 DRAM tiles.",
        "The first 16 threads of a warp load the row.",
        "Software can write to the low 1 MiB of L1.",
        "Set `l2_cache_size = 50 MB` in the L2 cache section.",
        "The kernel uses 48 KB of shared memory per SM.",
        "Is the L2 cache 50 MB?",
        "In CPX each device has 38 compute units.",
        "In compute mode 2 the device has 38 compute units.",
        "Threads per block: 256",
        "L2 cache: 4 MB per die",
        "Vector engines deliver a total of 1 TFLOPS of FP32 computations.",
        "The vector unit delivers 1 TFLOPS of FP32.",
        "The UltraServers deliver 314 TB/s of HBM bandwidth.",
        "There is an area of 256 KB of L1 space.",
        "The QPU is a 16-way 32-bit SIMD processor.",
        "Each core has a 4-wide 64 bit SIMD datapath.",
        "The unit drives 8 lanes of a 32-bit vector processor.",
    ],
)
def test_sentences_without_facts(sentence: str) -> None:
    assert stated(sentence) == {}


def test_list_is_read_with_its_introduction() -> None:
    text = b"""# The chip

Each X9 ASIC contains:

* [80x Compute tile](tile.md), also known as workers. Either 64 or 80 are available.
* 18x DRAM tile, together 12 GiB of GDDR6
"""
    facts = propose_facts(parse(text, "chip.md").elements)
    assert [(f.key, f.value, f.text_value) for f in facts] == [
        ("compute_units", 80, "80"),
        ("memory_size", 12 * GB, "12 GiB"),
    ]
    assert facts[0].sentence == "Each X9 ASIC contains 80x Compute tile, also known as workers."
    assert facts[0].locator == repr(facts[0].sentence) and facts[0].cell is None


def test_markup_line_breaks_and_code_do_not_interfere() -> None:
    text = "The **L2 cache** of the\n[chip](x.md) is `50 MB`. See `f(50 MB)` for the L2 cache."
    assert [(s.key, s.quantity) for s in statements(text)] == [("l2_size", "50 MB")]
    code = b"# A\n\n```\nThe L2 cache is 50 MB.\n```\n"
    assert propose_facts(parse(code, "a.md").elements) == []


def test_number_claimed_by_two_facts_is_dropped() -> None:
    assert stated("Each SM has 128 KB of L1 and shared memory.") == {}
    assert stated("The L2 cache is 40 MB, so the L2 cache size is 50 MB.") == {}


def test_cell_in_words_states_its_facts() -> None:
    table = "| Compute | two cores |\n|---|---|\n"
    table += (
        "| Device Memory | 32 GiB of device memory (for state), with 820 GB/s of bandwidth. |\n"
    )
    facts = {f.key: f.value for f in propose_facts(parse(table.encode(), "x.md").elements)}
    assert facts == {"memory_size": 32 * GB, "memory_bandwidth": 820e9}


def test_quotation_of_a_long_sentence_has_the_number() -> None:
    sentence = "On the read side, " + "once a request is there, " * 12 + "the vlen is 512 bits."
    [fact] = propose_facts(parse(sentence.encode(), "x.md").elements)
    assert fact.key == "vector_bits"
    assert "the vlen is 512 bits" in fact.locator and "On the read side" not in fact.locator


def test_sentence_that_names_a_fact_and_gives_none_is_listed() -> None:
    text = "Each X2 engine delivers over 90 TFLOPS of dense BF16 performance. It is 2 MB if full."
    elements = parse(text.encode(), "x.md").elements
    [listed] = unread_sentences(elements, propose_facts(elements))
    assert listed.endswith("(perhaps peak_matrix_bf16, but not clearly)")


def test_enumerated_quantities_are_read_or_listed() -> None:
    text = (
        "The X1 GPU has 80 SMs, 6 MB of L2 cache, 16 GB of HBM2 and 900 GB/s of memory bandwidth."
    )
    assert {(s.key, s.quantity) for s in read_sentence(text)} == {
        ("compute_units", "80"),
        ("l2_size", "6 MB"),
        ("memory_size", "16 GB"),
        ("memory_bandwidth", "900 GB/s"),
    }
    ran = (
        "On one X1 with 2.15TFLOPS double precision peak performance and 1.22TB/s memory bandwidth"
        " the HPCG benchmark reached 67 GFLOPS."
    )
    stated = read_sentence(ran)
    assert [(s.key, s.value) for s in stated] == [
        ("peak_fp64", 2.15e12),
        ("memory_bandwidth", 1.22e12),
    ]
    assert {s.confidence for s in stated} == {UNCLEAR_SUBJECT}
    assert not read_sentence("The X1 and the X2 have 16 GB, 32 GB of HBM2 at a peak of 300 W.")
    assert not read_sentence(
        "On an X1 with 2 TB/s peak memory bandwidth measured by the benchmark."
    )


def test_peak_rates_and_measured_sentences_are_listed() -> None:
    text = (
        "Peak floating-point computing power is 160 GFLOPS. By default the X1 accelerator runs at"
        " 50 MHz. We measured 900 GB/s of memory bandwidth."
    )
    elements = parse(text.encode(), "x.md").elements
    assert unread_sentences(elements, propose_facts(elements)) == [
        "Peak floating-point computing power is 160 GFLOPS.",
        "By default the X1 accelerator runs at 50 MHz. (perhaps clock_boost, but not clearly)",
    ]


def test_type_in_brackets_is_no_part_of_sentence() -> None:
    text = "The units work best with:\n\n- **32-element vectors** for 32-bit data (vector<32xf32>)"
    assert [(s.key, s.value) for s in statements(text)] == [("vector_bits", 1024)]


@pytest.mark.parametrize(
    ("sentence", "rates"),
    [
        (
            "Two cores, delivering 380 INT8 TOPS, 190 FP16/BF16/cFP8/TF32 TFLOPS, and 47.5 FP32"
            " TFLOPS.",
            {"int8": 380, "fp16": 190, "bf16": 190, "fp8": 190, "tf32": 190, "fp32": 47.5},
        ),
        ("The chip provides 354 TFLOPS of INT8 and 177 TFLOPS of FP16.", {"int8": 354}),
        ("Each accelerator offers 512 dense BF16 TFLOPS in total.", {"bf16": 512}),
        ("Each core delivers 90 TFLOPS of TF32.", {}),
        ("The engine delivers over 90 TFLOPS of FP8 products.", {}),
        ("The chip has 1,979 FP8 TFLOPS with sparsity.", {}),
        ("Two accelerators deliver 200 INT8 TOPS.", {}),
        ("The board delivers 3 INT8 TOPS per watt.", {}),
    ],
)
def test_rates_by_data_type_are_read(sentence: str, rates: dict[str, float]) -> None:
    found = {s.key.rpartition("_")[2]: s.value / 1e12 for s in read_sentence(sentence)}
    assert found == rates
