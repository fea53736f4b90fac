from __future__ import annotations

import json

import pytest

from ingestion.elements import Box, Element, Table
from ingestion.findings.fact_cells import read_label
from ingestion.findings.facts import ProposedFact, propose_facts, scratchpad_names
from ingestion.formats import parse
from ingestion.passages import split_sections
from ingestion.read import facts_in


def propose(
    header: list[list[str]], rows: list[list[str]], caption: str | None = None
) -> list[ProposedFact]:
    table = Table(tuple(map(tuple, header)), tuple(map(tuple, rows)), caption)
    return propose_facts([Element("table", "", table=table)])


def values(facts: list[ProposedFact]) -> dict[tuple[str, str], float | int | str]:
    return {(fact.subject, fact.key): fact.value for fact in facts}


# The layout of AMD's architecture tables: a list-table inside tabs, chips as rows.
CHIPS_AS_ROWS = b"""
Specifications
==============

.. tab-set::

  .. tab-item:: Accelerators

    .. list-table::
        :header-rows: 1
        :name: arch-spec-table

        *
          - Model
          - Architecture
          - LLVM target name
          - VRAM (GiB)
          - Compute Units
          - Wavefront Size
          - LDS (KiB)
          - L3 Cache (MiB)
          - L2 Cache (MiB)
          - L1 Scalar Cache (KiB)
          - VGPR File (KiB)
          - GFXIP Major version
        *
          - MI300X
          - CDNA3
          - gfx942
          - 192
          - 304 (38 per XCD)
          - 64
          - 64
          - 256
          - 32 (4 per XCD)
          - 16 per 2 CUs
          - 512
          - 9
        *
          - MI100
          - CDNA
          - gfx908
          - 32
          - 120
          - 64
          - 64
          -
          - 8
          - 16 per 3 CUs
          - 256 VGPR and 256 AccVGPR
          - 9
"""

# The layout of a comparison of generations: properties as rows, and a column to leave out.
CHIPS_AS_COLUMNS = b"""
Comparison
==========

.. list-table::
    :header-rows: 1
    :stub-columns: 1

    *   -
        - One
        - Two
        - Improvement factor
    *   - FP8 (TFLOPS)
        - Not applicable
        - 1299
        - 6.7x
    *   - BF16/FP16/TF32 (TFLOPS)
        - 191
        - 667
        - 3.4x
    *   - FP8/FP16/BF16/TF32 Sparse (TFLOPS)
        - Not applicable
        - 2563
        - 13x
    *   - HBM Capacity (GiB)
        - 32
        - 96
        - 3x
    *   - HBM Bandwidth (TB/sec)
        - 0.8
        - 2.9
        - 3.6x
"""


def test_parsed_table_with_chips_as_rows() -> None:
    facts = propose_facts(parse(CHIPS_AS_ROWS, "specs.rst").elements)
    assert values(facts) == {
        ("MI300X", "compute_capability"): "gfx942",
        ("MI300X", "memory_size"): 192 * 2**30,
        ("MI300X", "compute_units"): 304,
        ("MI300X", "warp_size"): 64,
        ("MI300X", "shared_memory_per_unit"): 65536,
        ("MI300X", "l3_size"): 256 * 2**20,
        ("MI300X", "l2_size"): 32 * 2**20,
        ("MI300X", "registers_per_unit"): 512 * 1024 // 4,
        ("MI100", "compute_capability"): "gfx908",
        ("MI100", "memory_size"): 32 * 2**30,
        ("MI100", "compute_units"): 120,
        ("MI100", "warp_size"): 64,
        ("MI100", "shared_memory_per_unit"): 65536,
        ("MI100", "l2_size"): 8 * 2**20,
    }
    by_key = {fact.key: fact for fact in facts if fact.subject == "MI300X"}
    assert by_key["compute_units"].text_value == "304 (38 per XCD)"
    assert by_key["compute_units"].confidence < by_key["warp_size"].confidence
    assert by_key["l2_size"].column_label == "L2 Cache (MiB)"
    assert by_key["l2_size"].cell == (0, 8)


