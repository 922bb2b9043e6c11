"""The globs of a contract: one language, and the same names excused by the plan, D501 and V002."""

from fnmatch import fnmatchcase

import pytest
import torch
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from shardlint.analysis.contract_globs import Exclusions, exclusions_of, first_match, matches_any, meant_across_dots
from shardlint.analysis.coverage import SourceClass, TargetClass, planned_coverage, stored_coverage
from shardlint.checkpoint.folder import collect_checkpoint
from shardlint.collect.model import model_facts
from shardlint.facts import ContractFacts, Facts
from shardlint.introspect.walk import walk
from shardlint.loading.plan import collect_plan
from shardlint.names import glob_matches
from shardlint.weights import RowKind, RowStatus, verify

EXTRA_TARGETS = ("head.bias", "layers.0.mlp.bias", "layers.1.mlp.bias", "layers.1.norm.weight")
EXTRA_SOURCES = ("mtp.bias", "mtp.0.proj.bias", "layers.9.mlp.bias", "mtp.0.proj.weight_scale")

segments = st.sampled_from(
    ["layers", "mtp", "head", "mlp", "bias", "0", "*", "**", "*s", "m*", "b?as", "[0-9]", "*_scale"]
)
globs = st.lists(segments, min_size=1, max_size=4).map(".".join)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = nn.Linear(2, 2)
        self.norm = nn.LayerNorm(2, bias=False)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(2, 2)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    from safetensors.torch import save_file

    model = Net()
    tensors = {name: value.clone() for name, value in model.state_dict().items() if name not in EXTRA_TARGETS}
    path = tmp_path_factory.mktemp("stored") / "model.safetensors"
    save_file(tensors | {key: torch.ones(2) for key in EXTRA_SOURCES}, path)
    return model, path


def excused_by_coverage(coverage):
    targets = {name for name, kind in coverage.targets.items() if kind is TargetClass.TRAINING_ONLY_INITIALIZATION}
    sources = {key for key, kind in coverage.sources.items() if kind is SourceClass.INFERENCE_ONLY_EXCLUSION}
    return targets, sources


def excused_by_weights(result):
    rows = [row for row in result.rows if row.status is RowStatus.EXCLUDED]
    return (
        {row.name for row in rows if row.kind is RowKind.LIVE},
        {row.name for row in rows if row.kind is RowKind.CHECKPOINT},
    )


@settings(max_examples=25, deadline=None)
@given(target=globs, source=globs)
def test_headers_plan_and_weights_excuse_the_same_names(stored, target, source):
    model, path = stored
    contract = ContractFacts(source="test", training_only_targets=(target,), inference_only_sources=(source,))
    facts = Facts(model=model_facts(walk(model)), checkpoint=collect_checkpoint(path), contract=contract)
    plan = collect_plan(facts.checkpoint, model=model, model_facts=facts.model, exclusions=exclusions_of(contract))
    expected = (
        {name for name in EXTRA_TARGETS if glob_matches(target, name)},
        {key for key in EXTRA_SOURCES if glob_matches(source, key)},
    )
    assert excused_by_coverage(stored_coverage(facts)) == expected
    assert excused_by_coverage(planned_coverage(evolve(facts, plan=plan))) == expected
    assert excused_by_weights(verify(model, path, contract=contract)) == expected


@pytest.mark.parametrize(
    ("glob", "name", "covered"),
    [
        ("model.*.bias", "model.norm.bias", True),
        ("model.*.bias", "model.layers.0.mlp.bias", False),
        ("model.**.bias", "model.layers.0.mlp.bias", True),
        ("model.**.bias", "model.bias", True),
        ("value_head.*", "value_head.out.weight", False),
        ("**.*_scale", "scale.w_scale", True),
        ("Model.*", "model.norm", False),
    ],
)
def test_a_star_is_one_segment(glob, name, covered):
    exclusions = exclusions_of(
        ContractFacts(source="test", training_only_targets=(glob,), inference_only_sources=(glob,))
    )
    assert (exclusions.of_tensor(name), exclusions.of_key(name)) == ((glob, glob) if covered else ("", ""))
    assert matches_any(glob, ("other", name)) is covered


def test_the_first_glob_counts_and_nothing_is_excused_without_a_contract():
    assert first_match(("x.*", "a.*", "a.b"), ("q", "a.b")) == "a.*"
    assert exclusions_of(None) == Exclusions()
    assert Exclusions().of_key("a") == ""


@pytest.mark.parametrize(
    ("glob", "wider"),
    [
        ("model.*.bias", "model.**.bias"),
        ("*.bias", "**.bias"),
        ("model.*", "model.**"),
        ("*bias", "**.*bias"),
        ("model.la*", "model.la*.**"),
        ("*mlp*", "**.*mlp*.**"),
        ("model.layers.0.mlp.bias", ""),
        ("model.layers.*.mlp.bias", ""),
        ("nothing.*", ""),
    ],
)
def test_how_a_glob_is_written_whose_star_was_meant_to_cross_dots(glob, wider):
    assert meant_across_dots(glob, ("norm", "model.layers.0.mlp.bias")) == wider


@given(glob=globs, names=st.lists(globs.filter(lambda text: "*" not in text and "[" not in text), max_size=3))
def test_only_what_a_shell_would_match_is_written_wider(glob, names):
    wider = meant_across_dots(glob, names)
    if wider:
        assert matches_any(wider, names)
        assert not matches_any(glob, names)
        assert any(fnmatchcase(name, glob) for name in names)
