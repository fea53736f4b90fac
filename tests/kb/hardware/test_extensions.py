"""Optional instruction set extensions: which a machine has, and which knowledge needs a missing
one.
"""

from __future__ import annotations

import pytest

from kb.hardware.detection import parse_cpuinfo
from kb.hardware.schema import (
    extensions_of,
    in_words,
    is_about_lacking,
    is_lacking_fact,
    is_lacking_name,
    lacking,
    load_extensions,
    macros,
)

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
