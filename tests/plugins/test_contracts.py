"""Contract providers of packs are asked one by one, and answer with a contract or with how they failed."""

from pathlib import Path

import pytest

from shardlint.contract import Contract, ContractQuery
from shardlint.plugins.manager import load_packs
from shardlint.plugins.registry import Registry

QUERY = ContractQuery(key="llama", kind="model_type")
PACK = """
import sys
from shardlint import PackInfo, hookimpl
from shardlint.contract import Contract

@hookimpl
def shardlint_pack():
    return PackInfo(name="{name}", prefix="{prefix}", api=1)

@hookimpl
def shardlint_contracts({arguments}):
    {body}
"""


def registry(folder: Path, *bodies: str, arguments: str = "query") -> Registry:
    files = []
    for index, body in enumerate(bodies):
        file = folder / f"pack{index}.py"
        name, prefix = f"pack{index}", f"PA{'ABCDEF'[index]}"
        file.write_text(PACK.format(name=name, prefix=prefix, body=body, arguments=arguments))
        files.append(file)
    found = load_packs(local=files)
    assert found.diagnostics == ()
    return found


def test_answers_come_in_the_order_of_the_packs_without_those_that_have_none(tmp_path: Path) -> None:
    bodies = ["return None", "return Contract(name=query.key)", "return Contract(name='second')"]
    answers = registry(tmp_path, *bodies).contracts(QUERY)
    assert [(answer.pack, answer.contract) for answer in answers] == [
        ("pack1", Contract(name="llama")),
        ("pack2", Contract(name="second")),
    ]
    assert not any(answer.error for answer in answers)


def test_a_provider_may_leave_out_the_query(tmp_path: Path) -> None:
    (answer,) = registry(tmp_path, "return Contract(name='always')", arguments="").contracts(QUERY)
    assert answer.contract == Contract(name="always")


@pytest.mark.parametrize(
    ("body", "error", "line"),
    [
        ("raise KeyError(query.key)", "raised KeyError: 'llama'", 12),
        ("sys.exit(1)", "raised SystemExit: 1", 12),
        ("return {'probes': []}", "returned dict, expected a shardlint.contract.Contract or None", 10),
        ("return Contract", "returned type, expected a shardlint.contract.Contract or None", 10),
        ("return Contract(probes=3)", "raised ", 12),
    ],
)
def test_a_provider_that_fails_is_an_answer_and_the_next_is_asked(
    tmp_path: Path, body: str, error: str, line: int
) -> None:
    failed, sound = registry(tmp_path, body, "return Contract(name='sound')").contracts(QUERY)
    assert failed.contract is None
    assert failed.error.startswith(f"the contract provider of pack pack0 (local pack {tmp_path / 'pack0.py'}) {error}")
    assert failed.frame.startswith(f"{tmp_path / 'pack0.py'}:{line} ")
    assert sound.contract == Contract(name="sound")


def test_ctrl_c_in_a_provider_stops_everything(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        registry(tmp_path, "raise KeyboardInterrupt").contracts(QUERY)