def test_parsed_table_with_chips_as_columns() -> None:
    facts = propose_facts(parse(CHIPS_AS_COLUMNS, "compare.rst").elements)
    assert values(facts) == {
        ("Two", "peak_matrix_fp8"): 1299e12,
        ("One", "peak_matrix_bf16"): 191e12,
        ("One", "peak_matrix_fp16"): 191e12,
        ("One", "peak_matrix_tf32"): 191e12,
        ("Two", "peak_matrix_bf16"): 667e12,
        ("Two", "peak_matrix_fp16"): 667e12,
        ("Two", "peak_matrix_tf32"): 667e12,
        ("One", "memory_size"): 32 * 2**30,
        ("Two", "memory_size"): 96 * 2**30,
        ("One", "memory_bandwidth"): 0.8e12,
        ("Two", "memory_bandwidth"): 2.9e12,
    }


def test_markdown_table_with_unit_in_column_header() -> None:
    text = b"""# Peaks

| Computation and data type | FLOPS/CLOCK/CU | Peak TFLOPS |
| :------------------------ | :------------: | ----------: |
| Vector FP64               | 64             | 11.5        |
| Matrix FP16               | 1024           | 184.6       |
"""
    facts = propose_facts(parse(text, "peaks.md").elements)
    assert values(facts) == {("", "peak_fp64"): 11.5e12, ("", "peak_matrix_fp16"): 184.6e12}


def test_two_column_datasheet_without_header() -> None:
    rows = [
        ["GPU Memory", "80 GB HBM3"],
        ["Memory bandwidth", "3.35 TB/s"],
        ["L2 cache", "50 MB"],
        ["Maximum shared memory per block", "227 KB"],
        ["Number of SMs", "132"],
        ["Max clock", "1.98 GHz"],
        ["Maximum threads per block", "1,024"],
        ["32-bit registers per SM", "64 K"],
        ["NVLink bandwidth", "900 GB/s"],
        ["FP16 Tensor Core", "1,979 teraFLOPS*"],
        ["Board power", "Up to 700 W"],
        ["Compute capability", "9.0"],
        ["Process", "TSMC 4N"],
        ["Host interface", "PCIe Gen5 128 GB/s"],
    ]
    facts = propose([], rows)
    assert values(facts) == {
        ("", "memory_size"): 80 * 2**30,
        ("", "memory_bandwidth"): 3.35e12,
        ("", "l2_size"): 50 * 2**20,
        ("", "shared_memory_per_block"): 227 * 1024,
        ("", "compute_units"): 132,
        ("", "clock_boost"): 1.98e9,
        ("", "max_threads_per_block"): 1024,
        ("", "registers_per_unit"): 65536,
        ("", "interconnect_bandwidth"): 900e9,
        ("", "power"): 700,
        ("", "compute_capability"): "9.0",
        ("", "process_node"): "TSMC 4N",
    }
    confidence = {fact.key: fact.confidence for fact in facts}
    assert confidence["power"] < confidence["memory_bandwidth"]  # "up to"
    assert confidence["l2_size"] < confidence["memory_bandwidth"]  # MB taken as MiB


def test_unit_column_and_stacked_headers() -> None:
    facts = propose(
        [["Parameter", "Unit", "Compute capability", "Compute capability"], ["", "", "8.0", "9.0"]],
        [["Shared memory per SM", "KB", "164", "228"], ["Warp size", "threads", "32", "32"]],
    )
    assert values(facts) == {
        ("Compute capability 8.0", "shared_memory_per_unit"): 164 * 1024,
        ("Compute capability 9.0", "shared_memory_per_unit"): 228 * 1024,
        ("Compute capability 8.0", "warp_size"): 32,
        ("Compute capability 9.0", "warp_size"): 32,
    }


