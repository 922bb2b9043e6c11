"""
One rank of a gloo job that builds models, right ones and faulty ones, and writes the facts of each to a folder.

    python worker.py FOLDER RANK WORLD

Each scenario is a function `(Job) -> None` that calls `job.save(name, ...)`. Facts are written as
`NAME.RANK.json`; an error that torch itself raises for a scenario becomes `NAME.RANK.error`.
"""

import contextlib
import datetime
import os
import sys
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from shardlint.collect.model import model_facts
from shardlint.collect.sharding import sharding_facts
from shardlint.facts import Environment, Facts, FrozenDict
from shardlint.facts.codec import encode_facts
from shardlint.introspect.walk import walk

SCENARIOS = {}


def scenario(*worlds):
    def register(function):
        SCENARIOS[function.__name__] = (function, worlds)
        return function

    return register


class Job:
    def __init__(self, folder, rank, world):
        self.folder, self.rank, self.world = folder, rank, world
        self.meshes = {}

    def mesh(self, **axes):
        key = tuple(axes.items())
        if key not in self.meshes:
            self.meshes[key] = init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))
        return self.meshes[key]

    def save(self, name, model, optimizer=None):
        walked = walk(model)
        facts = Facts(
            target=name,
            environment=Environment(
                versions=FrozenDict(torch=torch.__version__), rank=self.rank, world_size=self.world
            ),
            model=model_facts(walked),
            sharding=sharding_facts(walked, optimizer=optimizer),
        )
        (self.folder / f"{name}.{self.rank}.json").write_bytes(encode_facts(facts))


def llama(**more):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 64}
    return LlamaForCausalLM(LlamaConfig(**{**sizes, **heads, **more}))


def mixtral(kind="mixtral", **more):
    from transformers import MixtralConfig, MixtralForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 64, "num_attention_heads": 4}
    sizes |= {"num_key_value_heads": 4, "max_position_embeddings": 64, **more}
    if kind == "qwen3_moe":
        config = Qwen3MoeConfig(num_experts=4, moe_intermediate_size=32, head_dim=8, num_experts_per_tok=2, **sizes)
        return Qwen3MoeForCausalLM(config)
    return MixtralForCausalLM(MixtralConfig(num_local_experts=4, intermediate_size=32, **sizes))


def shard_layers(model, mesh, **options):
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def step(model):
    tokens = torch.randint(0, 64, (2, 8), generator=torch.Generator().manual_seed(0))
    out = model(input_ids=tokens, labels=tokens)
    return out.loss


def tensor_parallel(model, mesh):
    plan = {f"self_attn.{name}": ColwiseParallel() for name in ("q_proj", "k_proj", "v_proj")}
    plan |= {"self_attn.o_proj": RowwiseParallel(), "mlp.down_proj": RowwiseParallel()}
    plan |= {"mlp.gate_proj": ColwiseParallel(), "mlp.up_proj": ColwiseParallel()}
    for layer in model.model.layers:
        parallelize_module(layer, mesh, plan)
    return model


def distribute_experts(model, mesh):
    for layer in model.model.layers:
        experts = layer.mlp.experts
        for name, parameter in list(experts.named_parameters(recurse=False)):
            setattr(experts, name, nn.Parameter(distribute_tensor(parameter.data, mesh, [Shard(0)])))


def experts_of(model):
    return [layer.mlp.experts for layer in model.model.layers]


@scenario(2, 4)
def plain(job):
    job.save("plain", llama())


@scenario(2, 4)
def fsdp2(job):
    model = shard_layers(llama(), job.mesh(fsdp=job.world))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    job.save("fsdp2-before", model, optimizer)
    loss = step(model)
    job.save("fsdp2-within", model, optimizer)
    loss.backward()
    optimizer.step()
    job.save("fsdp2-after", model, optimizer)


