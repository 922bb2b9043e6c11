"""One of two ranks of a gloo job: lints models around and within a step, writes what the D4 and D6 rules found."""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer

sys.path.insert(0, str(Path(__file__).parents[2]))

from shardlint import Target
from shardlint.collect import collect
from shardlint.engine.runner import SelectedRule, evaluate
from shardlint_rules.pack import shardlint_rules
from support.models import llama

FOUND = {}


def lint(name, model, optimizer):
    facts = collect(Target(model=model, optimizer=optimizer))
    assert not facts.problems, facts.problems
    rules = [SelectedRule(rule=rule()) for rule in shardlint_rules() if rule.code[:2] in ("D4", "D6")]
    FOUND[name] = [(item.code, item.subject, item.ranks) for item in evaluate(facts, rules).findings]


def before_and_after(name, model, optimizer, inputs):
    lint(name, model, optimizer)
    out = model(**inputs) if isinstance(inputs, dict) else model(inputs)
    lint(f"{name} within a step", model, optimizer)
    (out.logits if hasattr(out, "logits") else out).sum().backward()
    optimizer.step()
    lint(f"{name} after a step", model, optimizer)


def main(folder, rank, world):
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", world), rank=rank, world_size=world)
    tokens = {"input_ids": torch.ones(1, 3, dtype=torch.long)}
    uneven = fully_shard(nn.Sequential(nn.Linear(3, 1), nn.Linear(1, 5)))
    before_and_after("uneven", uneven, torch.optim.AdamW(uneven.parameters(), amsgrad=True), torch.ones(1, 3))
    for originals in (False, True):
        model = FullyShardedDataParallel(llama(), use_orig_params=originals, device_id=torch.device("cpu"))
        before_and_after(f"fsdp1 {originals}", model, torch.optim.AdamW(model.parameters()), tokens)
    model = nn.parallel.DistributedDataParallel(llama())
    before_and_after("zero", model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW), tokens)
    model = fully_shard(llama())
    if rank == 1:
        with torch.no_grad():
            model.lm_head.weight._local_tensor[0, 0] = float("nan")
    lint("nan on rank 1", model, torch.optim.AdamW(model.parameters()))
    Path(f"{folder}/{rank}.json").write_text(json.dumps(FOUND))
    dist.destroy_process_group()


main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