@pytest.mark.parametrize(
    "cell",
    [
        "",
        "-",
        "N/A",
        "TBD",
        "40",
        "40-50 MB",
        "40, 50 MB",
        "32 MB / 64 MB",
        "2x 25 MB",
        "50 MB per die",
        "50 MB shared with L1",
        "50 Mb",
        "50 MB/s",
        "50 GHz",
        "3,5 MB",
        "½ MB",
        "0xFF",
        "50 B",
        "0 MB",
        "408 MB (HBM + cache)",
    ],
)
def test_ambiguous_cells_are_dropped(cell: str) -> None:
    assert propose([["Property", "Chip"]], [["L2 cache", cell]]) == []


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("50MB", 50 * 2**20),
        ("50 MiB", 50 * 2**20),
        ("**50 MB**", 50 * 2**20),
        ("50&nbsp;MB", 50 * 2**20),
        ("51,200 KB", 50 * 2**20),
        ("~50 MB", 50 * 2**20),
        ("50 MB [3]", 50 * 2**20),
        ("32768 KB", 32 * 2**20),
        ("1.5 megabytes", 1.5 * 2**20),
    ],
)
def test_spellings_of_a_size(cell: str, value: float) -> None:
    (fact,) = propose([["Property", "Chip"]], [["L2 cache", cell]])
    assert fact.value == value
    assert fact.unit == "B"
    assert fact.subject == "Chip"
    assert fact.text_value == cell


def test_lengths_of_vectors_and_clocks_without_further_words() -> None:
    rows = [["VLEN", "256"], ["Clock", "1.4 GHz"], ["Vector registers", "32"]]
    expected = {"vector_bits": 256, "clock_boost": 1.4e9, "vector_registers": 32}
    assert {f.key: f.value for f in propose([["Parameter", "Value"]], rows)} == expected
    for label in ("HVX vector width", "SVL", "Streaming vector length (SVL)"):
        [fact] = propose([["Parameter", "Value"]], [[label, "512 bits"]])
        assert (fact.key, fact.value) == ("vector_bits", 512)
    assert propose([["Parameter", "Value"]], [["Minimum vector length", "128 bits"]]) == []
    assert propose([["Parameter", "Value"]], [["Vector length", "16"]]) == []


def test_benchmark_results_are_not_facts() -> None:
    assert (
        propose(
            [["Kernel", "Time (ms)", "Bandwidth (GB/s)", "L2 hit (%)"]],
            [["copy", "1.2", "890", "40"]],
        )
        == []
    )
    assert propose([["Metric", "Measured"]], [["Memory bandwidth", "2.1 TB/s"]]) == []
    assert propose([["Mode", "Registers", "Total size"]], [["small", "128", "4 KB"]]) == []


def test_contradicting_table_proposes_nothing_for_that_key() -> None:
    rows = [["L2 cache", "50 MB"], ["L2 cache size", "40 MB"], ["Power limit", "700 W"]]
    assert values(propose([["Property", "Chip"]], rows)) == {("Chip", "power"): 700}


def test_table_readable_in_both_orientations_is_ignored() -> None:
    assert propose([["Model", "L2 cache"]], [["Power limit", "50 MB"]]) == []


def test_locator_has_page_and_position() -> None:
    table = Table((("Property", "X1"),), (("Memory bandwidth", "2 TB/s"),), "Table 7. Limits")
    box = Box(11, "xii", 0, 0, 10, 10)
    elements = [Element("text", "before"), Element("table", "", table=table, boxes=(box,))]
    (fact,) = propose_facts(elements)
    assert (fact.element, fact.page_index, fact.page_label) == (1, 11, "xii")
    assert fact.locator == "p. xii, Table 7. Limits, row 'Memory bandwidth', column 'X1'"


