"""The settings of a contract are made from its classes: every field is a setting, read alike from both sides."""

import attrs
import pytest

from shardlint.config import load_settings
from shardlint.config.schema import all_keys
from shardlint.contract import OPEN_FIELDS, Contract, contract_from_mapping
from shardlint.contract_values import setting_of


def parts(kind=Contract):
    """The class, and those of its parts."""
    yield kind
    for attribute in attrs.fields(kind):
        part = setting_of(attribute).part if "setting" in attribute.metadata else None
        if part is not None:
            yield from parts(part)


@pytest.mark.parametrize("kind", list(parts()))
def test_every_field_has_a_setting_that_says_what_it_means(kind):
    left_open = {"fields"} if kind in OPEN_FIELDS else set()
    assert {attribute.name for attribute in attrs.fields(kind) if "setting" not in attribute.metadata} == left_open
    assert all(setting_of(attribute).meaning for attribute in attrs.fields(kind) if attribute.name not in left_open)


def test_every_field_is_a_key_of_the_settings():
    keys = {path for path, _ in all_keys()}
    for attribute in attrs.fields(Contract):
        path = "contract." + attribute.name.replace("_", "-")
        assert path in keys
        setting = setting_of(attribute)
        if setting.part is not None:
            below = path + ("[]" if setting.kind == "parts" else "")
            names = {inner.name.replace("_", "-") for inner in attrs.fields(setting.part)} - {"fields"}
            assert {f"{below}.{name}" for name in names} <= keys


WRITTEN = {
    "name": "'ours'",
    "probes": "[embed, {glob: head.weight, required: false, stages: [load], comparison: numeric}]",
    "invariants": "[{name: one, checker: 'acme:check', phase: runtime}]",
    "training-only-targets": "value_head.**",
    "logical-shapes": "{embed.weight: [5, 4]}",
    "data": "{forward-fields: [input_ids], modality-fields: {image: pixel_values}, labels-shifted: true}",
    "shared-state": "[{name: cache, producers: layers.0, consumers: [layers.1]}]",
    "topology": "[{name: experts, axis: ep, divides: num_experts, minimum: 2}]",
    "parity-cases": "[{name: attention, module: layers.*, reference: 'acme:attention'}]",
    "replacements": "[{pattern: layers.*.mlp, replacement: Fast*}]",
    "ties": "[[a.weight, b.weight]]",
    "recipes": "[{buffer: '**.slopes', recipe: 'acme:slopes'}]",
}


@pytest.mark.parametrize("key", WRITTEN)
def test_what_the_settings_read_is_what_the_contract_takes(tmp_path, key):
    (tmp_path / "shardlint.yaml").write_text(f"contract:\n  {key}: {WRITTEN[key]}\n")
    settings = load_settings(tmp_path, explicit=tmp_path / "shardlint.yaml")
    contract = contract_from_mapping(settings.contract)
    assert getattr(contract, key.replace("-", "_")) != attrs.fields_dict(Contract)[key.replace("-", "_")].default
