from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kb.errors import InvalidKnowledge
from kb.hardware.detection import parse_cpuinfo
from kb.hardware.facts import (
    edit_distance,
    fact_keys,
    find_unit,
    formula_problem,
    mistyped_key,
    readable,
)
from kb.hardware.schema import (
    dump_hardware,
    extensions_of,
    hardware_template,
    in_words,
    is_about_lacking,
    is_lacking_fact,
    is_lacking_name,
    lacking,
    load_extensions,
    macros,
    parse_hardware,
)
from kb.hardware.spec import FactSpec, HardwareSpec, ToolchainSpec
from kb.hardware.table_reader import SpecProblem

FACT = {
    "key": "memory_bandwidth",
    "value": 3.35e12,
    "unit": "B/s",
    "kind": "datasheet",
    "title": "H100 datasheet",
    "publisher": "NVIDIA",
    "locator": "Table 1",
    "date": "2026-11-20",
}
H100 = """
id = "h100"
name = "NVIDIA H100 SXM5 80 GB"
vendor = "nvidia"
parent = "hopper"
aliases = ["h100-sxm5", 'odd "quoted" \\ name']
languages = ["triton", "cuda"]
kind = "accelerator"
summary = "Hopper, 80 GB."

[[facts]]
key = "compute_capability"
value = "9.0"
kind = "datasheet"
title = "CUDA guide"
publisher = "NVIDIA"
locator = "chapter 5"
date = 2026-11-20

[[facts]]
key = "compute_units"
value = 132
unit = "count"
kind = "datasheet"
title = "H100 datasheet"
publisher = "NVIDIA"
locator = "Table 1"
url = "https://example.org/h100.pdf"
date = "2026-11-20"

[[facts]]
key = "x_all_shared"
value = 30818304
unit = "B"
kind = "derived"
formula = "compute_units * 228 * 1024"

[[signatures]]
pattern = 'out of resource: shared memory, Required: (\\d+)'
signal = "shared_memory_limit"
title = "Too much shared memory"
remedy = "Fewer stages."

[toolchains.triton]
builtin = "triton-nvidia"

[toolchains.cuda]
compile = "nvcc -arch={arch} {source} -o {output} -D'X={{1}}'"
run = "{output} {input}"
timing = "wall"
suffix = ".cu"

[toolchains.cuda.env]
CACHE = "{workdir}/cache"
"""


def base(**more: Any) -> dict[str, Any]:
    return {"id": "chip-1", "name": "Chip 1", "vendor": "acme", **more}


def problems(raw: str | dict[str, Any]) -> dict[str, SpecProblem]:
    with pytest.raises(InvalidKnowledge) as caught:
        parse_hardware(raw, "hardware.toml")
    assert caught.value.hint
    return {p["path"]: SpecProblem(**p) for p in caught.value.details["problems"]}


def test_full_description_round_trips() -> None:
    spec = parse_hardware(H100, "h100")
    assert spec.facts[0] == FactSpec(
        "compute_capability",
        "9.0",
        "text",
        "datasheet",
        title="CUDA guide",
        publisher="NVIDIA",
        locator="chapter 5",
        date="2026-11-20",
    )
    assert spec.toolchains["cuda"].env == {"CACHE": "{workdir}/cache"}
    assert spec.toolchains["triton"].builtin == "triton-nvidia"
    assert parse_hardware(dump_hardware(spec), "again") == spec


def test_all_problems_of_a_file_are_reported_together() -> None:
    fact = FACT | {"unit": "TB/s", "value": 3.35, "kind": "datashet"}
    found = problems({"id": "H 100", "nam": "x", "vendor": "acme", "facts": [FACT, fact]})
    assert set(found) == {"id", "nam", "name", "facts[1].kind", "facts[1].unit", "facts[1].key"}
    assert "name" in found["nam"].fix
    assert found["facts[1].unit"].fix == 'value = 3350000000000, unit = "B/s"'
    assert "h-100" in found["id"].fix