@pytest.mark.parametrize(
    ("label", "keys", "unit"),
    [
        ("Memory bandwidth (GB/s)", ("memory_bandwidth",), "GB/s"),
        ("Peak memory bandwidth, TB/s", ("memory_bandwidth",), "TB/s"),
        ("L2 Cache [MiB]", ("l2_size",), "MiB"),
        ("Number of CUs", ("compute_units",), ""),
        ("Size of L1 data cache", ("l1_size",), ""),
        ("Bandwidth of HBM", ("memory_bandwidth",), ""),
        ("Size of the vector register (VLEN)", ("vector_bits",), "bits"),
        ("Number of vector registers", ("vector_registers",), ""),
        ("Size of a matrix", (), ""),
        ("Max. number of resident warps per SM", ("max_warps_per_unit",), ""),
        ("Amount of shared memory per SM", ("shared_memory_per_unit",), ""),
        ("Infinity Cache (MiB)", ("l3_size",), "MiB"),
        ("FP64 Tensor Core", ("peak_matrix_fp64",), ""),
        ("INT8 Tensor Core (TOPS)", ("peak_matrix_int8",), "TOPS"),
        ("FP8 with sparsity", (), ""),
        ("L1 Instruction Cache (KiB)", (), "KiB"),
        ("L2 cache hit rate", (), ""),
        ("Base clock", (), ""),
        ("Clock, boost", ("clock_boost",), ""),
        ("Clock boost", ("clock_boost",), ""),
        ("Device memory (HBM3)", ("memory_size",), ""),
        ("Device memory (HBM3), GB", ("memory_size",), "GB"),
        ("Memory bandwidth, peak", ("memory_bandwidth",), ""),
        ("Bandwidth, memory", ("memory_bandwidth",), ""),
        ("Peak bf16, matrix engine", ("peak_matrix_bf16",), ""),
        ("Matrix engine (fp16, dense)", ("peak_matrix_fp16",), ""),
        ("Peak fp32 (vector units)", ("peak_fp32",), ""),
        ("Peak fp32, matrix engine", (), ""),
        ("Bank width", ("shared_memory_bank_width",), ""),
        ("Scratchpad banks", ("shared_memory_banks",), ""),
        ("Slab banks", (), ""),
        ("Register bank width", (), ""),
        ("Clock, base", (), ""),
        ("Clock, memory", (), ""),
        ("Memory bandwidth (per channel)", (), ""),
        ("Memory bandwidth, achieved", (), ""),
        ("Mesh bandwidth, per link and direction", (), ""),
        ("L2 cache (per slice)", (), ""),
        ("L2 cache, instruction", (), ""),
        ("Board power (idle)", (), ""),
        ("Device memory (reserved)", (), ""),
        ("Peak bf16 (matrix engine, sparse)", (), ""),
        ("Peak bf16, 2:1 sparse", (), ""),
        ("Shared memory banks (spare)", (), ""),
        ("Bandwidth", (), ""),
        ("Memory", (), ""),
        ("", (), ""),
    ],
)
def test_labels(label: str, keys: tuple[str, ...], unit: str) -> None:
    read = read_label(label)
    assert (read.keys, read.unit) == (keys, unit)


ANVIL = """# Anvil A3 architecture

Each core has 256 KiB of scratchpad called the *tray*.

## Data sheet

| Quantity | Value | Unit |
|---|---|---|
| Cores | 40 | |
| Clock, boost | 1.1 | GHz |
| Tray banks | 16 | |
| Tray per core | 256 | KiB |
| Device memory (LPDDR5) | 32 | GB |
| Memory bandwidth | 0.4 | TB/s |
| Memory bandwidth (per channel) | 50 | GB/s |
| Peak bf16, matrix engine | 65 | TFLOP/s |
| Board power (idle) | 20 | W |

## Benchmarks

| Kernel | Time |
|---|---|
| copy | 12 |
"""
HEARTH = """<h1>Hearth 9</h1><p>The hoard is a software-managed on-chip scratchpad of each core.</p>
<table><tr><th>Unit</th><th>Parameter</th><th>Hearth 9</th></tr>
<tr><td>KB</td><td>Hoard</td><td>128</td></tr></table>
<table><tr><th>Parameter</th><th>Unit</th><th>Maximum</th></tr>
<tr><td>Hoard banks</td><td></td><td>32</td></tr>
<tr><td>Bandwidth, memory</td><td>GB/s</td><td>900</td></tr>
<tr><td>Peak fp16 (matrix units)</td><td>TFLOPS</td><td>120</td></tr>
<tr><td>Links</td><td></td><td>4</td></tr>
<tr><td>Interface</td><td></td><td>serial</td></tr></table>"""


