"""Both loaders give the same values, and deep nesting does not crash the process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import yaml

from kb.yaml_loaders import DEPTH, safe_loader, text_loader

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
