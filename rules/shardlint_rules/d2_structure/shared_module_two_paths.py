"""D206 shared-module-two-paths."""

from __future__ import annotations

from collections.abc import Iterator

from shardlint import Facts, Finding, Phase, Rule, Section, Severity, SubjectKind
from shardlint.facts import ROOT, ModelFacts, ModuleFacts, ShardingFacts


class SharedModuleTwoPaths(Rule):
    """
    One module is reached through two units and is not a unit of its own.

    ## What it does
    Finds modules with parameters that the tree holds under several names below different sharding units. The outermost
    shared module is reported. A shared module that is a unit itself, or whose names all lie below one unit,
    is right; without units there is nothing to report.

    ## Why it is unsafe
    Its parameters belong to the unit that was wrapped first. When the module runs inside the other unit, nothing
    gathers them: the forward fails on sharded tensors, or frees them while the first unit still needs them.

    ## What to do
    Wrap the shared module as a unit of its own before its parents are wrapped, or leave all of them to one unit.
    """

    code = "D206"
    name = "shared-module-two-paths"
    phase = Phase.D2
    severity = Severity.ERROR
    needs = (Section.MODEL, Section.SHARDING)
    related_config = ("fsdp_wrap_modules", "fsdp_plan")

    noun = "shared module"

    def subjects(self, facts: Facts) -> Iterator[tuple[ModuleFacts, dict[str, str]]]:
        """Every shared module with parameters, and the unit that is its home under each name."""
        model = facts.require(Section.MODEL)
        sharding = facts.require(Section.SHARDING)
        shared = [module for module in model.modules if len(module.aliases) > 1]
        units = _unit_modules(sharding, model) if shared else {}
        holders = _with_parameters(model) if units else set()
        told: list[str] = []
        for module in shared:
            if module.fqn not in holders or _below(module, told):
                continue
            homes = {alias: units.get(alias) or _home(alias, units) for alias in module.aliases}
            if len(set(homes.values())) > 1:
                told.extend(module.aliases)
            yield module, homes

    def judge(self, subject: tuple[ModuleFacts, dict[str, str]], facts: Facts) -> Iterator[Finding]:
        module, homes = subject
        if len(set(homes.values())) > 1:
            yield self.finding(
                subject=module.fqn,
                kind=SubjectKind.MODULE,
                owner=homes[module.fqn],
                message=(
                    f"one {module.qualified_type.rpartition('.')[2]} is reached through the units "
                    f"{', '.join(sorted(set(homes.values())))} and is not a unit of its own"
                ),
                evidence={"paths": homes},
            )


def _unit_modules(sharding: ShardingFacts, model: ModelFacts) -> dict[str, str]:
    """Every name of the modules whose forward gathers parameters, with the module's first; DDP keeps them whole."""
    names = {name for unit in sharding.units if unit.kind not in ("ddp", "replicate") for name in unit.modules}
    return {alias: module.fqn for module in model.modules if module.fqn in names for alias in module.aliases}


def _home(name: str, units: dict[str, str]) -> str:
    """The innermost unit that encloses a module of that name."""
    while name:
        name = name.rpartition(".")[0]
        if name in units:
            return units[name]
    return ROOT


def _below(module: ModuleFacts, told: list[str]) -> bool:
    return any(module.fqn.startswith(f"{name}.") for name in told)


def _with_parameters(model: ModelFacts) -> set[str]:
    """Every name of a module that holds a parameter, at any depth."""
    names: set[str] = set()
    for tensor in model.parameters:
        for alias in tensor.aliases:
            name = alias.rpartition(".")[0]
            while name and name not in names:
                names.add(name)
                name = name.rpartition(".")[0]
    return names
