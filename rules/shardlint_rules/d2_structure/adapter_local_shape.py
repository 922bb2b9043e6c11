"""D211 adapter-local-shape."""

from __future__ import annotations

import re
from collections.abc import Iterator

from shardlint import Facts, Finding, Phase, Rule, Section, Severity
from shardlint.facts import TensorFacts

_ADAPTER = re.compile(r"(?P<base>.+)\.lora_(?P<side>[AB])(?:\.(?P<name>[^.]+))?\.weight\Z")


class AdapterLocalShape(Rule):
    """
    An adapter has the size of one rank's part of its base weight.

    ## What it does
    Compares the outer size of each low-rank factor (`lora_A`: inputs, `lora_B`: outputs) with the global and the local
    shape of the base weight, where those differ. A factor that fits the local part alone is reported. A factor that is
    sharded itself has the global shape and is right.

    ## Why it is unsafe
    The adapter was built by reading the shape of a sharded weight. Its product does not fit the full weight: merging
    and saving fail, or each rank trains an adapter of its own that the checkpoint keeps only one of.

    ## What to do
    Add adapters before the base is sharded, or build them from the global shape (`weight.shape` of the DTensor,
    `in_features` and `out_features` of the layer) and shard them the same way.
    """

    code = "D211"
    name = "adapter-local-shape"
    phase = Phase.D2
    severity = Severity.ERROR
    needs = (Section.MODEL,)
    related_config = ("peft", "target_modules")

    noun = "adapter factor"

    def subjects(self, facts: Facts) -> Iterator[tuple[TensorFacts, TensorFacts, str]]:
        """Every low-rank factor whose base weight is known, with that weight and its side."""
        model = facts.require(Section.MODEL)
        tensors = model.tensor_by_name()
        for tensor in model.parameters:
            match = _ADAPTER.match(tensor.fqn)
            if match is None or len(tensor.shape) != 2:
                continue
            base = tensors.get(f"{match['base']}.base_layer.weight") or tensors.get(f"{match['base']}.weight")
            if base is not None and len(base.shape) == 2:
                yield tensor, base, match["side"]

    def judge(self, subject: tuple[TensorFacts, TensorFacts, str], facts: Facts) -> Iterator[Finding]:
        adapter, base, side = subject
        dim = 1 if side == "A" else 0
        whole, part = base.shape[dim], (base.local_shape or base.shape)[dim]
        if adapter.shape[dim] == part != whole:
            what = "inputs" if side == "A" else "outputs"
            yield self.finding(
                subject=adapter.fqn,
                owner=adapter.fqn.rpartition(".lora_")[0],
                message=f"expected {whole} {what} like {base.fqn}, found {part}, the size of this rank's part",
                evidence={"base": base.fqn, "global": base.shape, "local": base.local_shape, "adapter": adapter.shape},
            )
