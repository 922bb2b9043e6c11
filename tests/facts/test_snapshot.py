"""Asking the facts for a section."""

import pytest

from shardlint.facts import Facts, FrozenDict, ModelFacts, NotEvaluated, Section
from shardlint.testing import base_snapshot


def test_a_section_that_is_there_is_returned():
    facts = base_snapshot("llama")
    assert isinstance(facts.require(Section.MODEL), ModelFacts)
    assert facts.require(Section.MODEL) is facts.model


@pytest.mark.parametrize("section", Section)
def test_an_absent_section_says_why(section):
    with pytest.raises(NotEvaluated, match=f"no {section.value} facts were collected"):
        Facts().require(section)
    with pytest.raises(NotEvaluated, match="no such thing today"):
        Facts(absent=FrozenDict({section.value: "no such thing today"})).require(section)
