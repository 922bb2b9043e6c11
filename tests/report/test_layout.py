"""Lines within a width."""

from hypothesis import given
from hypothesis import strategies as st

from shardlint.report.layout import labelled, paragraphs, plain, table


def test_paragraphs_are_reflowed_and_lists_keep_their_items():
    text = "One sentence that\ngoes on.\n\n- an item that is\n  rather long\n- another\n\n1. first"
    assert paragraphs(text, 30, "  ") == [
        "  One sentence that goes on.",
        "",
        "  - an item that is rather",
        "    long",
        "  - another",
        "",
        "  1. first",
    ]


def test_code_is_kept_as_it_is():
    text = "Run:\n\n```python\nif x:\n    y()\n\nz()\n```\n\nand then\n\n    indented  text"
    assert paragraphs(text, 20) == [
        "Run:",
        "",
        "    if x:",
        "        y()",
        "    ",
        "    z()",
        "",
        "and then",
        "",
        "    indented  text",
    ]


def test_a_label_stands_beside_the_first_line():
    assert labelled("Why", "because of\nthis", 80, "  ", 6) == ["  Why   because of this"]
    assert labelled("Why", "", 80, "  ", 6) == ["  Why"]


def test_columns_of_a_table_are_aligned_and_the_last_is_wrapped():
    rows = [("D1", "short", "a b"), ("D22", "longer-name", "word " * 12)]
    lines = table(rows, 50)
    assert lines[0] == "D1   short        a b"
    assert all(len(line) <= 50 for line in lines)
    assert lines[2].startswith(" " * 18 + "word")


def test_an_empty_table_is_no_line():
    assert table([], 80) == []


def test_plain_values():
    assert plain((1, 2, 3)) == "[1, 2, 3]"
    assert plain(("a", "b")) == "a, b"
    assert plain(()) == "none"
    assert plain({"a": (1,), "b": None}) == "{a: [1], b: none}"
    assert (plain(True), plain(1), plain(0), plain(False)) == ("yes", "1", "0", "no")
    assert plain(tuple(f"k{i}" for i in range(20))).endswith("k7, ... 12 more")
    assert plain(tuple(f"k{i}" for i in range(9))).endswith("k7, k8")


@given(st.text(), st.integers(20, 120))
def test_no_text_breaks_the_layout(text, width):
    for line in paragraphs(text, width, "  "):
        assert line.isprintable()
