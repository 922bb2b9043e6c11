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


@pytest.fixture(scope="module")
def one_rank():
    """A process group of one rank, for models sharded by FSDP2."""
    import torch.distributed as dist  # most tests do without torch

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
