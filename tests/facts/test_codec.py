"""Facts files that are not what they should be."""

import json
from pathlib import Path

import pytest

from shardlint.facts import FACTS_VERSION, Facts, FrozenDict
from shardlint.facts import codec as codec_module
from shardlint.facts.codec import FactsError, decode_facts, encode_facts, facts_schema, facts_schema_text
from support.packs import sample_facts, tensor


def document(**changes: object) -> dict:
    return {**json.loads(encode_facts(sample_facts())), **changes}


def problems(data: object) -> tuple[str, ...]:
    with pytest.raises(FactsError) as caught:
        decode_facts(data if isinstance(data, bytes) else json.dumps(data).encode())
    assert "`" not in str(caught.value)
    return caught.value.problems


def test_a_newer_version_is_refused_whatever_else_it_holds() -> None:
    newer = FACTS_VERSION + 1
    assert problems({"model": ["all", "different"], "version": newer, "new_section": {}}) == (
        f"facts file is version {newer}, this shardlint reads up to {FACTS_VERSION}; upgrade shardlint",
    )


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"version": 0}, "facts file is version 0, this shardlint reads 1 to"),
        ({"target": "x"}, "it has no version, so it is not a facts file"),
        ({"version": "1"}, "version: expected an integer, got '1'"),
        ({"version": True}, "version: expected an integer, got True"),
        ({"version": 1.5}, "version: expected an integer, got 1.5"),
        ([1], "the top level: expected object, got array"),
        (b"null", "the top level: expected object, got null"),
        (b"", "it is empty, expected facts as JSON"),
        (b" \n", "it is empty, expected facts as JSON"),
        (b"facts", "it is not JSON"),
        (b"\xef\xbb\xbf{}", "it is not JSON"),
        (b'{"version":1,\n"target":}', "line 2"),
        (b'{"version":1} {"version":1}', "it is not JSON: trailing characters"),
        (b'{"version":1,"target":"\xff"}', "it is not JSON: Invalid UTF-8"),
        (b'{"version":1,"absent":{"a":NaN}}', "NaN and Infinity are no JSON"),
        (b'{"version":1,"absent":{"a":-Infinity}}', "NaN and Infinity are no JSON"),
        (b'{"version":1,"absent":{"a":1e999}}', "absent[...]: number out of range"),
        ({"version": 1, "absent": 3}, "absent: expected object, got int"),
        ({"version": 1, "absent": None}, "absent: expected object, got null"),
        ({"version": 1, "model": {"tensors": []}}, "model: object missing required field"),
    ],
)
def test_one_clear_problem(data: object, text: str) -> None:
    (problem,) = problems(data)
    assert text in problem


def test_a_wrong_type_is_named_with_its_path() -> None:
    data = document()
    data["model"]["tensors"][1]["shape"] = [4, "4"]
    assert problems(data) == ("model.tensors[1].shape[1]: expected int, got str",)


def test_facts_that_are_cut_off_anywhere_are_refused() -> None:
    data = encode_facts(sample_facts())
    for length in range(1, len(data) - 1, 7):
        (problem,) = problems(data[:length])
        assert problem.startswith(f"it is cut off: the JSON ends after {length} bytes"), problem


def test_unknown_fields_are_all_named_with_path_and_the_nearest_name() -> None:
    data = document(tagret="x")
    data["model"]["tensors"][2]["dtyp"] = "float32"
    data["model"]["tensors"][0]["zzz"] = 1
    assert set(problems(data)) == {
        "tagret: unknown field (did you mean 'target'?)",
        "model.tensors[2].dtyp: unknown field (did you mean 'dtype'?)",
        "model.tensors[0].zzz: unknown field",
    }


def test_free_mappings_hold_any_field() -> None:
    data = document()
    data["model"]["config"] = {"anything": {"goes": [1, None]}}
    model = decode_facts(json.dumps(data).encode()).model
    assert model is not None
    assert model.config == {"anything": {"goes": (1, None)}}


def test_an_error_spells_out_ten_problems_and_counts_the_rest() -> None:
    with pytest.raises(FactsError, match="and 5 more") as caught:
        decode_facts(json.dumps(document(**{f"zzz{number}": 1 for number in range(15)})).encode())
    assert len(caught.value.problems) == 15


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"version":1,"target":"a","target":"b"}', "target: the key stands there twice"),
        ('{"version":1,"absent":{"model":"a","model":"a"}}', "absent.model: the key stands there twice"),
        ('{"version":1,"version":1}', "version: the key stands there twice"),
    ],
)
def test_a_key_that_stands_twice_is_refused(text: str, problem: str) -> None:
    assert problems(text.encode()) == (problem,)


