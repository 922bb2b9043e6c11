"""Declared ties, expanded over the live names."""

from attrs import evolve

from shardlint.analysis.ties import declared_ties, tie_wanted, wanted_pairs
from shardlint.facts import ContractFacts, FrozenDict
from shardlint.testing import base_snapshot

PAIR = ("lm_head.weight", "model.embed_tokens.weight")


def with_root(model, **changes):
    first, *rest = model.declarations
    return evolve(model, declarations=(evolve(first, **changes), *rest))


def test_a_tie_that_is_asked_for():
    model = base_snapshot("llama-tied").model
    (tie,) = declared_ties(model)
    assert (tie.pairs, tie.wanted, tie.error) == ((PAIR,), True, None)
    assert wanted_pairs(model) == dict([PAIR])


def test_a_tie_that_is_declared_and_not_asked_for():
    model = base_snapshot("llama").model
    assert [tie.wanted for tie in declared_ties(model)] in ([False], [])
    assert wanted_pairs(model) == {}


def test_the_record_of_the_library_counts_before_the_declaration():
    model = with_root(base_snapshot("llama-tied").model, active_ties=FrozenDict())
    assert wanted_pairs(model) == {}


def test_a_pattern_that_cannot_be_read_is_an_error_and_no_pair():
    model = with_root(base_snapshot("llama-tied").model, tied_weights=FrozenDict({"(": PAIR[1]}), active_ties=None)
    (tie,) = declared_ties(model)
    assert tie.pairs == ()
    assert tie.error is not None
    assert "'('" in tie.error


def test_several_matches_are_dealt_out_in_turn():
    model = base_snapshot("llama-tied").model
    model = with_root(model, tied_weights=FrozenDict({r"model\.layers\.\d+\.input_layernorm": r"model\.norm"}))
    (tie,) = declared_ties(model)
    assert set(tie.sources) == {"model.norm.weight"}
    assert [source for _, source in tie.pairs] == ["model.norm.weight"] * len(tie.targets)
    assert len(tie.targets) > 1


def test_nothing_says_whether_it_is_wanted():
    model = base_snapshot("llama-tied").model
    root = evolve(model.declarations[0], tie_word_embeddings=None, active_ties=None)
    assert tie_wanted(root, evolve(model, config=FrozenDict(vocab_size=4))) is None


def test_a_module_that_no_configuration_describes_asks_by_declaring():
    model = with_root(base_snapshot("llama-tied").model, tie_word_embeddings=None, active_ties=None)
    assert tie_wanted(model.declarations[0], evolve(model, config=None)) is True


def test_a_group_of_the_contract_is_one_tensor():
    model = base_snapshot("llama").model
    contract = ContractFacts(source="acme", ties=(("model.embed_tokens.weight", "lm_head.*"),))
    assert wanted_pairs(model, contract) == dict([PAIR])
    (tie,) = [tie for tie in declared_ties(model, contract) if tie.declared_by]
    assert (tie.wanted, tie.targets, tie.sources) == (True, (PAIR[0],), (PAIR[1],))