@pytest.mark.parametrize("good", ["h100", "tenstorrent_wormhole", "x86-64", "a.b", "9", "a" * 64])
def test_accepted_ids(good: str) -> None:
    assert parse_hardware(base() | {"id": good}, "o").id == good


@pytest.mark.parametrize("bad", ["", "H100", "-a", "_a", "a b", "a/b", "..", "ä", "a" * 65])
def test_refused_ids(bad: str) -> None:
    assert "id" in problems(base() | {"id": bad})


def test_invalid_toml_is_reported_with_its_line() -> None:
    assert "line 1" in problems("id = = 3")["(file)"].message
    assert "(file)" in problems("a = " + "[" * 5000)


@pytest.mark.parametrize(
    ("change", "path", "fix"),
    [
        ({"key": "memory_bandwith"}, "facts[0].key", "memory_bandwidth"),
        ({"key": "Memory"}, "facts[0].key", "l2_size"),
        ({"value": 3.35}, "facts[0].value", "without prefix"),
        ({"value": -1}, "facts[0].value", "not negative"),
        ({"value": float("nan")}, "facts[0].value", "finite"),
        ({"value": True}, "facts[0].value", "number"),
        ({"value": 10**400}, "facts[0].value", "finite"),
        ({"value": "3.35e12"}, "facts[0].value", "unquoted"),
        ({"unit": "B"}, "facts[0].unit", "B/s"),
        ({"unit": ""}, "facts[0].unit", "fill it in"),
        ({"date": "20.11.2026"}, "facts[0].date", "2026-11-20"),
        ({"date": 20261120}, "facts[0].date", "quotes"),
        ({"url": "www.example.org"}, "facts[0].url", "https://"),
        ({"title": ""}, "facts[0].title", "fill"),
        ({"formula": "2 * 3"}, "facts[0].formula", "derived"),
        ({"kind": "derived"}, "facts[0].formula", "formula"),
        ({"page": "3"}, "facts[0].page", "locator"),
    ],
)
def test_invalid_fact_error_has_fix(change: dict[str, Any], path: str, fix: str) -> None:
    found = problems(base(facts=[FACT | change]))
    assert fix in found[path].fix
    assert len(found) == 1


def test_custom_fact_keys_are_accepted_and_misspelt_ones_refused() -> None:
    for key in ("tensor_memory_per_unit", "peak_matrix_fp6", "l4_size", "x_memory_bandwith"):
        fact = FACT | {"key": key, "unit": "B"}
        assert parse_hardware(base(facts=[fact]), "o").facts[0].key == key
    assert mistyped_key("peak_matrx_fp8") == "peak_matrix_fp8"
    assert edit_distance("powre", "power") == 1


@pytest.mark.parametrize(
    ("toolchain", "path", "expected"),
    [
        ({"run": "sim {outptu} {input}"}, "toolchains.c.run", "unknown placeholder {outptu}"),
        ({"run": "sim {output.x} {input}"}, "toolchains.c.run", "unknown placeholder"),
        ({"run": "sim {output!r} {input}"}, "toolchains.c.run", "format"),
        ({"run": "sim {output} {input"}, "toolchains.c.run", "broken placeholder"),
        ({"run": "sim {output}"}, "toolchains.c.run", "does not use {input}"),
        ({"run": "sim {input}"}, "toolchains.c.run", "runs nothing"),
        ({"run": "sim {output} {input} | tee log"}, "toolchains.c.run", "without a shell"),
        ({"run": "sim '{output} {input}"}, "toolchains.c.run", "split into words"),
        ({"builtin": "x", "run": "sim {output} {input}"}, "toolchains.c.builtin", "set together"),
        ({}, "toolchains.c.run", "missing"),
        ({"builtin": "x", "env": {"A B": "1"}}, "toolchains.c.env.A B", "environment"),
        ({"builtin": "x", "env": {"A": "{source}"}}, "toolchains.c.env.A", "unknown placeholder"),
        ({"builtin": "x", "timing": "wal"}, "toolchains.c.timing", "not allowed"),
        ({"builtin": "x", "suffix": "cu"}, "toolchains.c.suffix", "suffix"),
    ],
)
def test_command_templates_are_checked(toolchain: dict[str, Any], path: str, expected: str) -> None:
    found = problems(base(toolchains={"c": toolchain}))
    assert expected in found[path].message