def test_a_hostile_file_is_refused_quickly_and_briefly() -> None:
    """100,000 unknown fields, one doubled key at the end of 100,000 keys, a key of a million characters."""
    many = dict.fromkeys(map("zzz{}".format, range(100_000)), 1)
    assert problems(document(**many))[-1] == "the rest was not looked at"
    doubled = json.dumps(document(absent=many)).replace('"zzz99999": 1', '"zzz99998": 1')
    assert problems(doubled.encode()) == ("absent.zzz99998: the key stands there twice",)
    (long,) = problems(document(**{"\x1b[31m" + "x" * 1_000_000: 1}))
    assert len(long) < 200
    assert "\x1b" not in long


@pytest.mark.parametrize("depth", [2_000, 200_000])
@pytest.mark.parametrize("where", ["absent", "unknown"])
def test_deep_nesting_is_refused_and_harms_nobody(depth: int, where: str) -> None:
    text = '{"version":1,"' + where + '":{"a":' + "[" * depth + "]" * depth + "}}"
    assert problems(text.encode()) == ("it is nested too deeply to be facts",)


def test_large_numbers_survive_and_absurd_ones_are_refused() -> None:
    facts = Facts(absent=FrozenDict({"model": 10**30, "data": -(2**70)}))
    assert decode_facts(encode_facts(facts)) == facts
    assert problems(b'{"version":1,"x":' + b"9" * 10_000 + b"}")


def test_names_that_are_no_text_are_written_readably() -> None:
    name = b"caf\xe9.safetensors".decode(errors="surrogateescape")
    facts = Facts(target=name, absent=FrozenDict({name: name}))
    back = decode_facts(encode_facts(facts))
    assert back.target == "caf\\udce9.safetensors"
    assert back.absent == {back.target: back.target}


def test_what_is_no_fact_is_not_written() -> None:
    facts = Facts()
    object.__setattr__(facts, "target", object())
    with pytest.raises((NotImplementedError, TypeError)):
        encode_facts(facts)


def test_facts_of_shardlint_need_no_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search for unknown fields costs more than decoding: a file as shardlint wrote it is spared."""
    monkeypatch.setattr(codec_module, "strict_problems", lambda *_: pytest.fail("looked through"))
    data = encode_facts(sample_facts(*(tensor(f"layers.{number}") for number in range(50))))
    assert encode_facts(decode_facts(data + b"\n")) == data


def test_the_shipped_schema_is_up_to_date() -> None:
    shipped = Path(codec_module.__file__).with_name("schema.json").read_text()
    assert shipped == facts_schema_text(), "write it anew: shardlint schema facts > src/shardlint/facts/schema.json"


def test_the_schema_knows_every_field_and_refuses_others() -> None:
    schema = facts_schema()
    definitions = schema["$defs"]
    assert definitions["Facts"]["properties"]["version"] == {"const": FACTS_VERSION}
    assert definitions["Facts"]["required"] == ["version"]
    assert all(definition["additionalProperties"] is False for definition in definitions.values())
    assert definitions["TensorFacts"]["properties"]["shape"] == {"type": "array", "items": {"type": "integer"}}
    assert "fqn" in definitions["TensorFacts"]["required"]
    _conforms(json.loads(encode_facts(sample_facts())), {"$ref": schema["$ref"]}, definitions)


def _conforms(value: object, schema: dict, definitions: dict) -> None:
    """As much of JSON Schema as facts use."""
    if "$ref" in schema:
        return _conforms(value, definitions[schema["$ref"].rsplit("/", 1)[1]], definitions)
    if "anyOf" in schema:
        accepted = [option for option in schema["anyOf"] if _accepts(value, option, definitions)]
        assert accepted, (value, schema)
        return None
    if "const" in schema:
        assert value == schema["const"]
        return None
    kinds = {"string": str, "integer": int, "number": float, "boolean": bool, "null": type(None)}
    kinds |= {"array": list, "object": dict}
    assert isinstance(value, kinds[schema["type"]]), (value, schema)
    if schema["type"] == "array":
        for item in value:
            _conforms(item, schema["items"], definitions)
    if "properties" in schema:
        assert set(schema.get("required", ())) <= set(value) <= set(schema["properties"])
        for key, item in value.items():
            _conforms(item, schema["properties"][key], definitions)
    return None


def _accepts(value: object, schema: dict, definitions: dict) -> bool:
    try:
        _conforms(value, schema, definitions)
    except AssertionError:
        return False
    return True
