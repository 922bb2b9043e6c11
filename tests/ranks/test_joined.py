"""What is true of the job and not of one rank."""

from shardlint.facts import (
    CheckpointFacts,
    EntryFacts,
    Facts,
    FrozenDict,
    HeldTensor,
    LiveParameter,
    ModelCounts,
    ModelFacts,
    OptimizerFacts,
    OptimizerInstance,
    ParameterGroup,
    RankNames,
    TensorFacts,
    TensorSpec,
)
from shardlint.ranks.compare import compare_ranks
from shardlint.ranks.joined import joined
from support.rank_threads import run_ranks


def listing(lists):
    return lambda _kind, ranks: {rank: lists[rank] for rank in ranks}


def said(lists, *, models=None, kind="unwanted"):
    return [
        {kind: "/".join(names), "model": "same" if models is None else models[rank]} for rank, names in lists.items()
    ]


def test_keys_that_another_stage_wants_are_taken_and_those_that_none_wants_are_left():
    lists = {0: ("gap", "layer.1"), 1: ("gap", "layer.0")}
    found = joined(said(lists), "unwanted", [[0], [1]], listing(lists))
    assert found == (RankNames(ranks=(0,), names=("gap",)), RankNames(ranks=(1,), names=("gap",)))


def test_a_key_that_one_rank_of_a_group_does_not_want_stays_its_fault():
    lists = {0: (), 1: ("layer.1",)}
    found = joined(said(lists), "unwanted", [[0, 1]], listing(lists))
    assert found == (RankNames(ranks=(0,), names=()), RankNames(ranks=(1,), names=("layer.1",)))


def test_equal_lists_are_not_joined():
    lists = {0: ("gap",), 1: ("gap",)}
    assert joined(said(lists), "unwanted", [[0], [1]], listing(lists)) == ()


def test_parameters_that_each_rank_holds_a_part_of_are_held():
    lists = {0: ("a", "c"), 1: ("b", "c")}
    found = joined(said(lists, kind="unheld"), "unheld", [[0], [1]], listing(lists))
    assert found == (RankNames(ranks=(0, 1), names=("c",)),)


def test_where_one_rank_holds_everything_what_another_leaves_out_is_its_own_fault():
    lists = {0: (), 1: ("b",)}
    assert joined(said(lists, kind="unheld"), "unheld", [[0], [1]], listing(lists)) == ()


def test_optimizers_of_different_models_are_not_joined():
    lists = {0: ("a",), 1: ("b",)}
    found = joined(said(lists, kind="unheld", models={0: "x", 1: "y"}), "unheld", [[0], [1]], listing(lists))
    assert found == ()


def owner_partitioned(rank):
    names = ("a", "b", "c")
    parameters = tuple(
        LiveParameter(identity=index, fqn=name, aliases=(name,), spec=0, global_shape=(4,))
        for index, name in enumerate(names)
    )
    return OptimizerFacts(
        optimizers=(OptimizerInstance(name="optimizer", qualified_type="SGD"),),
        groups=(ParameterGroup(optimizer=0, position=0, name="", size=1),),
        specs=(TensorSpec(shape=(4,), local_shape=(4,), dtype="float32"),),
        parameters=parameters,
        held=(HeldTensor(identity=rank, group=0, position=0, spec=0, parameter=rank),),
    )


def test_ranks_learn_which_parameters_no_optimizer_of_the_job_holds():
    facts = run_ranks(2, lambda place: compare_ranks(place, Facts(optimizer=owner_partitioned(place.rank)), 5.0))
    assert facts[1][0].unheld_on(1) == {"c"}
    assert facts[0][0].unheld_on(0) == {"c"}


def stage(rank):
    names = ("embed", "head")
    tensor = TensorFacts(
        fqn=names[rank],
        aliases=(names[rank],),
        kind="parameter",
        shape=(4,),
        dtype="float32",
        device="cpu",
        requires_grad=True,
        is_meta=False,
    )
    counts = ModelCounts(modules=1, parameters=1, buffers=0, parameter_elements=4)
    entries = tuple(
        EntryFacts(key=name, file="f", dtype="F32", shape=(4,), begin=0, end=16) for name in (*names, "gap")
    )
    return Facts(
        model=ModelFacts(
            qualified_type="M", tensors=(tensor,), counts=counts, config=FrozenDict(), key_mapping="identity"
        ),
        checkpoint=CheckpointFacts(path="p", format="safetensors", entries=entries),
    )


def test_stages_learn_which_stored_keys_no_stage_wants():
    facts = run_ranks(2, lambda place: compare_ranks(place, stage(place.rank), 5.0))
    assert facts[0][0].unwanted_on(0) == facts[0][0].unwanted_on(1) == {"gap"}