def test_toolchain_needs_listed_language() -> None:
    found = problems(base(languages=["triton"], toolchains={"c": {"builtin": "x"}}))
    assert found["toolchains.c"].fix == 'add "c" to languages'


@pytest.mark.parametrize("pattern", ["(", "a" * 301, "(a+)+b", ".*", "", "a{99999999999}", "[[a]"])
def test_invalid_slow_or_match_all_patterns_are_refused(pattern: str) -> None:
    signature = {"pattern": pattern, "signal": "compile_error", "title": "t"}
    assert "signatures[0].pattern" in problems(base(signatures=[signature]))


def test_template_is_valid_empty_and_filled_in() -> None:
    text = hardware_template("my-chip-2")
    assert parse_hardware(text, "template").id == "my-chip-2"
    filled = "\n".join(re.sub(r"^#(?=\S)", "", line) for line in text.splitlines())
    spec = parse_hardware(filled, "filled")
    assert spec.toolchains["mylang"].timing == "simulator"
    assert len(spec.facts) >= 5
    assert parse_hardware(dump_hardware(spec), "dumped") == spec
    assert all(key in text for key in fact_keys())
    with pytest.raises(InvalidKnowledge):
        hardware_template("My Chip")


def derived(formula: str, value: float = 30818304.0) -> FactSpec:
    return FactSpec("x_total", value, "B", "derived", formula=formula)


def test_formulas_are_evaluated_over_facts() -> None:
    numbers = {"compute_units": 132.0}
    assert formula_problem(derived("compute_units * 228 * 1024"), numbers) == ""
    assert formula_problem(derived("132 * 228 * 2**10 * 1.005"), numbers) == ""
    wrong = formula_problem(derived("compute_units * 128 * 1024"), numbers)
    assert f"its formula gives {132 * 128 * 1024:g}" in wrong


@pytest.mark.parametrize(
    "formula",
    [
        "number of SMs times LDS",
        "unknown_fact * 2",
        "__import__('os').getcwd()",
        "(1).__class__",
        "9 ** 9 ** 9",
        "1 / 0",
        "1e308 * 10",
        "[1][0]",
        "True",
        "-" * 290 + "1",
        "(" * 150 + "1" + ")" * 150,
        "1 if 2 else 3",
        "1j",
        "",
    ],
)
def test_non_arithmetic_formula_is_not_checked(formula: str) -> None:
    assert formula_problem(derived(formula, value=2.0), {})


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("x_other * 2", "no number known for x_other"),
        ("max(1, 2)", "not arithmetic"),
        ("+1", "not arithmetic"),
        ("1 < 2", "not arithmetic"),
        ("1 / 0", "division by zero"),
        ("2 ** 65", "out of range"),
        ("1" * 301, "longer than 300"),
    ],
)
def test_unchecked_formula_gives_its_reason(formula: str, message: str) -> None:
    assert message in formula_problem(derived(formula), {})


_SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.dates()
)
_KEYS = st.sampled_from(
    re.findall(
        r"\w+",
        "id name vendor facts signatures toolchains key value unit kind date pattern run compile"
        " env aliases languages url formula c",
    )
)
_TABLES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=6),
    max_leaves=20,
)


@settings(suppress_health_check=[HealthCheck.too_slow])  # on a loaded machine
@given(st.dictionaries(_KEYS, _TABLES, max_size=6))
def test_any_file_raises_only_invalid_knowledge(raw: dict[str, Any]) -> None:
    try:
        parse_hardware(raw, "fuzz")
    except InvalidKnowledge as error:
        assert error.details["problems"]


