"""Which facts ranks compare: all of them, but those that are declared as belonging to one rank."""

import attrs
import pytest
from attrs import evolve

from shardlint import facts
from shardlint.facts import (
    EMPTY,
    Environment,
    Facts,
    FrozenDict,
    MeshFacts,
    ModelCounts,
    ModelFacts,
    ModuleFacts,
    OptimizerFacts,
    OptimizerInstance,
    ParameterGroup,
    ReductionFacts,
    ShardingFacts,
    TensorFacts,
    UnitFacts,
)
from shardlint.ranks import rows
from shardlint.ranks.compare import compare_ranks
from support.rank_threads import run_ranks


def _classes():
    """Every class that a snapshot is made of."""
    return {value.__name__: value for value in vars(facts).values() if isinstance(value, type) and attrs.has(value)}


def test_every_exception_names_a_field_that_exists():
    known = _classes()
    for name in rows.OF_ONE_RANK:
        kind, _, field = name.partition(".")
        assert kind in known, name
        assert not field or field in {item.name for item in attrs.fields(known[kind])}, name


def a_model(**changes):
    module = ModuleFacts(
        fqn="drop",
        aliases=("drop",),
        qualified_type="torch.nn.modules.dropout.Dropout",
        forward_signature="(input)",
        training=True,
        settings=FrozenDict({"p": 0.1, "inplace": False}),
    )
    buffer = TensorFacts(
        fqn="norm.running_mean",
        aliases=("norm.running_mean",),
        kind="buffer",
        shape=(8,),
        dtype="float32",
        device="cuda:0",
        requires_grad=False,
        is_meta=False,
        persistent=True,
    )
    table = evolve(buffer, fqn="rope.inv_freq", aliases=("rope.inv_freq",), persistent=False, digest="12")
    facts = ModelFacts(
        qualified_type="M",
        config=FrozenDict({"rms_norm_eps": 1e-6, "_name_or_path": "/a"}),
        modules=(module,),
        tensors=(buffer, table),
        counts=ModelCounts(modules=1, parameters=0, buffers=2, parameter_elements=0),
    )
    return evolve(facts, **changes)


def a_unit(**changes):
    unit = UnitFacts(
        name="<root>", owner="<root>", kind="fsdp2", mesh=0, reduction=0, mixed_precision=FrozenDict({"p": "bf16"})
    )
    return evolve(unit, **changes)


def the_facts(*, model=None, unit=None, group=EMPTY, divisor=2.0, numerics=EMPTY, coordinate=0):
    return Facts(
        model=a_model() if model is None else model,
        sharding=ShardingFacts(
            meshes=(MeshFacts(axes=("dp",), shape=(2,), ranks=(0, 1), coordinate=(coordinate,)),),
            reductions=(ReductionFacts(ranks=(0, 1), divisor=divisor),),
            units=(a_unit() if unit is None else unit,),
        ),
        optimizer=OptimizerFacts(
            optimizers=(OptimizerInstance(name="optimizer", qualified_type="AdamW"),),
            groups=(
                ParameterGroup(optimizer=0, position=0, name="", size=3, options=FrozenDict({"lr": 1.0, **group})),
            ),
        ),
        environment=Environment(numerics=numerics),
    )


def with_module(**changes):
    model = a_model()
    return evolve(model, modules=(evolve(model.modules[0], **changes),))


def with_buffer(index, **changes):
    model = a_model()
    tensors = list(model.tensors)
    tensors[index] = evolve(tensors[index], **changes)
    return evolve(model, tensors=tuple(tensors))


DIFFERENT = {
    "resharding": ({"unit": a_unit(reshard_after_forward=True)}, "unit", "reshard_after_forward"),
    "precision": ({"unit": a_unit(mixed_precision=FrozenDict({"p": "fp32"}))}, "unit", "mixed_precision"),
    "prefetching": ({"unit": a_unit(forward_prefetch=("a",))}, "unit", "forward_prefetch"),
    "flags": ({"unit": a_unit(flags=FrozenDict({"reduce_grads": False}))}, "unit", "flags"),
    "divisor": ({"divisor": 4.0}, "unit", "divisor"),
    "learning rate": ({"group": {"lr": 2.0}}, "group", "lr"),
    "weight decay": ({"group": {"weight_decay": 0.1}}, "group", "weight_decay"),
    "mode": ({"model": with_module(training=False)}, "module", "training"),
    "class": ({"model": with_module(qualified_type="torch.nn.Identity")}, "module", "qualified_type"),
    "rate": (
        {"model": with_module(settings=FrozenDict({"p": 0.5, "inplace": False}))},
        "module",
        "constant p",
    ),
    "config": ({"model": a_model(config=FrozenDict({"rms_norm_eps": 1e-5}))}, "config", "value"),
    "buffer shape": ({"model": with_buffer(0, shape=(9,))}, "buffer", "shape"),
    "buffer absent": ({"model": a_model(tensors=a_model().tensors[1:])}, "buffer", "present"),
    "derived values": ({"model": with_buffer(1, digest="34")}, "cache", "digest"),
    "numerics": ({"numerics": FrozenDict({"NCCL_ALGO": "Ring"})}, "environment", "NCCL_ALGO"),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_what_differs_on_one_rank_is_found_with_kind_and_field(case):
    changes, kind, field = DIFFERENT[case]
    results = run_ranks(2, lambda place: compare_ranks(place, the_facts(**changes if place.rank else {}), 5.0))
    differences = results[0][0].differences
    assert (kind, field, (1,)) in {(item.kind, item.field, item.ranks) for item in differences}
    assert len(differences) == 1 or case == "class"


OF_ITS_OWN = {
    "coordinate": {"coordinate": 1},
    "device number": {"model": with_buffer(0, device="cuda:1")},
    "folder": {"model": a_model(config=FrozenDict({"rms_norm_eps": 1e-6, "_name_or_path": "/b"}))},
    "memory": {"model": with_buffer(0, storage=7)},
    "moment": {"unit": a_unit(unsharded=True)},
}


@pytest.mark.parametrize("case", OF_ITS_OWN)
def test_what_belongs_to_one_rank_is_no_difference(case):
    changes = OF_ITS_OWN[case]
    results = run_ranks(2, lambda place: compare_ranks(place, the_facts(**changes if place.rank else {}), 5.0))
    assert results[0][0].differences == ()


def test_the_odd_one_out_is_named_though_it_is_the_first_rank():
    def of_three(place):
        facts = the_facts(divisor=1.0 if place.rank == 0 else 3.0)
        mesh = MeshFacts(axes=("dp",), shape=(3,), ranks=(0, 1, 2), coordinate=(place.rank,))
        return compare_ranks(place, evolve(facts, sharding=evolve(facts.sharding, meshes=(mesh,))), 5.0)

    (difference,) = run_ranks(3, of_three)[0][0].differences
    assert (difference.ranks, difference.reference_rank, difference.value) == ((0,), 1, "1.0")
