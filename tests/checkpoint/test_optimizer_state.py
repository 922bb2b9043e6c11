"""Stored optimizer states: read without executing anything, also when they are hostile."""

import contextlib
import os
import pickle
import zipfile
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

from shardlint import Target
from shardlint.checkpoint.inert_pickle import InertObject, Name, Outside, StreamError, read_stream
from shardlint.checkpoint.optimizer_state import stored_optimizers
from shardlint.collect import collect
from shardlint.testing import assert_findings, assert_not_evaluated, assert_rule_clean, run_rule
from shardlint_rules.d6_optimizer.state_keyed_by_position import StateKeyedByPosition

INERT = (bool, int, float, str, bytes, bytearray, list, tuple, dict, Name, InertObject, Outside)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=30,
)


def net(*names):
    model = nn.Module()
    for name in names:
        model.add_module(name, nn.Linear(2, 3 if name != "odd" else 4))
    return model


def stepped(model, parameters=None):
    optimizer = torch.optim.AdamW(parameters if parameters is not None else model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer


def run(model, optimizer, folder):
    torch.save({}, folder / "weights.pt")
    facts = collect(Target(model=model, optimizer=optimizer, checkpoint=folder))
    assert not facts.problems
    return run_rule(StateKeyedByPosition, facts)


@given(PLAIN)
@settings(max_examples=200, deadline=None)
@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_plain_values_come_back(protocol, value):
    assert read_stream(pickle.dumps(value, protocol)) == value


INSTRUCTIONS = st.lists(st.sampled_from(b"(.)]}N012KqlaesuR\x85\x94"), max_size=30).map(bytes)


@given(st.one_of(st.binary(max_size=200), INSTRUCTIONS))
@settings(max_examples=300, deadline=None)
def test_rubbish_is_refused_or_is_data(data):
    value = None
    with contextlib.suppress(StreamError):
        value = read_stream(b"\x80\x04" + data)
    assert_inert(value)


@pytest.mark.parametrize("data", [b"(.", b"(N.", b"(\x85.", b"N(\x86.", b"(q\x00.", b"](a.", b"}(Ns.", b".", b"0."])
def test_a_mark_is_no_value_and_must_be_closed(data):
    with pytest.raises(StreamError, match=r"mark|value is missing|stack is empty"):
        read_stream(data)


def test_a_mark_can_be_dropped():
    assert read_stream(b"N(0.") is None


def assert_inert(value):
    """Nothing but plain values and the records that stand for names, calls and storages."""
    seen, waiting = set(), [value]
    while waiting:
        item = waiting.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        assert item is None or type(item) in INERT, type(item)
        if isinstance(item, dict):
            waiting += [*item, *item.values()]
        elif isinstance(item, (list, tuple)):
            waiting += item
        elif isinstance(item, InertObject):
            waiting += [item.callee, item.arguments, item.state, item.items, item.members]
        elif isinstance(item, Outside):
            waiting.append(item.key)


class Attack:
    def __reduce__(self):
        return (os.system, ("touch /tmp/shardlint-was-here",))


def test_nothing_is_called(tmp_path):
    made = read_stream(pickle.dumps(Attack()))
    assert isinstance(made, InertObject)
    assert made.callee == Name(os.system.__module__, "system")
    assert made.arguments == ("touch /tmp/shardlint-was-here",)
    with zipfile.ZipFile(tmp_path / "optimizer.pt", "w") as archive:
        archive.writestr("optimizer/data.pkl", pickle.dumps({"state": Attack(), "param_groups": [Attack()]}))
    (facts,) = stored_optimizers(tmp_path)
    assert facts.parameters == ()
    assert not Path("/tmp/shardlint-was-here").exists()


@pytest.mark.timeout(60)
def test_a_stream_that_doubles_itself_takes_no_time(tmp_path):
    def doubling(end):
        return b"\x80\x02K\x01" + b"".join(b"q\x00h\x00\x86" for _ in range(400)) + end

    read_stream(doubling(b"."))
    with pytest.raises(StreamError, match="key of a mapping"):
        read_stream(b"\x80\x02}" + doubling(b"K\x01s.")[2:])
    stream = (
        b"\x80\x02}X\x05\x00\x00\x00state}sX\x0c\x00\x00\x00param_groups](}X\x06\x00\x00\x00params]("
        + doubling(b"eses.")[2:]
    )
    with zipfile.ZipFile(tmp_path / "optimizer.pt", "w") as archive:
        archive.writestr("optimizer/data.pkl", stream)
    stored_optimizers(tmp_path)


def test_a_torch_file(tmp_path):
    model = net("a", "b")
    torch.save(stepped(model, model.named_parameters()).state_dict(), tmp_path / "optimizer.pt")
    (facts,) = stored_optimizers(tmp_path)
    assert (facts.path, facts.format, facts.named, facts.group_sizes) == ("optimizer.pt", "torch", True, (4,))
    assert [item.key for item in facts.parameters] == ["a.weight", "a.bias", "b.weight", "b.bias"]
    assert facts.parameters[0].shapes == {"exp_avg": (3, 2), "exp_avg_sq": (3, 2)}


@pytest.mark.parametrize("flat", [False, True])
def test_a_distributed_checkpoint_by_name(tmp_path, flat, one_rank):
    model = net("a", "b")
    optimizer = stepped(model)
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    state = get_optimizer_state_dict(model, optimizer, options=options)
    dcp.save({"optimizer": state}, checkpoint_id=tmp_path)
    (facts,) = stored_optimizers(tmp_path)
    assert (facts.format, facts.named) == ("dcp", True)
    assert {item.key for item in facts.parameters} == {"a.weight", "a.bias", "b.weight", "b.bias"}
    assert next(item for item in facts.parameters if item.key == "b.weight").shapes["exp_avg"] == (3, 2)
    assert_rule_clean(run(model, optimizer, tmp_path))
    other = net("a", "c")
    found = run(other, stepped(other), tmp_path)
    assert_findings(found, ".metadata", ".metadata")
    assert {tuple(item.evidence["items"]) for item in found.findings} == {
        ("b.bias", "b.weight"),
        ("c.weight", "c.bias"),
    }


def test_a_distributed_checkpoint_by_position(tmp_path, one_rank):
    model = net("odd", "b")
    dcp.save({"optimizer": stepped(model).state_dict()}, checkpoint_id=tmp_path / "optimizer_0")
    (facts,) = stored_optimizers(tmp_path)
    assert (facts.path, facts.named) == ("optimizer_0/.metadata", False)
    assert_rule_clean(run(model, stepped(model), tmp_path))
    other = net("b", "odd")
    assert_findings(run(other, stepped(other), tmp_path), "optimizer_0/.metadata")


def test_a_distributed_checkpoint_of_weights_alone_is_no_optimizer_state(tmp_path, one_rank):
    dcp.save({"model": net("a").state_dict()}, checkpoint_id=tmp_path)
    assert stored_optimizers(tmp_path) == ()


def test_resuming_with_groups_in_another_order(tmp_path):
    model = net("odd", "b")
    torch.save(stepped(model).state_dict(), tmp_path / "optimizer.pt")
    assert_rule_clean(run(model, stepped(model), tmp_path))
    turned = stepped(model, list(model.parameters())[::-1])
    assert_findings(run(model, turned, tmp_path), "optimizer.pt")
    split = torch.optim.AdamW([{"params": [p for p in model.parameters() if p.ndim == n]} for n in (1, 2)])
    assert_findings(run(model, split, tmp_path), "optimizer.pt")


def test_names_tell_the_order_where_shapes_do_not(tmp_path):
    model = net("a", "b")
    torch.save(stepped(model, model.named_parameters()).state_dict(), tmp_path / "optimizer.bin")
    assert_rule_clean(run(model, stepped(model), tmp_path))
    turned = list(model.b.parameters()) + list(model.a.parameters())
    assert_findings(run(model, stepped(model, turned), tmp_path), "optimizer.bin")


@pytest.mark.parametrize("content", [b"", b"rubbish", pickle.dumps({"state": {}})])
def test_what_cannot_be_read_is_refused_by_name(tmp_path, content):
    (tmp_path / "optimizer.pt").write_bytes(content)
    model = net("a")
    assert_not_evaluated(run(model, stepped(model), tmp_path), "optimizer.pt")


def test_a_link_out_of_the_folder_is_not_followed(tmp_path):
    inner = tmp_path / "inner"
    inner.mkdir()
    torch.save({}, tmp_path / "secret.pt")
    (inner / "optimizer.pt").symlink_to(tmp_path / "secret.pt")
    (facts,) = stored_optimizers(inner)
    assert "outside the folder" in facts.problem
