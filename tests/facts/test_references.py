"""Facts whose parts do not fit together are refused with the path, and no rule sees them."""

import json

import pytest

from shardlint.facts import (
    Facts,
    LayoutFacts,
    MeshFacts,
    OptimizerFacts,
    OwnershipFacts,
    ReductionFacts,
    ShardingFacts,
    UnitFacts,
)
from shardlint.facts.codec import FactsError, decode_facts, encode_facts
from shardlint.facts.optimizer import HeldTensor, LiveParameter, OptimizerInstance, ParameterGroup, TensorSpec

SHARDING = ShardingFacts(
    meshes=(MeshFacts(axes=("fsdp",), shape=(2,), ranks=(0, 1), coordinate=(0,)),),
    layouts=(LayoutFacts(global_shape=(4,), local_shape=(2,), mesh=0, source_mesh=0),),
    reductions=(ReductionFacts(ranks=(0, 1)),),
    units=(UnitFacts(name="a", owner="a", kind="fsdp2", mesh=0, reduction=0),),
    parameters=(OwnershipFacts(fqn="a.w", owner="a", unit=0, layout=0, identity=0),),
)
OPTIMIZER = OptimizerFacts(
    optimizers=(OptimizerInstance(name="o", qualified_type="SGD"),),
    groups=(ParameterGroup(optimizer=0, position=0, name="", size=1),),
    specs=(TensorSpec(shape=(4,), local_shape=(4,), dtype="float32"),),
    parameters=(LiveParameter(identity=0, fqn="w", aliases=("w",), spec=0, global_shape=(4,)),),
    held=(HeldTensor(identity=0, group=0, position=0, spec=0, parameter=0, state={"exp_avg": 0}),),
)
PLAIN = json.loads(encode_facts(Facts(sharding=SHARDING, optimizer=OPTIMIZER)))
LINKS = [
    "sharding.layouts.0.mesh",
    "sharding.layouts.0.source_mesh",
    "sharding.units.0.mesh",
    "sharding.units.0.reduction",
    "sharding.parameters.0.unit",
    "sharding.parameters.0.layout",
    "optimizer.groups.0.optimizer",
    "optimizer.parameters.0.spec",
    "optimizer.parameters.0.main",
    "optimizer.held.0.group",
    "optimizer.held.0.spec",
    "optimizer.held.0.parameter",
    "optimizer.held.0.full_copy_of",
    "optimizer.held.0.state.exp_avg",
]
LISTS = ["sharding.meshes.0.axes", "sharding.meshes.0.coordinate"]


def changed(path, value):
    """The facts with the value at `path` replaced."""
    facts = json.loads(json.dumps(PLAIN))
    *above, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    place = facts
    for part in above:
        place = place[part]
    place[last] = value
    return json.dumps(facts).encode()


def test_what_fits_is_read():
    assert decode_facts(json.dumps(PLAIN).encode()).sharding == SHARDING


@pytest.mark.parametrize("path", LINKS)
@pytest.mark.parametrize("number", [-1, 1, 2**40])
def test_a_number_of_nothing_is_one_error_with_its_path(path, number):
    with pytest.raises(FactsError) as caught:
        decode_facts(changed(path, number))
    (problem,) = caught.value.problems
    assert problem.replace("[0]", ".0").startswith(f"{path}: expected the number of one of the 1 ")
    assert problem.endswith(f"got {number}")


@pytest.mark.parametrize("path", LISTS)
def test_lists_of_other_lengths_are_refused(path):
    value = ["a", "b"] if path.endswith("axes") else [0, 0]
    with pytest.raises(FactsError, match="expected 1 values, one of each dimension, got 2"):
        decode_facts(changed(path, value))
