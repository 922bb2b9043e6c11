"""Folders of torch.distributed.checkpoint, saved by torch in one process, for the tests that read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import nn

from support.shrink import quiet


def stepped(model: nn.Module) -> dict[str, Any]:
    """The state of an optimizer of the model after one step."""
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer.state_dict()


def saved(values: dict[str, Any], folder: Path) -> Path:
    """The folder, with the values saved in it."""
    with quiet():
        dcp.save(values, checkpoint_id=folder, no_dist=True)
    return folder
