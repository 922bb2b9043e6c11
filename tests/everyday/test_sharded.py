"""Wrappers of one rank: DDP, FSDP in both versions, tensor parallelism, and what people put around them."""

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard

import shardlint
from support.everyday import Setups, adamw, score, stepped

everyday = Setups()
pytestmark = pytest.mark.usefixtures("one_rank")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return x + self.down(self.up(self.norm(x)).relu())


class Model(nn.Module):
    def __init__(self, tied=False):
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(8, 16, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


TOKENS = torch.arange(12).reshape(2, 6)


def mesh(*names):
    return init_device_mesh("cpu", (1,) * len(names), mesh_dim_names=names)


def sharded(model, **options):
    for layer in model.layers:
        fully_shard(layer, mesh=mesh("dp"), **options)
    return fully_shard(model, mesh=mesh("dp"), **options)


@everyday
def distributed_data_parallel():
    model = nn.parallel.DistributedDataParallel(Model())
    return stepped(model, adamw(model), TOKENS)


@everyday
def distributed_data_parallel_with_accumulation():
    model = nn.parallel.DistributedDataParallel(Model(tied=True), gradient_as_bucket_view=True)
    optimizer = adamw(model)
    with shardlint.trace(model, optimizer) as trace:
        with model.no_sync():
            score(model(TOKENS)).backward()
        score(model(TOKENS)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return shardlint.Target(model=model, optimizer=optimizer, trace=trace)


@everyday
def distributed_data_parallel_with_synchronised_norms():
    model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)))
    return shardlint.Target(model=model, optimizer=adamw(model))


@everyday
def fully_sharded():
    model = sharded(Model())
    return stepped(model, adamw(model), TOKENS)


@everyday
def fully_sharded_with_mixed_precision():
    model = sharded(Model(), mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
    return stepped(model, adamw(model), TOKENS)


@everyday
def fully_sharded_and_tied():
    model = sharded(Model(tied=True))
    return stepped(model, adamw(model), TOKENS)


@everyday
def fully_sharded_from_meta():
    with torch.device("meta"):
        model = Model()
    sharded(model)
    model.to_empty(device="cpu")
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    return stepped(model, adamw(model), TOKENS)


@everyday
def fully_sharded_with_checkpointed_layers():
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model = Model()
    model.layers = nn.ModuleList(checkpoint_wrapper(layer) for layer in model.layers)
    sharded(model)
    return stepped(model, adamw(model), TOKENS)


@everyday
def fully_sharded_and_compiled_layers():
    model = Model()
    for layer in model.layers:
        layer.compile(backend="eager")
    sharded(model)
    return stepped(model, adamw(model), TOKENS)


@everyday
def fully_sharded_with_clipping():
    model = sharded(Model())
    optimizer = adamw(model, foreach=True)
    with shardlint.trace(model, optimizer) as trace:
        score(model(TOKENS)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return shardlint.Target(model=model, optimizer=optimizer, trace=trace)


@everyday
def fully_sharded_in_two_dimensions():
    model = Model()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh("replicate", "shard"))
    fully_shard(model, mesh=mesh("replicate", "shard"))
    return stepped(model, adamw(model), TOKENS)


@everyday
def tensor_parallel_below_fully_sharded():
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    both, model = mesh("dp", "tp"), Model()
    for layer in model.layers:
        parallelize_module(layer, both["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(layer, mesh=both["dp"])
    fully_shard(model, mesh=both["dp"])
    return stepped(model, torch.optim.AdamW(model.parameters(), foreach=False), TOKENS)


@everyday
def first_version_of_fully_sharded():
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    model = FullyShardedDataParallel(
        Model(), auto_wrap_policy=ModuleWrapPolicy({Block}), use_orig_params=True, device_id=torch.device("cpu")
    )
    return stepped(model, adamw(model), TOKENS)


@everyday
def first_version_with_flat_parameters():
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    model = FullyShardedDataParallel(Model(), auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=torch.device("cpu"))
    return stepped(model, adamw(model), TOKENS)


@everyday
def replicated_by_the_composable_call():
    from torch.distributed._composable.replicate import replicate

    model = replicate(Model())
    return stepped(model, adamw(model), TOKENS)


@everyday
def optimizer_states_shared_out():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = nn.parallel.DistributedDataParallel(Model())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
    return stepped(model, optimizer, TOKENS)


@everyday
def method_registered_as_a_forward():
    from torch.distributed.fsdp import register_fsdp_forward_method

    class Tower(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def encode(self, x):
            return self.fc(x).tanh()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.tower, self.head = Tower(), nn.Linear(8, 2)

        def forward(self, x):
            return self.head(self.tower.encode(x))

    model = Net()
    fully_shard(model.tower, mesh=mesh("dp"))
    fully_shard(model, mesh=mesh("dp"))
    register_fsdp_forward_method(model.tower, "encode")
    return stepped(model, adamw(model), torch.randn(3, 8))


test_has_no_false_alarm = everyday.test()
