"""D404 derived-buffer-wrong."""

from __future__ import annotations

from collections.abc import Iterator

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity
from shardlint.facts import DerivedBuffer, TensorValues
from shardlint.names import owner_of


class DerivedBufferWrong(Rule):
    """
    A buffer that is computed from the configuration holds something else.

    ## What it does
    Compares every buffer that no checkpoint stores with what was computed again while the facts were collected: by the
    module's own recipe, by the initialiser of its Transformers model, or by the constructor of a rotary embedding.
    Buffers for which the contract declares a recipe (`recipes`) are compared with that, whether stored or not; one that
    the recipe could not compute is not evaluated.
    Another value than the computed one is an error; one that is equal but for the rounding of a narrower dtype is a
    warning. Frequencies that dynamic scaling or longrope put in place are right too. A rotary buffer without a recipe
    that is zero, constant or not finite is an error as well.

    ## Why it is unsafe
    `to_empty` leaves whatever the memory held in such a buffer, loading does not touch it, and `init_weights()` passes
    modules over that are marked as initialised. Positions are then encoded by garbage: the model runs, and its loss is
    a little or very wrong. Rounded frequencies lose positions in long contexts.

    ## What to do
    Recompute the buffer after `to_empty` (build the rotary module again, or clear `_is_hf_initialized` and call
    `init_weights()`), and keep it in float32 when the model is cast.
    """

    code = "D404"
    name = "derived-buffer-wrong"
    phase = Phase.D4
    severity = Severity.ERROR
    needs = (Section.VALUES,)
    related_config = ("contract.recipes",)

    def check(self, facts: Facts) -> Iterator[Finding]:
        values = facts.require(Section.VALUES)
        statistics = values.by_name()
        unknown = []
        for buffer in values.derived:
            if buffer.status in ("wrong", "low-precision"):
                yield self.different(buffer, statistics.get(buffer.fqn))
            elif buffer.status == "unknown" and (buffer.declared or buffer.fqn.endswith("inv_freq")):
                seen = statistics.get(buffer.fqn)
                if (
                    not buffer.declared
                    and seen is not None
                    and ((seen.constant and seen.elements > 1) or seen.zero or not seen.finite)
                ):
                    yield self.garbage(buffer, seen)
                else:
                    unknown.append(f"{buffer.fqn} ({buffer.detail})")
        if unknown:
            raise NotEvaluated(f"nothing computes again: {'; '.join(unknown)}")

    def different(self, buffer: DerivedBuffer, seen: TensorValues | None) -> Finding:
        rounded = buffer.status == "low-precision"
        error = "" if buffer.error is None else f", with a relative error of up to {buffer.error:.3g}"
        detail = f" ({buffer.detail})" if buffer.detail else ""
        found = "those values rounded" if rounded else "other values"
        return self.finding(
            subject=buffer.fqn,
            severity=Severity.WARNING if rounded else None,
            message=f"expected what {buffer.recipe} computes, found {found}{error}{detail}",
            evidence={"recipe": buffer.recipe, "error": buffer.error, "detail": buffer.detail, **_shown(seen)},
            owner=owner_of(buffer.fqn),
        )

    def garbage(self, buffer: DerivedBuffer, seen: TensorValues) -> Finding:
        what = "only zeros" if seen.zero else "one value everywhere" if seen.constant else "values that are not finite"
        return self.finding(
            subject=buffer.fqn,
            message=f"expected falling frequencies, found {what}",
            evidence={"detail": buffer.detail, **_shown(seen)},
            owner=owner_of(buffer.fqn),
        )


def _shown(seen: TensorValues | None) -> dict[str, object]:
    return {} if seen is None else {"minimum": seen.minimum, "maximum": seen.maximum, "elements": seen.elements}
