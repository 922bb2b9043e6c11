"""D308 parameters-on-several-meshes."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import field, frozen
from attrs.validators import in_

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity, SubjectKind
from shardlint.facts import OwnershipFacts, ShardingFacts, known
from shardlint.names import ordered, ranges

from ._layouts import live, once

_UNDECLARED = "torch.nn.utils.clip_grad_norm_ raises over these; say how the loop clips in the option clipping"


@frozen(kw_only=True)
class ClippingOptions:
    """
    `clipping`: how the training loop clips gradients.

    `stock` is `torch.nn.utils.clip_grad_norm_` over all parameters, `per-mesh` a clipping of its own that
    treats each mesh by itself, `none` no clipping, `unknown` that nothing says it.
    """

    clipping: str = field(default="unknown", validator=in_(("unknown", "stock", "per-mesh", "none")))


class ParametersOnSeveralMeshes(Rule):
    """
    The optimizer holds parameters on different meshes, and stock gradient clipping takes them together.

    ## What it does
    Brings the parameters that the optimizer holds together by their device mesh. More than one mesh, or distributed
    tensors beside plain ones, is reported for information, and as a warning where the option `clipping: stock` says
    that the loop clips them all together; a loop that clips mesh by mesh says so with the option
    `clipping: per-mesh`, one that does not clip with `clipping: none`. Without an optimizer it is not evaluated.

    ## Why it is unsafe
    `torch.nn.utils.clip_grad_norm_` stacks the norms of all gradients. Over several meshes, or with plain tensors among
    distributed ones, it raises in the first step; summed by hand, the norm counts replicated parts several times or
    misses the other ranks' parts, and the clipping factor differs between ranks.

    ## What to do
    Clip per mesh and combine the norms (as torchtitan and the Transformers `Trainer` do), or put all parameters on one
    mesh by distributing the plain ones as replicas.
    """

    code = "D308"
    name = "parameters-on-several-meshes"
    phase = Phase.D3
    severity = Severity.WARNING
    needs = (Section.SHARDING,)
    related_config = ("max_grad_norm",)
    options_type = ClippingOptions

    noun = "set of clipped parameters"

    def subjects(self, facts: Facts) -> Iterator[dict[str, list[OwnershipFacts]]]:
        if meshes := _by_mesh(facts.require(Section.SHARDING)):
            yield meshes

    def subject_name(self, subject: dict[str, list[OwnershipFacts]]) -> str:
        return "optimizer"

    def judge(self, meshes: dict[str, list[OwnershipFacts]], facts: Facts) -> Iterator[Finding]:
        sharding = facts.require(Section.SHARDING)
        if self.options.clipping in ("per-mesh", "none"):
            return
        if any("mesh" in layout.unknown for layout in sharding.layouts):
            raise NotEvaluated("the meshes of the parameters are unknown")
        if len(meshes) < 2:
            return
        if all(record.optimized is None for record in sharding.parameters):
            raise NotEvaluated("no optimizer was given, so it is unknown which parameters are clipped together")
        names = {text: ordered(record.fqn for record in records) for text, records in meshes.items()}
        parts = [f"{len(names[text])} on {text}, such as {names[text][0]}" for text in sorted(names)]
        yield self.finding(
            subject="optimizer",
            kind=SubjectKind.MODEL,
            severity=Severity.WARNING if self.options.clipping == "stock" else Severity.INFO,
            message=f"expected all clipped parameters on one mesh, found {'; '.join(parts)}"
            + ("" if self.options.clipping == "stock" else f"; {_UNDECLARED}"),
            evidence={"meshes": names},
        )


def _by_mesh(sharding: ShardingFacts) -> dict[str, list[OwnershipFacts]]:
    """The optimised trainable parameters by mesh; parameters cut as flat sequences have a clipping of their own."""
    by_mesh: dict[str, list[OwnershipFacts]] = {}
    for record in once(live(sharding.parameters)):
        layout = sharding.layout_of(record)
        if record.requires_grad and known(record.optimized) is not False and known(layout.flat) is None:
            mesh = sharding.mesh(layout.mesh)
            text = "no mesh" if mesh is None else f"mesh {mesh.text()} of ranks {ranges(mesh.ranks)}"
            by_mesh.setdefault(text, []).append(record)
    return by_mesh
