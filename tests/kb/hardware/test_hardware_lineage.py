from __future__ import annotations

from collections.abc import Mapping

import pytest

from kb.errors import InvalidKnowledge, UnknownHardware
from kb.hardware.lineage import (
    NameIndex,
    descendants,
    effective_facts,
    find,
    lineage,
    names_written,
    narrowest,
    other_model,
    registry_problems,
    resolve,
)
from kb.hardware.spec import FactKind, FactSpec, HardwareSpec


def chip(
    id_: str, parent: str | None = None, *aliases: str, facts: tuple[FactSpec, ...] = ()
) -> HardwareSpec:
    return HardwareSpec(id_, id_, "v", parent, aliases, facts=facts)


def fact(key: str, value: float, kind: FactKind = "datasheet") -> FactSpec:
    return FactSpec(key, value, "count", kind)


def registry() -> dict[str, HardwareSpec]:
    specs = [
        chip("nvidia"),
        chip("hopper", "nvidia", "sm_90", facts=(fact("warp_size", 32), fact("l2_size", 1))),
        chip("ampere", "nvidia", "sm_80"),
        chip("h100", "hopper", "H100 SXM5", "H100 80GB HBM3", facts=(fact("l2_size", 50),)),
        chip(
            "h200",
            "hopper",
            facts=(fact("power", 690, "measured"), fact("power", 700), fact("x_a", 1, "derived")),
        ),
        chip("a100", "ampere", "A100-SXM4-80GB", "l2", "max"),
        chip("amd"),
        chip("mi300x", "amd", "AMD Instinct MI300X"),
        chip("x86-64"),
        chip("tenstorrent_wormhole"),
    ]
    return {spec.id: spec for spec in specs}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("h100", "h100"),
        ("H100", "h100"),
        (" h100-sxm5 ", "h100"),
        ("H100_SXM5", "h100"),
        ("h100 80gb hbm3", "h100"),
        ("x86_64", "x86-64"),
        ("X86 64", "x86-64"),
        ("tenstorrent-wormhole", "tenstorrent_wormhole"),
        ("SM90", "hopper"),
        ("amd instinct mi300x", "mi300x"),
    ],
)
def test_spellings_of_a_name_resolve_to_its_id(name: str, expected: str) -> None:
    assert resolve(name, registry()) == expected


def test_unknown_name_error_lists_nearest_ids() -> None:
    with pytest.raises(UnknownHardware) as caught:
        resolve("h1000", registry())
    assert "h100" in caught.value.details["nearest"]
    assert find("", registry()) is None
    assert find("---", registry()) is None


def test_id_takes_precedence_over_alias() -> None:
    specs = {"a1": chip("a1", None, "b1"), "b1": chip("b1")}
    assert resolve("b1", specs) == "b1"
    assert registry_problems(specs) == []


def test_alias_with_two_owners_is_a_problem() -> None:
    specs = {"a1": chip("a1", None, "x9"), "b1": chip("b1", None, "x9")}
    assert registry_problems(specs) == ["the name x9 belongs to a1, b1. Keep it in one of them."]


def test_lineage_runs_from_chip_to_vendor() -> None:
    assert lineage("h200", registry()) == ("h200", "hopper", "nvidia")
    assert lineage("nvidia", registry()) == ("nvidia",)
    assert descendants("nvidia", registry()) == {"hopper", "ampere", "h100", "h200", "a100"}
    assert descendants("h100", registry()) == set()
    for ask in (lineage, descendants):
        with pytest.raises(UnknownHardware):
            ask("nothing", registry())


def test_circular_or_missing_parent_is_refused() -> None:
    circle = {"a": chip("a", "b"), "b": chip("b", "c"), "c": chip("c", "b")}
    with pytest.raises(InvalidKnowledge, match="circular: a -> b -> c -> b"):
        lineage("a", circle)
    with pytest.raises(InvalidKnowledge, match="not registered"):
        lineage("a", {"a": chip("a", "gone")})
    assert descendants("b", circle) == {"a", "c"}
    assert len(registry_problems(circle)) == 3
    assert registry_problems(registry()) == []


def test_facts_are_inherited_from_nearest_ancestor() -> None:
    facts = effective_facts("h100", registry())
    assert (facts["l2_size"].fact.value, facts["l2_size"].owner) == (50, "h100")
    assert (facts["warp_size"].fact.value, facts["warp_size"].owner) == (32, "hopper")
    assert effective_facts("h200", registry())["power"].fact.value == 700


def names_in(text: str, specs: Mapping[str, HardwareSpec]) -> frozenset[str]:
    index = NameIndex({id_: (id_, spec.name, *spec.aliases) for id_, spec in specs.items()})
    return index.find(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("On A100 use cp.async", {"a100"}),
        ("Tuning for the H100, and for A100s", {"h100", "a100"}),
        ("A100/H100 comparison", {"a100", "h100"}),
        ("H100-SXM5 limits", {"h100"}),
        ("NVIDIA H100 80GB HBM3", {"nvidia", "h100"}),
        ("Wormhole B0", set()),
        ("Tenstorrent Wormhole", {"tenstorrent_wormhole"}),
        ("x86_64 and X86-64", {"x86-64"}),
        ("Hopper tuning guide", {"hopper"}),
        ("compiled for sm_90", {"hopper"}),
        ("SM 90 % busy", set()),
        ("a hopper of grain", set()),
        ("GH100X and XH100", set()),
        ("h1000", set()),
        ("L2 cache, Max threads", set()),
        ("AMD notes", {"amd"}),
        ("amd, lower case", set()),
        ("", set()),
    ],
)
def test_headings_name_registered_hardware(text: str, expected: set[str]) -> None:
    assert names_in(text, registry()) == expected


def test_empty_name_index_finds_nothing() -> None:
    assert NameIndex({}).find("H100") == frozenset()


def test_longest_of_overlapping_names_counts() -> None:
    specs = {"m2": chip("m2", None, "Chip M2"), "m2-max": chip("m2-max", None, "Chip M2 Max")}
    assert names_in("On a Chip M2 Max", specs) == {"m2-max"}
    assert names_in("On a Chip M2", specs) == {"m2"}


def test_narrowest_of_nested_names() -> None:
    assert narrowest({"nvidia", "hopper", "h100", "amd"}, registry()) == {"h100", "amd"}


def test_two_spellings_of_one_name_are_both_found() -> None:
    for names in (["sm_90", "sm90"], ["sm90", "sm_90"]):
        index = NameIndex({"hopper": names})
        assert index.find("On sm_90 the copy engine") == {"hopper"}
        assert index.find("On sm90 the copy engine") == {"hopper"}


def test_names_of_given_hardware_are_found_as_written() -> None:
    """Short ones too, which are ambiguous in a text about any chip."""
    specs = [chip("orbit-m5", None, "m5", "950pr"), chip("orbit", None, "sm_90")]
    assert names_written("Which SM90 tile on an M5 or Orbit M5, not m55?", specs) == [
        "SM90",
        "M5",
        "Orbit M5",
    ]


def test_other_model_is_of_the_same_make_and_beside_no_own_name() -> None:
    names = ["max78000", "mi250x"]
    assert other_model("Limits of MAX78002 networks", names) == "MAX78002"
    assert other_model("MAX78000/MAX78002 resources", names) == ""
    assert other_model("The MI200 series", names) == ""
    assert other_model("Data memory", names) == ""
