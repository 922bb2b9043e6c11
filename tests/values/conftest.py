"""A process group of one rank, for models sharded by FSDP2."""

import pytest
import torch.distributed as dist


@pytest.fixture(scope="module")
def one_rank():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