UNITS = ("count", "threads", "B", "B/s", "bit", "Hz", "flop/s", "op/s", "W", "text")


def test_known_keys_have_canonical_unit_and_range() -> None:
    for key, known in fact_keys().items():
        assert known.unit in UNITS, key
        assert known.meaning
        assert known.unit == "text" or known.range is not None, key


@pytest.mark.parametrize(
    ("spelled", "canonical", "factor"),
    [
        ("TB/s", "B/s", 1e12),
        ("TB/sec", "B/s", 1e12),
        ("GBps", "B/s", 1e9),
        ("GiB/s", "B/s", 2**30),
        ("KB", "B", 1024),
        ("KiB", "B", 1024),
        ("bytes", "B", 1),
        ("MHz", "Hz", 1e6),
        ("TFLOPS", "flop/s", 1e12),
        ("teraFLOPS", "flop/s", 1e12),
        ("TFLOP/s", "flop/s", 1e12),
        ("PFLOPs", "flop/s", 1e15),
        ("TOPS", "op/s", 1e12),
        ("kW", "W", 1e3),
        ("bits", "bit", 1),
    ],
)
def test_spellings_of_units(spelled: str, canonical: str, factor: float) -> None:
    unit = find_unit(spelled)
    assert unit is not None
    assert (unit.canonical, unit.factor) == (canonical, factor)


@pytest.mark.parametrize("spelled", ["Gb/s", "Gbps", "GT/s", "Mb", "FLOPS/CLOCK/CU", "%", "", "x"])
def test_ambiguous_units_are_unknown(spelled: str) -> None:
    assert find_unit(spelled) is None


@given(st.text(max_size=60), st.text(min_size=1, max_size=20))
def test_writer_escapes_any_text(value: str, key: str) -> None:
    toolchain = ToolchainSpec(run="run", env={key: value})
    spec = HardwareSpec("chip", value or "name", "custom", toolchains={"lang": toolchain})
    written = tomllib.loads(dump_hardware(spec))
    assert written["name"] == spec.name
    assert written["toolchains"]["lang"]["env"] == {key: value}


@given(st.integers(-(2**62), 2**62) | st.floats(allow_nan=False, allow_infinity=False))
def test_writer_keeps_every_digit(number: int | float) -> None:
    fact = FactSpec("x_own", number, "count", "measured")
    spec = HardwareSpec("chip", "name", "custom", facts=(fact,))
    assert tomllib.loads(dump_hardware(spec))["facts"][0]["value"] == number


# -- values as a person writes them


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (12 * 2**30, "B", "12 GiB"),
        (1464 * 2**10, "B", "1464 KiB"),
        (91.5 * 2**10, "B", "91.5 KiB"),
        (128, "B", "128 B"),
        (0, "B", "0 B"),
        (80e9, "B", "80 GB"),
        (141_000_000_007, "B", "about 131.32 GiB"),
        (1.6e12, "B/s", "1.6 TB/s"),
        (1.85e9, "Hz", "1.85 GHz"),
        (1979e12, "flop/s", "1979 Tflop/s"),
        (700, "W", "700 W"),
        (64.0, "threads", "64 threads"),
        (65536.0, "count", "65536"),
        ("9.0", "text", "9.0"),
    ],
)
def test_value_is_readable(value: float | str, unit: str, text: str) -> None:
    assert readable(value, unit) == text


def test_readable_size_parses_to_same_value() -> None:
    number, unit = readable(12 * 2**30, "B").split()
    known = find_unit(unit)
    assert known is not None and float(number) * known.factor == 12 * 2**30


def test_hint_states_exact_size() -> None:
    stated = 'key = "memory_size"\nvalue = 12\nunit = "GB"\nkind = "measured"\ntitle = "T"\n'
    with pytest.raises(InvalidKnowledge) as refused:
        parse_hardware(f'id = "x1"\n[[facts]]\n{stated}date = "2026-01-31"\n', "x1.toml")
    assert 'value = 12884901888, unit = "B"' in f"{refused.value.message} {refused.value.details}"


