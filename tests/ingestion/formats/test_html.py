"""HTML: the main content, once, in order."""

from __future__ import annotations

import pytest

from ingestion.elements import Element, Table
from ingestion.formats import parse
from ingestion.formats.html import parse_fragment, parse_html
from kb.errors import ParseFailed


def kinds(text: str) -> list[tuple[str, str]]:
    return [(element.kind, element.text) for element in parse_html(text).elements]


def test_main_content_without_navigation() -> None:
    page = """<html><head><title>Guide - Site</title><style>p{}</style></head><body>
    <nav><ul><li>Home</li></ul></nav><header><h2>Site</h2></header>
    <main><h1>Guide<a class="headerlink" href="#x">¶</a></h1>
    <div>Loose <b>words</b><p>A &lt; B.</p>tail<div hidden>secret</div></div>
    <script>x()</script><!-- comment --></main><footer>(c)</footer></body></html>"""
    assert kinds(page) == [
        ("title", "Guide"),
        ("text", "Loose words"),
        ("text", "A < B."),
        ("text", "tail"),
    ]
    assert parse_html(page).title == "Guide"
    assert parse_html("<title>Only this</title><p>x</p>").title == "Only this"


def test_nested_lists_yield_their_code_blocks() -> None:
    assert kinds("<ul><li>one<ul><li>in</li></ul></li><li><p>two</p></li></ul>") == [
        ("list", "- one\n  - in\n- two")
    ]
    assert kinds("<ol><li>run<pre>make</pre></li><li>done</li></ol>") == [
        ("text", "run"),
        ("code", "make"),
        ("list", "2. done"),
    ]


def test_code_with_its_language() -> None:
    assert parse_fragment('<div class="highlight-c++"><pre>int a;\n  b();</pre></div>') == [
        Element("code", "int a;\n  b();", language="c++")
    ]


def test_table_with_spans_is_rectangular() -> None:
    (element,) = parse_fragment(
        "<table><caption>Limits</caption><thead><tr><th rowspan=2>dtype</th>"
        "<th colspan=2>rate</th></tr>"
        "<tr><th>dense</th><th>sparse</th></tr></thead>"
        "<tr><td rowspan=2>fp16</td><td>1</td><td>2</td></tr><tr><td>3</td></tr></table>"
    )
    assert element.table == Table(
        (("dtype", "rate", "rate"), ("dtype", "dense", "sparse")),
        (("fp16", "1", "2"), ("fp16", "3", "")),
        "Limits",
    )
    assert element.text.startswith(
        "Limits\n\n| dtype | rate | rate |\n| dtype | dense | sparse |\n| ---"
    )


def test_api_pages() -> None:
    page = (
        "<dl><dt>copy(dst, src)</dt><dd><p>Copies.</p><dl><dt>dst</dt><dd>where to</dd>"
        "</dl></dd></dl>"
        '<table class="memname"><tr><td>int launch</td><td>(</td><td>)</td></tr></table>'
    )
    texts = [text for _, text in kinds(page)]
    assert texts[:2] == ["copy(dst, src)\nCopies.", "dst\nwhere to"]
    assert texts[2:] == ["int launch ( )"]  # a prototype is one line, not one text per cell


def test_excessive_nesting_fails_with_hint() -> None:
    with pytest.raises(ParseFailed) as caught:
        parse(b"<html>" + b"<div>" * 5_000 + b"x", "deep.html")
    assert caught.value.hint


def test_broken_html_is_read() -> None:
    assert kinds("<p>open <b>bold<table><tr><td>a<td>b<tr><td>c") == [
        ("text", "open"),
        ("text", "bold"),
        ("table", "| a | b |\n| c |  |"),
    ]
