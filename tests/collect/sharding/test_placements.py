"""Placements of any framework: plain only when they carry nothing else, and what is not understood stays unknown."""

import attrs
import pytest
from torch.distributed.tensor import Partial, Replicate, Shard

from collect.sharding.hyper import Model, managed, schedule, source
from shardlint.boxes import OTHER, PARTIAL, REPLICATE, SHARD, STRIDED
from shardlint.collect.sharding import sharding_facts
from shardlint.collect.sharding.placements import placement
from shardlint.engine.runner import SelectedRule, evaluate
from shardlint.facts import EXPERT, Facts, is_known
from shardlint.introspect.walk import walk
from shardlint_rules.pack import shardlint_rules


def thing(name, *bases, text=None, **values):
    """An object of a class of that name, which carries the values."""
    kind = type(name, bases, {"__repr__": lambda self: text or f"{name}()"})
    live = kind.__new__(kind)
    live.__dict__.update(values)
    return live


class Slotted:
    __slots__ = ("dim", "sections")

    def __init__(self, dim, sections=None):
        self.dim, self.sections = dim, sections

    def __repr__(self):
        return f"Slotted({self.dim}, {self.sections})"

    def is_shard(self):
        return True


@attrs.define(slots=True)
class Interleaved:
    split_factor: int
    dim: int


@pytest.mark.parametrize(
    ("live", "kind", "dim", "factor"),
    [
        (Shard(-1), SHARD, -1, None),
        (Replicate(), REPLICATE, None, None),
        (Partial(), PARTIAL, None, None),
        (thing("Shard", dim=1), SHARD, 1, None),
        (thing("Shard", _dim=1, dim=1, mask=None), SHARD, 1, None),
        (thing("StridedShard", dim=0, split_factor=2), STRIDED, 0, 2),
        (thing("Woven", split_factor=3, dim=-2), STRIDED, -2, 3),
        (thing("Shard", dim=0, split_factor=2), STRIDED, 0, 2),
        (Interleaved(4, 1), STRIDED, 1, 4),
        (Slotted(0), SHARD, 0, None),
        ("Shard(dim=0)", SHARD, 0, None),
        ("Shard(-1)", SHARD, -1, None),
        ("S(2)", SHARD, 2, None),
        (" Replicate()", REPLICATE, None, None),
        ("Partial(sum)", PARTIAL, None, None),
    ],
)
def test_what_is_understood(live, kind, dim, factor):
    seen = placement(live)
    assert (seen.kind, seen.dim, seen.split_factor) == (kind, dim, factor)


@pytest.mark.parametrize(
    "live",
    [
        thing("RaggedShard", dims=(0,), local_units=(1, 3)),
        thing("Shard", dim=0, local_units=(1, 3)),
        thing("Shard", dim=0, sections=(4, 2, 2)),
        thing("Shard"),
        thing("Shard", dim="0"),
        thing("Shard", dim=True),
        thing("_MaskShard"),
        thing("PackedShard", dim=0, is_shard=lambda: True),
        thing("StridedShard", dim=0, split_factor=2, sections=(1, 1)),
        thing("StridedShard", dim=0, split_factor=0),
        thing("StridedShard", split_factor=2),
        thing("Shard", type("Base", (), {"sections": (1, 3)}), dim=0),
        thing("Replicate", groups=2),
        thing("Anything", text="Shard(dim=0)"),
        Slotted(0, (1, 2)),
        "Shard(dim=0, sections=(1, 3))",
        "StridedShard(dim=0, split_factor=2)",
        "somewhere",
        None,
    ],
    ids=repr,
)
def test_what_carries_more_or_less_is_not_taken_for_something_else(live):
    assert placement(live).kind == OTHER


def test_a_placement_that_cannot_be_shown_is_no_error():
    kind = type("Mute", (), {"__repr__": lambda self: 1 / 0})
    assert placement(kind()).text == "<Mute>"


def one_unit(*placements, axes=("ep",)):
    """A dense parameter and one that is cut as told, in the unit of the root."""
    model = Model(layers=1)
    experts = managed(
        model.layers[0].experts.weight, "layers.0.experts.weight", shard_info=source(*axes, placements=placements)
    )
    schedule(model, [managed(model.embed.weight, "embed.weight", shard_info=source("dp")), experts])
    return sharding_facts(walk(model))


def outcomes(sharding):
    rules = [SelectedRule(rule=rule()) for rule in shardlint_rules() if rule.code in ("D302", "D303")]
    return {outcome.code: outcome.status.value for outcome in evaluate(Facts(sharding=sharding), rules).outcomes}


@pytest.mark.parametrize(
    "live",
    [
        thing("RaggedShard", dims=(0,), local_units=(1, 3)),
        thing("Shard"),
        thing("Anything", text="PackedShard(3)"),
        thing("Woven", dim=0, split_factor=2),
        "Shard(dim=0)",
        "StridedShard(dim=0, split_factor=2)",
    ],
    ids=repr,
)
def test_whatever_calls_itself_a_shard_makes_an_expert(live):
    sharding = one_unit(live)
    assert sharding.parameters[1].domain == EXPERT
    assert outcomes(sharding) == {"D302": "found", "D303": "found"}


@pytest.mark.parametrize(
    ("axes", "live"),
    [(("ep",), thing("Ragged", dims=(0,))), (("x",), Shard(0)), ((), Shard(0)), (("y", "x"), thing("Ragged"))],
    ids=repr,
)
def test_a_domain_that_nothing_tells_is_not_known(axes, live):
    sharding = one_unit(live, axes=axes)
    assert not is_known(sharding.parameters[1].domain)
    assert "layers.0.experts.weight" in sharding.units[0].domain_unknown
    assert outcomes(sharding) == {"D302": "not-evaluated", "D303": "not-evaluated"}


@pytest.mark.parametrize("axis", ["tp", "dp_shard", "fsdp", "model_tp"])
def test_axes_of_other_parallelism_make_no_experts(axis):
    assert outcomes(one_unit(Shard(0), axes=(axis,))) == {"D302": "clean", "D303": "clean"}
