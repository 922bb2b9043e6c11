"""Facts of live models, for the tests of rules on real objects."""

from pathlib import Path

from attrs import evolve

from shardlint.collect.checkpoint import collect_checkpoint
from shardlint.collect.key_mapping import key_mapping
from shardlint.collect.model import model_facts
from shardlint.collect.walk import walk
from shardlint.facts import Facts, LoadFacts, MismatchedKey


def facts_of(model, checkpoint=None, load_info=None, **sections):
    """The facts of a live model, its checkpoint folder or file, and what from_pretrained reported."""
    found = model_facts(walk(model))
    return Facts(
        model=evolve(found, key_mapping=key_mapping(model)),
        checkpoint=collect_checkpoint(Path(checkpoint)) if checkpoint else None,
        load=load_facts(load_info) if load_info is not None else None,
        **sections,
    )


def load_facts(info):
    return LoadFacts(
        loader="transformers",
        missing=tuple(sorted(info["missing_keys"])),
        unexpected=tuple(sorted(info["unexpected_keys"])),
        mismatched=tuple(
            MismatchedKey(key=key, stored_shape=tuple(stored), live_shape=tuple(live))
            for key, stored, live in sorted(info["mismatched_keys"])
        ),
    )
