"""Facts survive JSON: every class of every section, with whatever values its types allow."""

import json
from unittest import mock

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from facts.strategies import PLAIN, TEXT, values_of
from shardlint.facts import FACTS_VERSION, Facts, FrozenDict, Section, freeze, thaw
from shardlint.facts.codec import decode_facts, encode_facts

SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)


def test_every_section_is_a_field_that_may_be_absent() -> None:
    facts = Facts()
    names = {item.name for item in attrs.fields(Facts)}
    for section in Section:
        assert section.value in names
        assert not facts.has(section)
        assert section.value in facts.why_absent(section)


@pytest.fixture(scope="module")
def _any_numbers():
    """Random numbers refer to nothing: what they may be is tested with `reference_problems`."""
    with mock.patch("shardlint.facts.codec.reference_problems", return_value=[]):
        yield


@pytest.mark.usefixtures("_any_numbers")
@pytest.mark.parametrize("section", list(Section), ids=lambda section: section.value)
@settings(max_examples=25, suppress_health_check=SLOW, deadline=None)
@given(data=st.data())
def test_round_trip_of_each_section(section: Section, data: st.DataObject) -> None:
    hints = attrs.resolve_types(Facts) and {item.name: item.type for item in attrs.fields(Facts)}
    value = data.draw(values_of(hints[section.value]))
    facts = Facts(**{section.value: value})
    text = encode_facts(facts)
    assert decode_facts(text) == facts
    assert encode_facts(decode_facts(text)) == text
    assert hash(decode_facts(text)) == hash(facts)


@given(target=TEXT, absent=st.dictionaries(TEXT, PLAIN, max_size=2))
def test_indented_and_reordered_json_gives_the_same_facts(target: str, absent: dict[str, object]) -> None:
    facts = Facts(target=target, absent=FrozenDict(absent))
    other = dict(reversed(json.loads(encode_facts(facts)).items()))
    assert decode_facts(json.dumps(other, indent=2).encode()) == facts


@given(value=PLAIN)
def test_frozen_values_are_plain_hashable_and_freeze_to_themselves(value: object) -> None:
    frozen = freeze(value)
    hash(frozen)
    assert freeze(frozen) == frozen
    assert freeze(thaw(frozen)) == frozen
    assert json.loads(json.dumps(thaw(frozen), allow_nan=False)) == thaw(frozen)


def test_the_version_is_written() -> None:
    assert json.loads(encode_facts(Facts()))["version"] == FACTS_VERSION
