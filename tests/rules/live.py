"""Facts of live models, for the tests of rules on real objects."""

from attrs import evolve

from shardlint import Target
from shardlint.collect import collect


def facts_of(model, checkpoint=None, load_info=None, *, declared=None, data=None, **sections):
    """The facts of a live model, its checkpoint, what from_pretrained reported, its contract and its data pipeline."""
    target = Target(model=model, checkpoint=checkpoint, load_info=load_info, contract=declared, data=data)
    facts = collect(target)
    assert facts.problems == ()
    return evolve(facts, **sections)
