"""What the records of a `.metadata` describe: one description of each, whatever it is."""

import pytest

from shardlint.checkpoint import dcp_metadata
from shardlint.checkpoint.chunks import Chunk
from shardlint.checkpoint.dcp_metadata import DescribedObject, DescribedTensor, Metadata, Undescribed, descriptions
from shardlint.checkpoint.inert_pickle import InertObject, Name


def record(called, **state):
    inert = InertObject(Name("torch.distributed.checkpoint.metadata", called), ())
    inert.state = state
    return inert


def tensor(size=(2, 3), dtype="float32", boxes=(((0, 0), (2, 3)),)):
    chunks = [record("ChunkStorageMetadata", offsets=offsets, sizes=sizes) for offsets, sizes in boxes]
    properties = record("TensorProperties", dtype=Name("torch", dtype))
    return record("TensorStorageMetadata", size=size, properties=properties, chunks=chunks)


def described(**records):
    return list(descriptions(Metadata(tensors=records, places={}, planner_data=None, size=0)))


def test_tensors_objects_and_what_is_neither_are_described_in_their_order():
    found = described(
        weight=tensor(), step=record("BytesStorageMetadata"), other=record("FutureMetadata", size=(1,)), odd="text"
    )
    assert found[0] == DescribedTensor(
        key="weight", name="weight", shape=(2, 3), dtype="float32", chunks=(Chunk((0, 0), (2, 3)),)
    )
    assert found[1] == DescribedObject(key="step")
    assert [(each.key, each.reason) for each in found[2:]] == [
        ("other", "its description cannot be followed: TypeError"),
        ("odd", "its description cannot be followed: TypeError"),
    ]


@pytest.mark.parametrize("value", [tensor(), record("BytesStorageMetadata"), 3])
def test_a_name_that_is_no_text_is_never_passed_over(value):
    metadata = Metadata(tensors={7: value}, places={}, planner_data=None, size=0)
    assert list(descriptions(metadata)) == [Undescribed(key=None, reason="a tensor has a name that is no text")]


@pytest.mark.parametrize("fault", [{"size": (-1,)}, {"boxes": ((("x",), (1,)),)}, {"size": (2**63,)}])
def test_a_tensor_that_cannot_be_followed_does_not_hide_the_next(fault):
    first, second = described(bad=tensor(**fault), good=tensor())
    assert isinstance(second, DescribedTensor)
    assert isinstance(first, Undescribed)


def test_more_chunks_than_the_limit_are_not_followed(monkeypatch):
    monkeypatch.setattr(dcp_metadata, "MAX_CHUNKS", 2)
    boxes = (((0, 0), (1, 3)), ((1, 0), (1, 3)))
    found = described(first=tensor(boxes=boxes), second=tensor())
    assert isinstance(found[0], DescribedTensor)
    assert found[1].reason == "its description cannot be followed: OverflowError"
