"""A callback for the Transformers `Trainer`: the model is linted when training begins, before the first step."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from .loop import show

if TYPE_CHECKING:
    TrainerCallback = object  # Transformers is optional, and has no types that a strict check could use
else:
    try:
        from transformers import TrainerCallback
    except ImportError as error:
        raise ImportError(
            "shardlint.integrations.transformers needs Transformers: pip install 'shardlint[hf]'"
        ) from error

CLIPPING_RULE = "D308"


class ShardlintCallback(TrainerCallback):
    """
    Lint the model on every rank when training begins; stop with a `LintError` when there are errors.

    `raises` False only shows the report. `trainer` (or `callback.trainer = trainer`) lets the callback see the model
    as it is trained, below DDP for instance; without it, it sees what the `Trainer` hands to callbacks. `arguments`
    are those of `shardlint.lint`: `checkpoint`, `load_info`, `contract`, `config`, `rank_timeout`, ...
    """

    def __init__(self, *, raises: bool = True, trainer: Any = None, **arguments: Any) -> None:
        self.raises = raises
        self.trainer = trainer
        self.arguments = arguments
        self.report: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Lint what is about to be trained. The report stays in `self.report`."""
        from ..api import lint

        model = getattr(self.trainer, "model_wrapped", None)
        model = kwargs.get("model") if model is None else model
        arguments = {"optimizer": kwargs.get("optimizer"), **self.arguments}
        if clips_per_mesh(args):
            arguments["ignore"] = (*arguments.get("ignore", ()), CLIPPING_RULE)
        self.report = lint(model, **arguments)
        show(self.report, sys.stderr)
        if self.raises:
            self.report.raise_for_errors()


def clips_per_mesh(args: Any) -> bool:
    """Whether gradients on several meshes do no harm: nothing is clipped, or this `Trainer` clips mesh by mesh."""
    from transformers import Trainer

    return not getattr(args, "max_grad_norm", None) or hasattr(Trainer, "_mixed_mesh_grad_norm")
