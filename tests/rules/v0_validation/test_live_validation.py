"""The V0 rules on live models."""

import pytest

from shardlint.facts import ContractFacts, ProbeFacts
from shardlint.testing import assert_findings, run_rule
from shardlint_rules.v0_validation.probe_unmatched import ProbeUnmatched
from support.models import llama

from ..live import facts_of


@pytest.mark.live("V001")
def test_v001_names_of_a_live_model():
    globs = ("lm_head.weight", "model.layers.*.mlp.up_proj.weight", "model.layers.*.mlp.w1.weight")
    contract = ContractFacts(source="acme", probes=tuple(ProbeFacts(glob=glob) for glob in globs))
    facts = facts_of(llama(tie_word_embeddings=True), contract=contract)
    assert_findings(run_rule(ProbeUnmatched, facts), "model.layers.*.mlp.w1.weight")
