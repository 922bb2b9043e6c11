"""The settings of the contract mirror the classes that contracts are made of."""

import attrs
import pytest

from shardlint.config import schema

contract = pytest.importorskip("shardlint.contract")

# These take any plain field beside their name, so the settings may offer more keys than the class has fields.
OPEN = {"TopologyConstraint", "ParityCase"}
PAIRS = {
    "Contract": schema.CONTRACT,
    "Probe": schema.PROBE,
    "Invariant": schema.INVARIANT,
    "DataSemantics": schema.DATA,
    "SharedState": schema.SHARED_STATE,
    "TopologyConstraint": schema.TOPOLOGY,
    "ParityCase": schema.PARITY_CASE,
    "Replacement": schema.REPLACEMENT,
    "Recipe": schema.RECIPE,
}


@pytest.mark.parametrize("name", PAIRS)
def test_the_same_keys_with_the_same_defaults(name):
    fields = {item.name.replace("_", "-"): item for item in attrs.fields(getattr(contract, name))}
    keys = {key.name: key for key in PAIRS[name].keys}
    if name in OPEN:
        del fields["fields"]
        assert set(fields) < set(keys)
    else:
        assert set(keys) == set(fields)
    shown = {key: item.default for key, item in fields.items() if keys[key].default is not None}
    assert {key: keys[key].default for key in shown} == shown
    assert all(keys[key].required for key, item in fields.items() if item.default is attrs.NOTHING)
