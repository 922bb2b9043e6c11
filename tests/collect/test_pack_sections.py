"""What a pack collects of its own, and two packs that write one section."""

import pytest
from attrs import frozen
from torch import nn

from shardlint import NotEvaluated
from shardlint.collect import collect
from shardlint.collect.options import CollectOptions
from shardlint.facts import ValuesFacts
from shardlint.facts.codec import decode_facts, encode_facts
from shardlint.target import Target


@frozen(kw_only=True)
class Packed:
    """A pack's collector, as the registry hands it over."""

    name: str = "acme-runs"
    section: str = "pack:acme"
    label: str = "acme"
    root: str = ""
    result: object = None
    collector: object = None

    def collect(self, target, walk, facts):
        return self.result


@frozen(kw_only=True)
class Registered:
    """The part of the registry that collecting uses."""

    collectors: tuple

    def contracts(self, query):
        return ()


def collected(*collectors):
    return collect(Target(model=nn.Linear(2, 2)), CollectOptions(packs=Registered(collectors=collectors)))


def test_a_pack_has_a_section_of_its_own_that_survives_json():
    facts = collected(Packed(result={"run": "a7", "nodes": [1, 2]}))
    assert facts.extra("acme") == {"run": "a7", "nodes": (1, 2)}
    assert decode_facts(encode_facts(facts)) == facts


def test_several_collectors_of_one_pack_add_to_it():
    facts = collected(Packed(result={"run": "a7"}), Packed(name="acme-nodes", result={"nodes": 4}))
    assert facts.extra("acme") == {"run": "a7", "nodes": 4}


def test_a_section_that_nobody_collected_says_so():
    with pytest.raises(NotEvaluated, match="no facts of the pack acme were collected"):
        collected().extra("acme")


@pytest.mark.parametrize("result", ["text", [1], {"layer": object()}])
def test_a_result_that_is_no_plain_mapping_is_a_problem_of_the_pack(result):
    facts = collected(Packed(result=result))
    (problem,) = facts.problems
    assert (problem.pack, problem.section) == ("acme", "pack:acme")
    with pytest.raises(NotEvaluated, match="acme-runs failed"):
        facts.extra("acme")


def test_two_packs_that_write_one_section_are_a_conflict_and_the_first_stays():
    first = Packed(section="values", result=ValuesFacts())
    other = Packed(name="corp-values", section="values", label="corp", result=ValuesFacts())
    facts = collected(first, other)
    (problem,) = facts.problems
    assert problem.pack == "corp"
    assert "the pack acme writes the section values too (acme-runs)" in problem.error
    assert facts.values == ValuesFacts()
