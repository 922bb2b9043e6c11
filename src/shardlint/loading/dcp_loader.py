"""The loader of torch.distributed.checkpoint: every tensor by its own name, in a state dict that may be nested."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Mapping, Sequence

from .identity_loader import IdentityLoader
from .loader import PlannedTarget, Routes

# State that training keeps beside the model: by the first segment of its name, or by its last.
_BESIDE = re.compile(
    r"^(optim\w*|opt|\w*scheduler\w*|step|steps|epoch|lr|\w*dataloader\w*|train_state|training_state|rng\w*|"
    r"grad_scaler|scaler|sampler)(\.|$)|\.(exp_avg|exp_avg_sq|max_exp_avg_sq|momentum_buffer|_extra_state)$"
)


class DcpLoader(IdentityLoader):
    """
    Identity within the nested state dict that holds the model, after the renamings that the owner declared.

    `parts` are the names of the state dicts that the folder nests. The one below which most live names are stored is
    the model's; a folder that nests none, or none that fits, is taken as it is.
    """

    title = "torch.distributed.checkpoint"

    def __init__(self, parts: Sequence[str], renames: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(renames)
        self._parts = parts
        self._prefix = ""
        self._live_tops: Container[str] = ()

    def routes(self, keys: Sequence[str], live: Mapping[str, PlannedTarget]) -> Routes:
        names = super().routes(keys, live).names
        self._prefix = self._chosen(names, live)
        self._live_tops = {name.partition(".")[0] for name in live}
        if self._prefix:
            self._used[f"the nested state dict {self._prefix.removesuffix('.')}"] = None
        return Routes([name.removeprefix(self._prefix) for name in names], {})

    def _chosen(self, names: Sequence[str], live: Mapping[str, PlannedTarget]) -> str:
        """Return the prefix under which most live names are found; of equals the shortest."""
        hits: Counter[str] = Counter()
        hits[""] = sum(name in live for name in names)
        prefixes = {f"{part}." for part in self._parts}
        for name in names:
            end = name.find(".") + 1
            while end:
                if name[:end] in prefixes:
                    hits[name[:end]] += name[end:] in live
                end = name.find(".", end) + 1
        return min(hits, key=lambda prefix: (-hits[prefix], len(prefix)))

    def is_beside(self, key: str) -> bool:
        """Whether the stored key is no part of the model: state of the optimizer, or another nested state dict."""
        if self._prefix:
            return not key.startswith(self._prefix)
        top = key.partition(".")[0]
        return top not in self._live_tops and bool(_BESIDE.search(key))
