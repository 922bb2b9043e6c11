"""D404 derived-buffer-wrong."""

from __future__ import annotations

from collections.abc import Iterator

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity
from shardlint.analysis.contract_globs import first_match
from shardlint.facts import DerivedBuffer, TensorValues
from shardlint.names import owner_of


class DerivedBufferWrong(Rule):
    """
    A buffer that is computed from the configuration holds something else.

    ## What it does
    Compares every buffer that no checkpoint stores with what was computed again while the facts were collected: by the
    module's own recipe, by the initialiser of its Transformers model, or by its module's constructor, called once more
    with the arguments that the module keeps under their names.
    Buffers for which the contract declares a recipe (`recipes`) are compared with that, whether stored or not.
    Another value than the computed one is an error; frequencies that are equal but for the rounding of a narrower dtype
    are a warning. Frequencies that dynamic scaling or longrope put in place are right too, and so is whatever became of
    a buffer that begins as a constant: a counter, a cache.
    A buffer that nothing computes again is not evaluated, and so is one that differs from what its constructor gives
    when nobody knows all of the arguments; where it is constant, not finite or absurdly large all the same, or where
    the frequencies of a rotary embedding do not fall, that is an error. Buffers that the contract calls lazy
    (`lazy_buffers`) are left out.

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
    related_config = ("contract.recipes", "contract.lazy-buffers")

    noun = "buffer"

    def subjects(self, facts: Facts) -> Iterator[tuple[DerivedBuffer, TensorValues | None]]:
        values = facts.require(Section.VALUES)
        statistics = values.by_name() if values.derived else {}
        lazy = facts.contract.lazy_buffers if facts.contract else ()
        names = facts.model.tensor_by_name() if lazy and facts.model is not None else {}
        for buffer in values.derived:
            aliases = names[buffer.fqn].aliases if buffer.fqn in names else (buffer.fqn,)
            if not first_match(lazy, aliases):
                yield buffer, statistics.get(buffer.fqn)

    def judge(self, subject: tuple[DerivedBuffer, TensorValues | None], facts: Facts) -> Iterator[Finding]:
        buffer, seen = subject
        if buffer.status in ("wrong", "low-precision"):
            yield self.different(buffer, seen)
        elif buffer.status == "unknown":
            if buffer.falls is not False:
                raise NotEvaluated(buffer.detail)
            yield self.garbage(buffer, seen)

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

    def garbage(self, buffer: DerivedBuffer, seen: TensorValues | None) -> Finding:
        return self.finding(
            subject=buffer.fqn,
            message=f"expected falling frequencies, found {_what(seen)}",
            evidence={"detail": buffer.detail, **_shown(seen)},
            owner=owner_of(buffer.fqn),
        )


def _what(seen: TensorValues | None) -> str:
    if seen is None:
        return "numbers that do not fall"
    if not seen.finite:
        return "values that are not finite"
    return "only zeros" if seen.zero else "one value everywhere" if seen.constant else "numbers that do not fall"


def _shown(seen: TensorValues | None) -> dict[str, object]:
    return {} if seen is None else {"minimum": seen.minimum, "maximum": seen.maximum, "elements": seen.elements}
