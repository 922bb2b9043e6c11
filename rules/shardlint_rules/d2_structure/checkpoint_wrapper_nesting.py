"""D209 checkpoint-wrapper-nesting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import frozen

from shardlint import Facts, Finding, Phase, Rule, Section, Severity, SubjectKind
from shardlint.facts import WrapperFacts
from shardlint.names import ROOT, collapse, pattern_of

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

    def check(self, facts: Facts) -> Iterator[Finding]:
        model = facts.require(Section.MODEL)
        wrappers = model.wrappers
        checkpoints = [wrapper for wrapper in wrappers if wrapper.kind == _CHECKPOINT]
        if not self.options.selective:
            yield from self.below_blocks(checkpoints)
        yield from self.around_units(wrappers)

    def below_blocks(self, checkpoints: Sequence[WrapperFacts]) -> Iterator[Finding]:
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
        for names in families.values():
            if len(names) > 1:
                yield self.finding(
                    subject=collapse(names),
                    kind=SubjectKind.MODULE,
                    message=(
                        f"{len(names)} checkpoint wrappers below the repeated block, none around {_block_of(names[0])}"
                    ),
                    evidence={"wrappers": tuple(names)},
                )

    def around_units(self, wrappers: Sequence[WrapperFacts]) -> Iterator[Finding]:
        for index, outer in enumerate(wrappers):
            if outer.kind != _CHECKPOINT:
                continue
            inside = [
                wrapper.fqn
                for wrapper in wrappers[index + 1 :]
                if wrapper.kind == "fsdp1" and _within(wrapper.fqn, outer.fqn)
            ]
            if inside:
                yield self.finding(
                    subject=outer.fqn or ROOT,
                    kind=SubjectKind.MODULE,
                    message=f"the checkpoint wrapper encloses the FSDP1 unit {inside[0] or '<root>'}",
                    evidence={"units": tuple(inside)},
                    key="encloses",
                )


def _block_of(fqn: str) -> str | None:
    """The innermost repeated block that a module of that name lies strictly inside; None when it lies in none."""
    segments = fqn.split(".")
    position = max((at for at, part in enumerate(segments[:-1]) if part.isdigit()), default=None)
    return None if not position else ".".join(segments[: position + 1])


def _covered(fqn: str, levels: set[str]) -> bool:
    return any(_within(fqn, level) for level in levels)


def _within(name: str, outer: str) -> bool:
    return not outer or name == outer or name.startswith(f"{outer}.")
