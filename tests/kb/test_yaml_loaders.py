"""Both loaders give the same values, and deep nesting does not crash the process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import yaml

from kb.yaml_loaders import DEPTH, load_plain, safe_loader, text_loader

TEXT = "a: 1\nb: [x, {y: no}]\nc:\n  - d: 2.5\n  - 'e: f'\n"


@pytest.mark.parametrize(
    ("choose", "plain"), [(safe_loader, yaml.SafeLoader), (text_loader, yaml.BaseLoader)]
)
def test_fast_loader_gives_same_values(choose: object, plain: type) -> None:
    assert callable(choose)
    chosen = choose(TEXT)
    assert chosen.__name__.startswith("C") == yaml.__with_libyaml__
    assert yaml.load(TEXT, Loader=chosen) == yaml.load(TEXT, Loader=plain)


@pytest.mark.parametrize(
    "text", ["[" * 1100, "a: " + "{b: " * 1100, "- " * 1100 + "x"], ids=["list", "map", "block"]
)
def test_deep_nesting_is_an_error_without_crash(text: str) -> None:
    for choose in (safe_loader, text_loader):
        assert not choose(text).__name__.startswith("C")
        with pytest.raises((RecursionError, yaml.YAMLError)):
            yaml.load(text, Loader=choose(text))


def test_largest_input_of_fast_loader_fits_thread_stack() -> None:
    text = "[\n" * (DEPTH - 4) + "x" + "]" * 2
    assert safe_loader(text).__name__.startswith("C") == yaml.__with_libyaml__
    with ThreadPoolExecutor(1) as threads, pytest.raises((RecursionError, yaml.YAMLError)):
        threads.submit(yaml.load, text, Loader=safe_loader(text)).result()


def test_aliases_are_expanded_within_a_limit() -> None:
    assert load_plain("a: &x [1, 2]\nb: *x\n") == {"a": [1, 2], "b": [1, 2]}
    tenfold = ["- &a [x, x]"]
    for used, defined in zip("abcdefgh", "bcdefghi", strict=True):
        tenfold.append(f"- &{defined} [{f'*{used}, ' * 10}]")
    whole = "\n".join(tenfold)
    pairs = whole.replace(" [", " !!pairs [").replace("*", "x: *").replace("x, x", "x: x")
    long = f"- &a {'x' * 10_000}\n" + "- *a\n" * 10_000
    for text in (whole, pairs, long, "a: &a [*a]", "a: &a {b: *a}"):
        with pytest.raises(yaml.YAMLError, match="aliases make more than 100,000 values"):
            load_plain(text)


@pytest.mark.parametrize(
    "text",
    ["a: 2024-02-30", "a: " + "9" * 5000, "a: 0x" + "f" * 9000, "[" * 5000],
    ids=["date", "decimal", "hexadecimal", "depth"],
)
def test_impossible_or_deep_value_is_a_yaml_error(text: str) -> None:
    with pytest.raises(yaml.YAMLError):
        load_plain(text)
