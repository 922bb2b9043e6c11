"""D209 checkpoint-wrapper-nesting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import frozen

from shardlint import Facts, Finding, Phase, Rule, Section, Severity, SubjectKind
from shardlint.facts import WrapperFacts
from shardlint.names import ROOT, below, collapse, pattern_of

_CHECKPOINT = "activation-checkpoint"


@frozen(kw_only=True)
class NestingOptions:
    """`selective`: the model checkpoints parts of its blocks on purpose."""

    selective: bool = False


class CheckpointWrapperNesting(Rule):
    """
    Activation-checkpoint wrappers are at the wrong level.

    ## What it does
    Reports wrappers below a repeated block (`layers.3.mlp`) when no wrapper is at the level of the block, unless the
    option `selective` says that parts are checkpointed on purpose; and wrappers that enclose an FSDP1 unit.

    ## Why it is unsafe
    Wrapped below the block, the block's own activations are kept and memory is not what was planned. A checkpoint
    around an FSDP1 unit gathers the unit again in the recomputation, once for every enclosed unit.

    ## What to do
    Wrap the block: `checkpoint_wrapper(block)` first, FSDP1 around it; with FSDP2, checkpoint, then `fully_shard`.
    """

    code = "D209"
    name = "checkpoint-wrapper-nesting"
    phase = Phase.D2
    severity = Severity.WARNING
    needs = (Section.MODEL,)
    related_config = ("gradient_checkpointing", "activation_checkpoint")
    options_type = NestingOptions

    noun = "checkpoint wrapper"

    def subjects(self, facts: Facts) -> Iterator[tuple[WrapperFacts, list[str], list[str]]]:
        """Every checkpoint wrapper, its family below blocks (with its first alone), the units that it encloses."""
        wrappers = facts.require(Section.MODEL).wrappers
        checkpoints = [wrapper for wrapper in wrappers if wrapper.kind == _CHECKPOINT]
        families = {} if self.options.selective else _families(checkpoints)
        for index, outer in enumerate(wrappers):
            if outer.kind == _CHECKPOINT:
                inside = [
                    wrapper.fqn
                    for wrapper in wrappers[index + 1 :]
                    if wrapper.kind == "fsdp1" and below(wrapper.fqn, outer.fqn)
                ]
                yield outer, families.get(outer.fqn, []), inside

    def judge(self, subject: tuple[WrapperFacts, list[str], list[str]], facts: Facts) -> Iterator[Finding]:
        outer, family, inside = subject
        if len(family) > 1:
            yield self.finding(
                subject=collapse(family),
                kind=SubjectKind.MODULE,
                message=f"{len(family)} checkpoint wrappers below the repeated block, none around "
                f"{_block_of(family[0])}",
                evidence={"wrappers": tuple(family)},
            )
        if inside:
            yield self.finding(
                subject=outer.fqn or ROOT,
                kind=SubjectKind.MODULE,
                message=f"the checkpoint wrapper encloses the FSDP1 unit {inside[0] or '<root>'}",
                evidence={"units": tuple(inside)},
                key="encloses",
            )


def _families(checkpoints: Sequence[WrapperFacts]) -> dict[str, list[str]]:
    """The wrappers below repeated blocks that no wrapper at the level of a block covers, by the first of each."""
    levels = {
        checkpoint.fqn
        for checkpoint in checkpoints
        if checkpoint.fqn.rpartition(".")[2].isdigit() or not checkpoint.fqn
    }
    families: dict[str, list[str]] = {}
    for checkpoint in checkpoints:
        block = _block_of(checkpoint.fqn)
        if block is not None and not _covered(checkpoint.fqn, levels):
            families.setdefault(pattern_of(checkpoint.fqn), []).append(checkpoint.fqn)
    return {names[0]: names for names in families.values()}


def _block_of(fqn: str) -> str | None:
    """The innermost repeated block that a module of that name lies strictly inside; None when it lies in none."""
    segments = fqn.split(".")
    position = max((at for at, part in enumerate(segments[:-1]) if part.isdigit()), default=None)
    return None if not position else ".".join(segments[: position + 1])


def _covered(fqn: str, levels: set[str]) -> bool:
    return any(below(fqn, level) for level in levels)
