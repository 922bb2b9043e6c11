"""Facts of live models, for the tests of rules on real objects."""

from attrs import evolve

from shardlint import Target
from shardlint.collect import collect


def facts_of(model, checkpoint=None, load_info=None, **sections):
    """The facts of a live model, its checkpoint folder or file, and what from_pretrained reported."""
    facts = collect(Target(model=model, checkpoint=checkpoint, load_info=load_info))
    assert facts.problems == ()
    return evolve(facts, **sections)