@scenario(2, 4)
def fsdp2_mixed_precision(job):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = llama(tie_word_embeddings=True)
    mesh = job.mesh(fsdp=job.world)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    layers = list(model.model.layers)
    layers[0].set_modules_to_forward_prefetch([layers[1]])
    layers[1].set_modules_to_backward_prefetch([layers[0]])
    job.save("tied-in-root", fully_shard(model, mesh=mesh, mp_policy=policy))


@scenario(4)
def fsdp2_tp(job):
    mesh = job.mesh(dp=2, tp=2)
    model = tensor_parallel(llama(), mesh["tp"])
    job.save("tp-only", model)
    job.save("fsdp2-tp", shard_layers(model, mesh["dp"]))


@scenario(4)
def hsdp(job):
    model = shard_layers(llama(), job.mesh(replicate=2, shard=2))
    job.save("hsdp-before", model)
    loss = step(model)
    job.save("hsdp-within", model)
    loss.backward()
    job.save("hsdp-after", model)


@scenario(4)
def fault_half_synchronised(job):
    mesh = job.mesh(replicate=2, shard=2)
    model = llama()
    for index, layer in enumerate(model.model.layers):
        fully_shard(layer, mesh=mesh["shard"] if index == 1 else mesh)
    job.save("fault-half-synchronised", fully_shard(model, mesh=mesh))


@scenario(2, 4)
def replicate(job):
    from torch.distributed._composable.replicate_with_fsdp import replicate as replicate_modules

    mesh = job.mesh(fsdp=job.world)
    model = llama()
    for layer in model.model.layers:
        replicate_modules(layer, mesh=mesh)
    replicate_modules(model, mesh=mesh)
    job.save("replicate", model)


@scenario(2, 4)
def ddp(job):
    job.save("ddp", nn.parallel.DistributedDataParallel(llama(tie_word_embeddings=True)))