def test_qualified_labels_custom_names_and_unread_rows() -> None:
    found, unread = facts_in(split_sections(parse(ANVIL.encode(), "anvil.md").elements))
    assert {entry.key: entry.value for entry in found if not entry.sentence} == {
        "clock_boost": 1.1e9,
        "shared_memory_banks": 16,
        "shared_memory_per_unit": 256 * 1024,
        "memory_size": 32 * 2**30,
        "memory_bandwidth": 0.4e12,
        "peak_matrix_bf16": 65e12,
    }
    assert unread == [
        "Cores: 40",
        "Memory bandwidth (per channel): 50 GB/s",
        "Board power (idle): 20 W",
    ]


def test_limits_without_a_fact_are_named() -> None:
    text = """# Guide

## Appendix C. Limits

| Limit | Value |
| --- | --- |
| L1 memory per core | 1,464 KB |
| Grid | 8 x 9 |

- Maximum number of buffers: 32
- The kernel is Python: no classes

## Macros and their features

| Macro | Value |
| --- | --- |
| `__CORE_ARCH` | 7 |

- Version: 3
"""
    _, unread = facts_in(split_sections(parse(text.encode(), "a.md").elements))
    assert unread == [
        "L1 memory per core: 1,464 KB",
        "Grid: 8 x 9",
        "Maximum number of buffers: 32",
        "Version: 3",
    ]


LIMITS = """# Orbis-3

| Property | Value |
|---|---|
| DRAM bandwidth | 820 GB/s |
| Number of tiles | 24 |
| Peak float32 | 9.8 TFLOP/s |
| Clock frequency | 1.4 GHz |
| L2 cache size | 3 |
"""


def test_plain_peak_and_clock_labels_yield_to_clearer_ones() -> None:
    def keyed(text: str) -> dict[str, object]:
        found, _ = facts_in(split_sections(parse(text.encode(), "limits.md").elements))
        return {entry.key: entry.value for entry in found}

    plain = {"memory_bandwidth": 820e9, "peak_fp32": 9.8e12, "clock_boost": 1.4e9}
    assert keyed(LIMITS) == plain
    boost = LIMITS.replace("| Number of tiles | 24 |", "| Boost clock | 1.9 GHz |")
    assert keyed(boost) == plain | {"clock_boost": 1.9e9}
    memory = LIMITS.replace("Clock frequency", "Memory clock frequency")
    assert keyed(memory) == {k: v for k, v in plain.items() if k != "clock_boost"}
    _, unread = facts_in(split_sections(parse(LIMITS.encode(), "limits.md").elements))
    # A tile of a manual may be a core, or a die of several cores.
    assert unread == ["Number of tiles: 24", "L2 cache size: 3 (perhaps l2_size, but not clearly)"]


def test_data_sheet_of_another_vendor() -> None:
    found, unread = facts_in(split_sections(parse(HEARTH.encode(), "hearth.html").elements))
    assert {entry.key: entry.value for entry in found if not entry.sentence} == {
        "shared_memory_banks": 32,
        "memory_bandwidth": 900e9,
        "peak_matrix_fp16": 120e12,
    }
    assert "Links: 4" in unread and not any("serial" in row for row in unread)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("It has 1 MiB of scratchpad called the *slab*.", ["slab"]),
        ("The tray is a software-managed on-chip scratchpad of each core.", ["tray"]),
        ("The hoard, a scratchpad of 128 KiB, holds tiles.", ["hoard"]),
        ("The compiler is placing buffers in scratchpad.", []),
        ("The limit is the scratchpad size.", []),
        ("The engine is the user of the scratchpad.", []),
        ("The cache is a scratchpad in this mode.", []),
    ],
)
def test_scratchpad_name_counts_only_where_defined(text: str, names: list[str]) -> None:
    assert [name for name, _ in scratchpad_names([text])] == names