# -- optional instruction set extensions: which a machine has, and which knowledge needs a missing
# one

ZEN3 = ("avx", "avx2", "fma", "f16c")
X86 = ("x86-64",)
LACKS = lacking(X86, ZEN3)


def test_missing_extensions_follow_from_cpu_flags() -> None:
    assert extensions_of(X86, ZEN3) == ("AVX2", "FMA", "F16C")
    assert {"AVX-512", "AMX", "AVX-512 VNNI", "AVX-VNNI"} <= set(LACKS)
    assert in_words(LACKS) == ["AVX-512", "AVX-VNNI", "AMX"]
    assert lacking(("h100", "nvidia"), ZEN3) == () == lacking(("arm",), ())


def test_processor_without_known_flags_lacks_nothing() -> None:
    assert lacking(X86, ()) == ()


def test_probe_detects_all_flags_of_extensions() -> None:
    flags = " ".join(flag for e in load_extensions() for flag in sorted(e.flags))
    probed = parse_cpuinfo(f"processor : 0\nmodel name : X\nflags : sse {flags}\n", "x86_64")
    named = set(probed.detail["vector_features"].split())
    assert all(e.flags & named for e in load_extensions())


def test_fact_keys_of_missing_extensions() -> None:
    absent = ("x_amx_tiles", "x_avx512_registers", "x_alignment_m512")
    assert all(is_lacking_fact(key, LACKS) for key in absent)
    present = ("x_avx_registers", "x_alignment_m256", "l1_size")
    assert not any(is_lacking_fact(key, LACKS) for key in present)
    assert not is_lacking_fact("x_amx_tiles", ())


@pytest.mark.parametrize(
    ("name", "limits", "absent"),
    [
        ("_mm512_roundscale_ps", "AVX-512F; AVX has `_mm256_round_ps`.", True),
        ("_tile_loadd", "AMX-TILE; stride in bytes.", True),
        ("_cvtu32_mask16", "AVX-512F; plain conversion works too.", True),
        ("_mm256_dpbusd_epi32", "AVX512-VNNI with AVX-512VL, or AVX-VNNI.", True),
        ("_mm256_fmadd_ps", "FMA, a separate flag from AVX2.", False),
        ("_mm256_loadu_ps", "AVX.", False),
        ("parallel", "Loop in canonical form.", False),
    ],
)
def test_symbols_of_missing_extensions_match_by_name_or_limits(
    name: str, limits: str, absent: bool
) -> None:
    assert is_lacking_name(name, (limits,), LACKS) is absent
    assert not is_lacking_name(name, (limits,), ())


def test_one_available_extension_of_a_card_is_enough() -> None:
    alder_lake = lacking(X86, (*ZEN3, "avx_vnni"))
    stated = "AVX-VNNI (`-mavxvnni`): processors without AVX-512."
    assert not is_lacking_name("_mm256_dpbusd_avx_epi32", (stated,), alder_lake)


def test_section_is_about_missing_extension_by_title_or_most_words() -> None:
    assert is_about_lacking("AMX multiplies tiles of one kilobyte", "A tile has rows.", LACKS)
    assert not is_about_lacking("AVX2 and AVX-512 kernels", "Eight lanes.", LACKS)
    masks = "An AVX-512 mask: `_mm512_maskz_loadu_ps` reads lanes. AVX2 has a vector for it."
    assert is_about_lacking("Masks replace tails", masks, LACKS)
    mostly_here = "With AVX2 use `_mm256_fmadd_ps`; without FMA add. AMX differs."
    assert not is_about_lacking("Products", mostly_here, LACKS)
    assert not is_about_lacking("AMX", masks, ())


def test_macros_follow_from_family_and_flags() -> None:
    assert macros(X86, LACKS) == ["__AVX2__", "__FMA__", "__F16C__"]
    assert "__AVX512F__" in macros(("zen5", "x86-64")) and macros(("arm",)) == ["__ARM_FEATURE_SVE"]
