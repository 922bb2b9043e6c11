"""The parameters of FSDP1 under their own names and in their global shapes."""

from shardlint.collect.flat_parameters import with_originals
from shardlint.facts import (
    LayoutFacts,
    ModelCounts,
    ModelFacts,
    OwnershipFacts,
    ShardingFacts,
    TensorFacts,
    UnitFacts,
)


def tensor(name, shape, kind="parameter"):
    return TensorFacts(
        fqn=name,
        aliases=(name,),
        kind=kind,
        shape=shape,
        dtype="float32",
        device="cpu",
        requires_grad=True,
        is_meta=False,
        storage=0,
    )


def model_of(*tensors):
    return ModelFacts(
        qualified_type="M",
        tensors=tensors,
        counts=ModelCounts(modules=1, parameters=len(tensors), buffers=0, parameter_elements=7),
    )


def sharding_of(*names, kind="fsdp1"):
    identities = {"tied.weight": 0}
    return ShardingFacts(
        layouts=(LayoutFacts(global_shape=(4, 2), local_shape=(3,), flat=(5, 3)),),
        units=(UnitFacts(name="<root>", owner="<root>", kind=kind),),
        parameters=tuple(
            OwnershipFacts(
                fqn=name,
                owner="<root>",
                unit=0,
                layout=0,
                identity=identities.get(name, index),
                dtype="float32",
                device="cpu",
            )
            for index, name in enumerate(names)
        ),
    )


def test_a_run_of_elements_gets_the_shape_of_the_whole():
    model = with_originals(model_of(tensor("weight", (3,)), tensor("other", (2,))), sharding_of("weight"))
    assert [(item.fqn, item.shape, item.local_shape) for item in model.tensors] == [
        ("weight", (4, 2), (3,)),
        ("other", (2,), None),
    ]
    assert model.counts.parameter_elements == 10


def test_a_flat_parameter_is_replaced_by_those_that_it_holds():
    buffer = tensor("mean", (2,), "buffer")
    model = with_originals(model_of(tensor("_flat_param", (6,)), buffer), sharding_of("weight", "tied.weight"))
    assert [(item.fqn, item.aliases, item.shape) for item in model.tensors] == [
        ("mean", ("mean",), (2,)),
        ("tied.weight", ("tied.weight", "weight"), (4, 2)),
    ]
    assert model.counts.parameters == 1


def test_other_wrappers_leave_the_model_as_it_is():
    model = model_of(tensor("weight", (3,)))
    assert with_originals(model, sharding_of("weight", kind="fsdp2")) is model