def test_reordered_label_yields_to_exact_one() -> None:
    rows = [["Memory bandwidth", "2 TB/s"], ["Memory bandwidth (LPDDR5)", "0.2 TB/s"]]
    assert values(propose([["Property", "Value"]], rows)) == {("", "memory_bandwidth"): 2e12}
    rows = [["Memory bandwidth (HBM3)", "2 TB/s"], ["Memory bandwidth (LPDDR5)", "0.2 TB/s"]]
    assert propose([["Property", "Value"]], rows) == []


# -- tables of keys, values and units, from CSV, JSON and Markdown

KEYED_LIMITS = [
    {"key": "transfers_in_flight", "value": 3, "unit": "count", "remark": "per core"},
    {"key": "roost_bandwidth", "value": 900, "unit": "GB/s", "remark": ""},
    {"key": "ring_hop", "value": 1.5, "unit": "cycles", "remark": ""},
    {"key": "roost_size", "value": 2, "unit": "MiB", "remark": ""},
]
READ = {
    "transfers_in_flight": (3, "count"),
    "x_roost_bandwidth": (900e9, "B/s"),  # prefixed because it resembles `host_bandwidth`
    "ring_hop": (1.5, "cycles"),
    "roost_size": (2 << 20, "B"),
}
CSV = "key,value,unit,remark\n" + "".join(
    ",".join(str(cell) for cell in row.values()) + "\n" for row in KEYED_LIMITS
)
TABLE = "# Limits\n\n| Name | Value | Unit |\n|---|---|---|\n" + "".join(
    f"| {str(row['key']).replace('_', ' ').capitalize()} | {row['value']} | {row['unit']} |\n"
    for row in KEYED_LIMITS
)
BY_KEY = {str(row["key"]): {"value": row["value"], "unit": row["unit"]} for row in KEYED_LIMITS}


def facts(text: str, name: str) -> dict[str, tuple[float | int | str, str]]:
    proposed = propose_facts(parse(text.encode(), name).elements)
    return {fact.key: (fact.value, fact.unit) for fact in proposed}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (CSV, "limits.csv"),
        (json.dumps(KEYED_LIMITS), "limits.json"),
        (json.dumps({"limits": KEYED_LIMITS}), "limits.json"),
        (json.dumps(BY_KEY), "limits.json"),
        (TABLE, "guide.md"),
    ],
)
def test_custom_keys_are_proposed_from_every_format(text: str, name: str) -> None:
    assert facts(text, name) == READ


def test_known_key_has_its_canonical_unit() -> None:
    text = "key,value,unit\nl2_size,4,MB\nclock,oops,Hz\nl2_sizee,4,MB\n"
    read = facts(text, "limits.csv")
    assert read["l2_size"] == (4 << 20, "B")
    assert set(read) == {"l2_size", "x_l2_sizee"}


def test_conflicting_values_of_a_key_are_dropped() -> None:
    assert facts("key,value,unit\nhops,3,count\nhops,4,count\n", "a.csv") == {}
    assert facts("key,value,value,unit\nhops,3,4,count\n", "a.csv") == {}


def test_other_json_stays_text() -> None:
    document = parse(b'{"a": {"b": [1, 2]}}', "a.json")
    assert [element.kind for element in document.elements] == ["text"]


def test_words_of_a_table_are_read_behind_its_lead() -> None:
    table = Table((), (("Compute", "Two NeuronCore-v2 cores with a cache"), ("Link", "A ring")))
    lead = Element("text", "Each Inferentia2 chip consists of:")
    facts = propose_facts([lead, Element("table", "", table=table)])
    assert [(fact.key, fact.value) for fact in facts] == [("compute_units", 2)]
