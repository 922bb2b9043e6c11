"""Notice reentrant checkpoint regions: which units run in them, and whether any of their inputs needs a gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .recorder import Recorder, graph_task, tensors_in


def watch_reentrant(recorder: Recorder) -> Callable[[], None]:
    """
    Look on at every `CheckpointFunction.apply` of torch until the returned function is called.

    What it computes and returns is untouched. Non-reentrant checkpoints are told by the recomputation itself.
    """
    import torch
    from torch.utils import checkpoint

    kind: Any = checkpoint.CheckpointFunction
    inherited = kind.apply

    def apply(run: Any, preserve: Any, *args: Any) -> Any:
        if graph_task() != -1 or not torch.is_grad_enabled():
            return inherited(run, preserve, *args)
        needs_gradient = any(tensor.requires_grad for tensor in tensors_in(args, depth=2))
        within = recorder.running
        if within:
            recorder.checkpointed[within] = "reentrant"
            if not needs_gradient:
                recorder.cut_off.add(within)
        recorder.regions.append((needs_gradient, within))
        try:
            return inherited(run, preserve, *args)
        finally:
            recorder.regions.pop()

    before = vars(kind).get("apply")
    kind.apply = staticmethod(apply)

    def undo() -> None:
        if before is None:
            del kind.apply
        else:
            kind.apply = before

    return undo
