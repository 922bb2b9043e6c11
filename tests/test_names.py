import itertools
from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardlint.names import (
    closest,
    collapse,
    collapse_exactly,
    did_you_mean,
    glob_matches,
    listed,
    natural_key,
    ordered,
    owner_of,
    pattern_of,
    printable,
    ranges,
)

segments = st.text("ab01", max_size=3)
names = st.lists(segments, min_size=1, max_size=5).map(".".join)
pattern_parts = st.lists(st.sampled_from(["a", "b", "0", "*", "?", "[a-b]", "[!a]", "[*]", "[", "]"]), max_size=4)
pattern_segments = st.one_of(st.just("**"), pattern_parts.map("".join))
patterns = st.lists(pattern_segments, min_size=1, max_size=5).map(".".join)


def brute(pattern: list[str], name: list[str]) -> bool:
    """The definition: segment by segment, trying every length for `**`."""
    if not pattern:
        return not name
    if pattern[0] == "**":
        return any(brute(pattern[1:], name[skip:]) for skip in range(len(name) + 1))
    return bool(name) and fnmatchcase(name[0], pattern[0]) and brute(pattern[1:], name[1:])


@given(patterns, names)
def test_globs_match_as_by_brute_force(pattern, name):
    assert glob_matches(pattern, name) == brute(pattern.split("."), name.split("."))


@given(st.lists(st.sampled_from(["a", "b", "*", "**", "?"]), min_size=1, max_size=6).map(".".join), names)
def test_segment_wildcards_match_as_by_brute_force(pattern, name):
    assert glob_matches(pattern, name) == brute(pattern.split("."), name.split("."))


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("layers.*.weight", "layers.3.weight", True),
        ("layers.*.weight", "layers.3.mlp.weight", False),
        ("layers.**.weight", "layers.3.mlp.weight", True),
        ("layers.**.weight", "layers.weight", True),
        ("layers.**", "layers", True),
        ("layers.**", "layersx", False),
        ("**", "", True),
        ("**.weight", "weight", True),
        ("a?b", "a.b", False),
        ("a[!x]b", "a.b", False),
        ("a[*]", "a*", True),
        ("a[*]", "ab", False),
        ("Layers.*", "layers.0", False),
        ("x", "x\n", False),
        ("*", "x\ny", True),
        ("model-*.safetensors", "model-00001-of-00002.safetensors", True),
        ("*", "model.safetensors", False),
    ],
)
def test_glob_table(pattern, name, matches):
    assert glob_matches(pattern, name) is matches


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("**.".join(["a."] * 30) + "z", "a." * 300 + "y"),
        ("*a" * 40 + "z", "a" * 3000),
        ("**." * 60 + "z", "a." * 500 + "y"),
        ("**.*a*a*a." * 20 + "z", "aaaa." * 200 + "y"),
    ],
)
@pytest.mark.timeout(20)
def test_hostile_globs_do_not_explode(pattern, name):
    assert not glob_matches(pattern, name)


def test_natural_order():
    assert sorted(["l.10", "l.2", "l", "l.02", "l.2.b"], key=natural_key) == ["l", "l.02", "l.2", "l.2.b", "l.10"]


@given(st.lists(st.text("a1.0", max_size=6), max_size=6))
def test_natural_order_is_total_and_independent_of_the_input_order(items):
    expected = sorted(items, key=natural_key)
    backwards = items[::-1]
    assert sorted(backwards, key=natural_key) == expected
    assert [natural_key(a) == natural_key(b) for a, b in itertools.pairwise(items)] == [
        a == b for a, b in itertools.pairwise(items)
    ]


def test_numbers_of_any_length_are_ordered():
    assert natural_key("9" * 10_000) < natural_key("1" + "0" * 10_000)


def test_natural_key_keeps_a_bounded_cache():
    assert natural_key.cache_info().maxsize


def test_ranges_and_collapse():
    assert ranges([3, 0, 1, 2, 7, 7]) == "0..3,7"
    assert ranges([]) == ""
    assert collapse(["layers.0.w", "layers.1.w", "layers.5.w"]) == "layers.{0..1,5}.w"
    assert collapse([f"l.{i}.experts.{j}.w" for i in range(2) for j in range(3)]) == "l.{0..1}.experts.{0..2}.w"
    assert collapse(["only.1"]) == "only.1"


def test_pattern_of_takes_plain_indices_alone():
    assert pattern_of("layers.10.w") == "layers.*.w"
    assert pattern_of("layers.007.\u00b2.w") == "layers.007.\u00b2.w"
    assert pattern_of("9" * 5000) == "9" * 5000


def test_a_missing_expert_stands_apart():
    names = [f"l.{i}.e.{j}" for i in range(4) for j in range(3) if (i, j) != (2, 1)]
    assert [text for text, _ in collapse_exactly(names)] == ["l.{0..1,3}.e.{0..2}", "l.2.e.{0,2}"]


@given(st.sets(st.tuples(st.integers(0, 4), st.sampled_from("xy*,"), st.integers(0, 12))))
def test_collapse_exactly_covers_every_name_once(rows):
    names = {f"l.{first}.{middle}.{last}" for first, middle, last in rows}
    groups = collapse_exactly(names)
    members = [name for _, group in groups for name in group]
    assert sorted(members) == sorted(names)
    assert all(text == collapse(group) for text, group in groups)


@given(st.text())
def test_printable_text_is_printable_and_the_same_when_it_was(text):
    shown = printable(text)
    assert shown.isprintable()
    assert (shown == text) is text.isprintable()


def test_printable_escapes_what_acts():
    assert printable("a\x1b[31m\n\u202eb\ud800") == r"a\x1b[31m\n\u202eb\ud800"


def test_closest():
    assert closest("missing-kye", ["missing-key", "other"]) == ("missing-key",)
    assert did_you_mean("D30", ["D301"]) == " (did you mean 'D301'?)"
    assert did_you_mean("zzz", ["D301"]) == ""


def test_names_in_messages():
    assert listed(["b", "a", "b"]) == "b, a"
    assert listed(map(str, range(10))) == "0, 1, 2, 3, 4, 5, 6, 7 and 2 more"
    assert listed("abc", 2) == "a, b and 1 more"
    assert ordered(["l.10", "l.2", "l.10"]) == ("l.2", "l.10")
    assert (owner_of("a.b.weight"), owner_of("weight")) == ("a.b", "<root>")