@scenario(2, 4)
def fsdp1(job):
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    def wrapped(originals, **options):
        model = llama()
        options |= {"auto_wrap_policy": ModuleWrapPolicy({type(model.model.layers[0])}), "use_orig_params": originals}
        return FullyShardedDataParallel(model, device_id=torch.device("cpu"), **options)

    for originals in (False, True):
        job.save(f"fsdp1-{'originals' if originals else 'flat'}", wrapped(originals))
    model = wrapped(True, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss = step(model)
    job.save("fsdp1-within", model, optimizer)
    loss.backward()
    job.save("fsdp1-after", model, optimizer)


@scenario(4)
def expert_parallel_by_hand(job):
    dense, sparse = job.mesh(fsdp=4), job.mesh(efsdp=2, ep=2)
    for kind in ("mixtral", "qwen3_moe"):
        model = mixtral(kind)
        distribute_experts(model, sparse["ep"])
        for experts in experts_of(model):
            fully_shard(experts, mesh=sparse["efsdp"])
            experts.set_gradient_divide_factor(4.0)
        shard_layers(model, dense)
        job.save(f"ep-{kind}", model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    job.save("fault-stock-clipping", model, optimizer)


@scenario(4)
def expert_parallel_groups(job):
    from torch.distributed.fsdp import fully_shard as shard
    from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo, ShardPlacementResult

    dense, sparse = job.mesh(fsdp=4), job.mesh(efsdp=2, ep=2)
    info = FSDPMeshInfo(mesh=sparse["efsdp"], shard_mesh_dim=0)
    dense_info = FSDPMeshInfo(mesh=dense, shard_mesh_dim=0)
    model = mixtral()
    distribute_experts(model, sparse["ep"])
    for layer in model.model.layers:
        expert_ids = {id(parameter) for parameter in layer.mlp.experts.parameters()}

        def place(parameter, expert_ids=expert_ids):
            return ShardPlacementResult(Shard(0), info if id(parameter) in expert_ids else dense_info)

        shard(layer, mesh=dense, shard_placement_fn=place)
        layer.set_gradient_divide_factor(4.0)
    shard(model, mesh=dense)
    job.save("ep-groups", model)


@scenario(4)
def expert_parallel_transformers(job):
    from transformers import AutoModelForCausalLM
    from transformers.distributed import DistributedConfig

    folder = job.folder / "tiny-mixtral"
    if job.rank == 0:
        mixtral().save_pretrained(folder)
    dist.barrier()
    config = DistributedConfig(fsdp_size=4, ep_size=2, ep_implementation="all_to_all")
    model = AutoModelForCausalLM.from_pretrained(folder, distributed_config=config)
    job.save("ep-transformers", model)


@scenario(4)
def fault_mixed_unit(job):
    mesh = job.mesh(fsdp=2, ep=2)
    model = mixtral()
    distribute_experts(model, mesh["ep"])
    job.save("fault-mixed-unit", shard_layers(model, mesh["fsdp"]))


@scenario(4)
def fault_experts_in_root(job):
    mesh = job.mesh(fsdp=2, ep=2)
    model = mixtral()
    distribute_experts(model, mesh["ep"])
    for layer in model.model.layers:
        fully_shard(layer.self_attn, mesh=mesh["fsdp"])
    job.save("fault-attention-only", fully_shard(model, mesh=mesh["fsdp"]))


@scenario(2, 4)
def fault_tie_split(job):
    mesh = job.mesh(fsdp=job.world)
    model = llama(tie_word_embeddings=True)
    fully_shard(model.model.embed_tokens, mesh=mesh)
    job.save("fault-tie-split", shard_layers(model, mesh))


@scenario(2, 4)
def fault_tie_after(job):
    mesh = job.mesh(fsdp=job.world)
    model = llama(tie_word_embeddings=True)
    fully_shard([model.model.embed_tokens, model.lm_head], mesh=mesh)
    job.save("tied-one-unit", shard_layers(model, mesh))


@scenario(2, 4)
def fault_ignored(job):
    mesh = job.mesh(fsdp=job.world)
    model = llama()
    layer = model.model.layers[0]
    ignored = {layer.mlp.up_proj.weight}
    fully_shard(layer, mesh=mesh, ignored_params=ignored)
    fully_shard(model.model.layers[1], mesh=mesh)
    fully_shard(model, mesh=mesh, ignored_params=ignored)
    job.save("fault-ignored", model, torch.optim.SGD(model.parameters(), lr=0.1))
    layer.mlp.up_proj.weight.requires_grad_(False)
    job.save("frozen-ignored", model)


@scenario(2, 4)
def fault_adapter_late(job):
    model = shard_layers(llama(), job.mesh(fsdp=job.world))
    for layer in model.model.layers:
        layer.self_attn.q_proj.lora_A = nn.Linear(32, 4, bias=False)
        layer.self_attn.q_proj.lora_B = nn.Linear(4, 32, bias=False)
    job.save("fault-adapter-late", model)


@scenario(2, 4)
def fault_replaced(job):
    model = shard_layers(llama(), job.mesh(fsdp=job.world))
    model.model.layers[0].mlp.up_proj.weight = nn.Parameter(torch.zeros(64, 32))
    job.save("fault-replaced", model)


@scenario(2, 4)
def assigned(job):
    model = shard_layers(llama(), job.mesh(fsdp=job.world))
    model.load_state_dict({key: value.clone() for key, value in model.state_dict().items()}, assign=True)
    job.save("assigned", model)


@scenario(2, 4)
def fault_norm_dtype(job):
    model = llama().to(torch.bfloat16)
    for layer in model.model.layers:
        layer.input_layernorm.to(torch.float32)
    job.save("fault-norm-dtype", shard_layers(model, job.mesh(fsdp=job.world)))


@scenario(4)
def fault_averaged_experts(job):
    model = mixtral()
    for layer in model.model.layers:  # each rank builds its own two of four experts, as plain tensors
        for name, parameter in list(layer.mlp.experts.named_parameters(recurse=False)):
            setattr(layer.mlp.experts, name, nn.Parameter(parameter.data[:2].clone()))
    job.save("fault-averaged-experts", shard_layers(model, job.mesh(fsdp=4)))


@scenario(4)
def fault_averaged_ddp(job):
    mesh = job.mesh(efsdp=2, ep=2)

    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(distribute_tensor(torch.ones(4, 8, 8), mesh["ep"], [Shard(0)]))

    job.save("fault-averaged-ddp", nn.parallel.DistributedDataParallel(Experts()))


@scenario(4)
def fault_divisor(job):
    dense, sparse = job.mesh(fsdp=4), job.mesh(efsdp=2, ep=2)
    model = mixtral()
    distribute_experts(model, sparse["ep"])
    for experts in experts_of(model):
        fully_shard(experts, mesh=sparse["efsdp"])
    job.save("fault-divisor", shard_layers(model, dense))


@scenario(4)
def fault_heads(job):
    mesh = job.mesh(tp=4)
    model = tensor_parallel(llama(num_key_value_heads=2), mesh)
    job.save("fault-heads", model)


@scenario(4)
def fault_partial(job):
    mesh = job.mesh(fsdp=4)
    model = llama()
    partial = DTensor.from_local(torch.ones(32), mesh, [Partial()])
    model.model.norm.weight = nn.Parameter(partial)
    job.save("fault-partial", model)


@scenario(2, 4)
def fault_ranks(job):
    mesh = job.mesh(fsdp=job.world)
    model = llama()
    if job.rank == 1:
        model.model.norm.to(torch.bfloat16)
        model.model.layers[0].self_attn.q_proj.bias = nn.Parameter(torch.zeros(32))
    job.save("fault-ranks", shard_layers(model, mesh))


@scenario(4)
def fault_packed_layout(job):
    from torch.distributed.tensor.placement_types import _StridedShard

    mesh = job.mesh(dp=2, tp=2)

    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            weight = torch.arange(16 * 4, dtype=torch.float32).reshape(16, 4)
            local = torch.cat([part.chunk(2)[mesh["tp"].get_local_rank()] for part in weight.chunk(2)])
            spec = [_StridedShard(0, split_factor=2)]
            self.weight = nn.Parameter(DTensor.from_local(local, mesh["tp"], spec, run_check=False))

    job.save("fault-packed-layout", fully_shard(Packed(), mesh=mesh["dp"]))


@scenario(4)
def uneven(job):
    mesh = job.mesh(fsdp=4)
    job.save("uneven", fully_shard(nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 2)), mesh=mesh))


