"""Which ranks hold replicas: by mesh or wrapper, by what the ranks share, else by equal values."""

import torch
from torch import nn

from shardlint.weights.relations import HeldPart, Holdings, judged, relations_of


def holdings(peers, *shards, relations=()):
    return Holdings(shards=dict(shards), relations=relations, peers=peers)


def held(name, *, related=-1, told=True, key="k", **flags):
    return name, HeldPart(key=key, related=related, told=told, **flags)


def judge(ranks, digests):
    members = {}
    for rank, holding in enumerate(ranks):
        for name, shard in holding.shards.items():
            members.setdefault((name, shard.key), []).append(rank)
    return judged(members, ranks, digests)


def names(groups):
    return [(group.name, group.reference, group.ranks) for group in groups]


def test_replicas_of_one_mesh_that_differ_are_told_with_the_odd_one_out():
    ranks = [holdings("0..2", held("w", related=0), relations=("0..2",)) for _ in range(3)]
    found = judge(ranks, [{"w": "b"}, {"w": "a"}, {"w": "a"}])
    assert names(found.differing) == [("w", 1, (0,))]
    assert found.differing[0].everywhere == (0, 1)


def test_ranks_of_different_meshes_are_not_compared():
    ranks = [holdings(text, held("w", related=0), relations=(text,)) for text in ("0..1", "0..1", "2..3", "2..3")]
    found = judge(ranks, [{"w": "a"}, {"w": "a"}, {"w": "b"}, {"w": "b"}])
    assert found.differing == ()
    assert found.undecided == ("w",)


def test_a_tensor_on_no_mesh_is_a_replica_where_the_ranks_share_one():
    ranks = [holdings("0..1", held("norm", told=False)) for _ in range(2)]
    assert names(judge(ranks, [{"norm": "a"}, {"norm": "b"}]).differing) == [("norm", 0, (1,))]


def test_ranks_that_share_nothing_and_differ_in_everything_are_undecided():
    ranks = [holdings(str(rank), held("a"), held("b")) for rank in range(2)]
    found = judge(ranks, [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}])
    assert found.differing == ()
    assert found.undecided == ("a", "b")
    assert found.judged == 0


def test_ranks_that_share_nothing_and_are_equal_in_most_hold_replicas():
    ranks = [holdings(str(rank), held("a"), held("b"), held("c")) for rank in range(2)]
    found = judge(ranks, [{"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "2", "c": "4"}])
    assert names(found.differing) == [("c", 0, (1,))]
    assert found.judged == 3


def test_equal_vectors_are_no_evidence_of_replicas():
    ranks = [holdings(str(rank), held("bias", told=False), held("w")) for rank in range(2)]
    found = judge(ranks, [{"bias": "0", "w": "1"}, {"bias": "0", "w": "2"}])
    assert found.differing == ()
    assert found.undecided == ("w",)


def test_experts_on_no_mesh_may_be_others_on_each_rank():
    ranks = [holdings("0..1", held("experts.w", loose=True)) for _ in range(2)]
    found = judge(ranks, [{"experts.w": "1"}, {"experts.w": "2"}])
    assert (found.differing, found.undecided) == ((), ("experts.w",))


def test_a_buffer_that_some_ranks_lack_or_have_in_another_shape_is_a_difference():
    ranks = [
        holdings("0..2", held("mean", buffer=True), held("var", buffer=True)),
        holdings("0..2", held("mean", buffer=True, key="other"), held("var", buffer=True)),
        holdings("0..2", held("mean", buffer=True)),
    ]
    found = judge(ranks, [{"mean": "1", "var": "1"}, {"mean": "2", "var": "1"}, {"mean": "1"}])
    assert [(group.name, group.what, group.ranks) for group in found.differing] == [
        ("mean", "shape", (1,)),
        ("var", "absent", (2,)),
    ]


def test_marked_parts_are_no_replicas():
    model = nn.ModuleDict(
        {"cut": nn.Linear(4, 4, bias=False), "own": nn.Linear(4, 4, bias=False), "all": nn.Linear(4, 4)}
    )
    model["cut"].weight.tensor_model_parallel, model["cut"].weight.partition_dim = True, 0
    model["own"].weight.allreduce = False
    model["all"].weight.tensor_model_parallel, model["all"].weight.partition_dim = False, -1
    assert relations_of(model).left_out == {"cut.weight", "own.weight"}


def test_running_statistics_count_until_a_batch_was_seen():
    model = nn.Sequential(nn.BatchNorm1d(4), nn.SyncBatchNorm(4))
    assert relations_of(model).left_out == set()
    model[0](torch.randn(8, 4))
    model[1].num_batches_tracked += 1
    assert relations_of(model).left_out == {"0.running_mean", "0.running_var", "0.num_batches_tracked"}
