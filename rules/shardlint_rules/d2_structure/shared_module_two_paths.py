"""D206 shared-module-two-paths."""

from __future__ import annotations

from collections.abc import Iterator

from shardlint import Facts, Finding, Phase, Rule, Section, Severity, SubjectKind
from shardlint.facts import ROOT, ModuleFacts, ShardingFacts


class SharedModuleTwoPaths(Rule):
    """
    One module is reached through two units and is no unit of its own.

    ## What it does
    Finds modules with parameters that the tree holds under several names below different sharding units. The outermost
    shared module is reported. A shared module that is a unit itself, or whose names all lie below one unit,
    is right; without units there is nothing to report.

    ## Why it is unsafe
    Its parameters belong to the unit that was wrapped first. When the module runs inside the other unit, nothing gathers
    them: the forward fails on sharded tensors, or frees them while the first unit still needs them.

    ## What to do
    Wrap the shared module as a unit of its own before its parents are wrapped, or leave all of them to one unit.
    """

    code = "D206"
    name = "shared-module-two-paths"
    phase = Phase.D2
    severity = Severity.ERROR
    needs = (Section.MODEL, Section.SHARDING)
    related_config = ("fsdp_wrap_modules", "fsdp_plan")

    def check(self, facts: Facts) -> Iterator[Finding]:
        assert facts.model is not None
        assert facts.sharding is not None
        units = _unit_modules(facts.sharding)
        told: list[str] = []
        for module in facts.model.modules:
            if len(module.aliases) < 2 or not units or _below(module, told) or not _has_parameters(facts, module):
                continue
            homes = {alias: _home(alias, units) for alias in module.aliases}
            if len(set(homes.values())) > 1 and not set(module.aliases) & units:
                told.extend(module.aliases)
                yield self.finding(
                    subject=module.fqn,
                    kind=SubjectKind.MODULE,
                    owner=homes[module.fqn],
                    message=(
                        f"one {module.qualified_type.rpartition('.')[2]} is reached through the units "
                        f"{', '.join(sorted(set(homes.values())))} and is no unit of its own"
                    ),
                    evidence={"paths": homes},
                )


def _unit_modules(sharding: ShardingFacts) -> set[str]:
    """The modules whose forward gathers parameters; DDP keeps them whole."""
    return {name for unit in sharding.units if unit.kind not in ("ddp", "replicate") for name in unit.modules}


def _home(name: str, units: set[str]) -> str:
    """The innermost unit that encloses a module of that name."""
    while name:
        name = name.rpartition(".")[0]
        if name in units:
            return name
    return ROOT


def _below(module: ModuleFacts, told: list[str]) -> bool:
    return any(module.fqn.startswith(f"{name}.") for name in told)


def _has_parameters(facts: Facts, module: ModuleFacts) -> bool:
    assert facts.model is not None
    prefix = f"{module.fqn}."
    return any(alias.startswith(prefix) for tensor in facts.model.parameters for alias in tensor.aliases)