@scenario(4)
def truth(job):
    """Real shards of many layouts, for the boxes: what a rank holds of an arange."""
    import itertools
    import json

    mesh = job.mesh(a=2, b=2)
    rows = []
    for shape in ((8, 6), (5, 3), (9, 2), (3, 1), (1, 4)):
        whole = torch.arange(shape[0] * shape[1], dtype=torch.float32).reshape(shape)
        choices = [Replicate(), Shard(0), Shard(1)]
        for placements in itertools.product(choices, repeat=2):
            tensor = distribute_tensor(whole, mesh, list(placements))
            facts = sharding_facts(walk(holder(tensor)))
            layout = facts.layout_of(facts.parameters[0])
            rows.append(
                {
                    "shape": shape,
                    "placements": [item.text for item in layout.placements],
                    "boxes": [[list(box.offsets), list(box.sizes)] for box in layout.boxes],
                    "replayed": list(layout.replayed_shape),
                    "local": tensor.to_local().flatten().tolist(),
                    "local_shape": list(layout.local_shape),
                }
            )
    (job.folder / f"truth.{job.rank}.rows").write_text(json.dumps(rows))


def holder(tensor):
    module = nn.Module()
    module.weight = nn.Parameter(tensor)
    return module


def main():
    folder, rank, world = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    wanted = sys.argv[4:]
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)}
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    timeout = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world, timeout=timeout)
    job = Job(folder, rank, world)
    for name, (function, worlds) in SCENARIOS.items():
        if world in worlds and (not wanted or name in wanted):
            try:
                function(job)
            except Exception:
                (folder / f"{name}.{rank}.error").write_text(traceback.format_exc())
    with contextlib.suppress(Exception):
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
