"""The base snapshot of a traced step: a sound one of a sharded decoder."""

from __future__ import annotations

from ..facts import (
    Facts,
    GradientFacts,
    RuntimeFacts,
    StepFacts,
    TracedUnit,
    UnitEvent,
)

_LAYERS = 3


def traced() -> Facts:
    """
    Return the runtime facts of one step of a decoder whose three layers and root are FSDP2 units.

    Each layer prefetches the next in forward and the one before in backward; an optimizer stepped.
    """
    layers = [f"model.layers.{number}" for number in range(_LAYERS)]
    by_unit = {
        "<root>": ("model.embed_tokens.weight", "lm_head.weight"),
        **{name: (f"{name}.self_attn.q_proj.weight", f"{name}.mlp.up_proj.weight") for name in layers},
    }
    units = tuple(
        TracedUnit(
            name=name,
            kind="fsdp2",
            modules=(name,),
            parameters=parameters,
            forward_prefetch=tuple(layers[layers.index(name) + 1 :][:1]) if name in layers else (),
            backward_prefetch=tuple(layers[: layers.index(name)][-1:]) if name in layers else (),
        )
        for name, parameters in by_unit.items()
    )
    gradients = tuple(
        GradientFacts(fqn=fqn, aliases=(fqn,), units=(name,), present=1, module_ran=True)
        for name, parameters in by_unit.items()
        for fqn in parameters
    )
    order = [("forward", name) for name in ("<root>", *layers)]
    order += [("backward", name) for name in ("<root>", *reversed(layers))]
    runtime = RuntimeFacts(
        steps=(StepFacts(index=0, fields=("input_ids", "labels")),),
        units=units,
        events=tuple(UnitEvent(kind=kind, unit=name, step=0) for kind, name in order),
        gradients=gradients,
        looks=("optimizer-step",),
        backwards=True,
    )
    return Facts(target="base", runtime=runtime)
