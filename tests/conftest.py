"""What every test wants: written modules are forgotten when it ends, and a job of one rank for who asks for it."""

import sys

import pytest


@pytest.fixture(autouse=True)
def _forget_modules_of_temporary_folders(tmp_path_factory):
    yield
    base = str(tmp_path_factory.getbasetemp())
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(base):
            del sys.modules[name]


@pytest.fixture(autouse=True)
def _rules_find_something_in_live_objects(request, monkeypatch):
    """
    Hold a test to its mark `live(codes)`: it collects facts, and each of the rules finds something in them.

    With `collects=False` the facts come from elsewhere: a model that could not be built has none to collect.
    """
    mark = request.node.get_closest_marker("live")
    if mark is None:
        yield
        return
    from shardlint.collect.collection import Assembly
    from shardlint.rule import Rule

    found, collected, finding, run = set(), [], Rule.finding, Assembly.run
    monkeypatch.setattr(Rule, "finding", lambda rule, **said: found.add(rule.code) or finding(rule, **said))
    monkeypatch.setattr(Assembly, "run", lambda assembly: collected.append(1) or run(assembly))
    yield
    assert collected or not mark.kwargs.get("collects", True), "the test collects nothing"
    assert set(mark.args) <= found, "rules that the test is marked with found nothing in it"


@pytest.fixture(scope="module")
def one_rank():
    """A process group of one rank, for models sharded by FSDP2."""
    import torch.distributed as dist  # most tests do without torch

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
