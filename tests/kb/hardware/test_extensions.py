"""Optional parts of an instruction set: which a machine has, and what is about one it lacks."""

from __future__ import annotations

import pytest

from kb.hardware.detection import parse_cpuinfo
from kb.hardware.extensions import (
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


def test_what_a_processor_has_and_lacks_follows_from_its_flags() -> None:
    assert extensions_of(X86, ZEN3) == ("AVX2", "FMA", "F16C")
    assert {"AVX-512", "AMX", "AVX-512 VNNI", "AVX-VNNI"} <= set(LACKS)
    assert in_words(LACKS) == ["AVX-512", "AVX-VNNI", "AMX"]
    assert lacking(("h100", "nvidia"), ZEN3) == () == lacking(("arm",), ())


def test_of_a_processor_that_tells_no_flags_nothing_is_said_to_be_lacking() -> None:
    assert lacking(X86, ()) == ()


def test_the_probe_tells_the_flags_that_the_extensions_are_known_by() -> None:
    flags = " ".join(flag for e in load_extensions() for flag in sorted(e.flags))
    probed = parse_cpuinfo(f"processor : 0\nmodel name : X\nflags : sse {flags}\n", "x86_64")
    named = set(probed.detail["vector_features"].split())
    assert all(e.flags & named for e in load_extensions())


def test_facts_of_what_is_lacking_are_told_by_their_keys() -> None:
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
        ("_mm256_fmadd_ps", "FMA, a flag of its own beside AVX2.", False),
        ("_mm256_loadu_ps", "AVX.", False),
        ("parallel", "Loop in canonical form.", False),
    ],
)
def test_names_of_what_is_lacking_are_told_by_name_or_limit(
    name: str, limits: str, absent: bool
) -> None:
    assert is_lacking_name(name, (limits,), LACKS) is absent
    assert not is_lacking_name(name, (limits,), ())


def test_one_of_several_extensions_that_a_card_names_is_enough() -> None:
    alder_lake = lacking(X86, (*ZEN3, "avx_vnni"))
    stated = "AVX-VNNI (`-mavxvnni`): processors without AVX-512."
    assert not is_lacking_name("_mm256_dpbusd_avx_epi32", (stated,), alder_lake)


def test_a_section_is_about_what_is_lacking_by_its_title_or_most_of_its_words() -> None:
    assert is_about_lacking("AMX multiplies tiles of one kilobyte", "A tile has rows.", LACKS)
    assert not is_about_lacking("AVX2 and AVX-512 kernels", "Eight lanes.", LACKS)
    masks = "An AVX-512 mask: `_mm512_maskz_loadu_ps` reads lanes. AVX2 has a vector for it."
    assert is_about_lacking("Masks replace tails", masks, LACKS)
    mostly_here = "With AVX2 use `_mm256_fmadd_ps`; without FMA add. AMX differs."
    assert not is_about_lacking("Products", mostly_here, LACKS)
    assert not is_about_lacking("AMX", masks, ())


def test_macros_are_those_of_the_family_and_of_what_is_there() -> None:
    assert macros(X86, LACKS) == ["__AVX2__", "__FMA__", "__F16C__"]
    assert "__AVX512F__" in macros(("zen5", "x86-64")) and macros(("arm",)) == ["__ARM_FEATURE_SVE"]
