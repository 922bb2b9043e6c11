"""What the ranks of a job tell each other about their models, and where they differ."""

from attrs import evolve

from shardlint.facts import Facts, LayoutFacts, MeshFacts, OwnershipFacts, ReductionFacts, ShardingFacts, UnitFacts
from shardlint.ranks.compare import BUCKETS, bucket_of, compare_ranks, groups_of, summary_of
from shardlint.ranks.rows import fact_rows, key_of
from support.rank_threads import run_ranks


def sharding_of(rank, world, **changes):
    names = changes.get("names", [f"layers.{i}.weight" for i in range(40)])
    mesh = MeshFacts(
        axes=("fsdp",), shape=(world,), ranks=tuple(changes.get("ranks", range(world))), coordinate=(rank,)
    )
    layout = LayoutFacts(global_shape=(8, 4), local_shape=(8 // world, 4), mesh=0)
    records = tuple(
        OwnershipFacts(fqn=name, owner="<root>", unit=0, layout=0, identity=i, dtype=changes.get(name, "float32"))
        for i, name in enumerate(names)
    )
    return ShardingFacts(
        meshes=(mesh,),
        layouts=(layout,),
        reductions=(ReductionFacts(ranks=mesh.ranks, divisor=float(world)),),
        units=(UnitFacts(name="<root>", owner="<root>", kind="fsdp2", mesh=0, reduction=0),),
        parameters=records,
    )


def test_equal_ranks_say_their_digests_and_nothing_else():
    results = run_ranks(4, lambda place: compare_ranks(place, Facts(sharding=sharding_of(place.rank, 4)), 5.0))
    assert results[0][0].compared == ((0, 1, 2, 3),)
    assert results[0][0].differences == ()
    assert results[3][1].sent < 600


def test_the_rank_that_differs_is_named_with_the_first_difference():
    def compare(place):
        changes = {"layers.7.weight": "bfloat16"} if place.rank == 2 else {}
        if place.rank == 3:
            changes["names"] = [f"layers.{i}.weight" for i in range(41)]
        return compare_ranks(place, Facts(sharding=sharding_of(place.rank, 4, **changes)), 5.0)

    results = run_ranks(4, compare)
    assert len({results[rank][0] for rank in range(4)}) == 1
    extra, dtype = sorted(results[0][0].differences, key=lambda item: item.fqn != "layers.40.weight")
    assert (extra.fqn, extra.field, extra.ranks, extra.value) == ("layers.40.weight", "present", (3,), "present")
    assert (dtype.fqn, dtype.field, dtype.ranks) == ("layers.7.weight", "dtype", (2,))
    assert (dtype.value, dtype.reference, dtype.reference_rank) == ("bfloat16", "float32", 0)
    asked = {bucket_of(key_of("parameter", "layers.7.weight"))}
    assert results[2][1].sent < 600 + 350 * sum(
        bucket_of(key_of("parameter", f"layers.{i}.weight")) in asked for i in range(40)
    )


def test_a_rank_without_a_model_is_not_compared():
    def compare(place):
        facts = Facts() if place.rank == 1 else Facts(sharding=sharding_of(place.rank, 3))
        return compare_ranks(place, facts, 5.0)

    results = run_ranks(3, compare)
    for ranks, _ in results.values():
        assert ranks.differences == ()
        assert ranks.compared == ((0, 2),)


def test_pipeline_stages_are_not_compared_with_each_other():
    def compare(place):
        stage = place.rank // 2
        names = [f"layers.{stage}.weight"]
        facts = sharding_of(place.rank, 2, names=names, ranks=(2 * stage, 2 * stage + 1))
        return compare_ranks(place, Facts(sharding=facts), 5.0)

    results = run_ranks(4, compare)
    assert results[0][0].compared == ((0, 1), (2, 3))
    assert results[0][0].differences == ()


def test_a_difference_inside_a_later_stage_is_found_without_rank_0():
    def compare(place):
        stage = place.rank // 2
        changes = {"layers.0.weight": "float16"} if place.rank == 3 else {}
        facts = sharding_of(place.rank, 2, ranks=(2 * stage, 2 * stage + 1), **changes)
        return compare_ranks(place, Facts(sharding=facts), 5.0)

    (difference,) = run_ranks(4, compare)[0][0].differences
    assert (difference.ranks, difference.reference_rank, difference.value) == ((3,), 2, "float16")


def test_groups_follow_shared_ranks():
    assert groups_of([[0, 1], [1], [2, 3], [3]]) == [[0, 1], [2, 3]]
    assert groups_of([[0, 2], [1, 3], [2], [3, 0]]) == [[0, 1, 2, 3]]


def test_digests_do_not_depend_on_the_order_of_units():
    facts = sharding_of(0, 2)
    records = [evolve(record, unit=index % 2) for index, record in enumerate(facts.parameters)]
    facts = evolve(facts, units=facts.units * 2, parameters=tuple(records))
    turned = evolve(facts, parameters=tuple(records[1::2] + records[::2]))
    left, right = (summary_of(item, fact_rows(Facts(sharding=item)), 0) for item in (facts, turned))
    assert left == right
    assert len(left.digests) == BUCKETS


def test_parameters_of_a_unit_in_another_order_are_a_difference():
    names = [f"layers.{i}.weight" for i in range(40)]
    swapped = [*names[:2], names[3], names[2], *names[4:]]

    def compare(place):
        facts = sharding_of(place.rank, 3, names=swapped if place.rank == 1 else names)
        return compare_ranks(place, Facts(sharding=facts), 5.0)

    found = run_ranks(3, compare)[0][0].differences
    assert [(item.fqn, item.field, item.ranks, item.reference, item.value) for item in found] == [
        ("layers.2.weight", "place_in_unit", (1,), "2", "3"),
        ("layers.3.weight", "place_in_unit", (1,), "3", "2"),
    ]


def test_a_parameter_too_many_is_one_difference_though_it_moves_the_others():
    names = [f"layers.{i}.weight" for i in range(40)]

    def compare(place):
        facts = sharding_of(place.rank, 2, names=["first.weight", *names] if place.rank == 1 else names)
        return compare_ranks(place, Facts(sharding=facts), 5.0)

    (difference,) = run_ranks(2, compare)[0][0].differences
    assert (difference.fqn, difference.field) == ("first.weight", "present")
