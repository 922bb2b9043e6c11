"""D212 modules-hidden."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from shardlint import Facts, Finding, Phase, Rule, Section, Severity, SubjectKind
from shardlint.facts import HiddenFacts
from shardlint.names import counted, glob_matches, listed


@frozen(kw_only=True)
class HiddenOptions:
    """`allowed`: globs over `MODULE.ATTRIBUTE` of containers that hide modules on purpose, such as a teacher."""

    allowed: tuple[str, ...] = ()


class ModulesHidden(Rule):
    """
    Trainable modules or parameters are kept in a plain list or dict, or outside the model altogether.

    ## What it does
    Looks through the plain containers (list, tuple, set, dict) that the modules of the tree keep as attributes, for
    modules and parameters that no module registers and that need gradients. With a traced step it is an error when they
    got one, and modules that the forward calls although they are in no attribute (in a closure, in a global) are found
    as well. Frozen ones, and containers of modules that are registered elsewhere too, are left alone.

    ## Why it is unsafe
    `parameters()`, `state_dict()`, `to()`, `train()` and `fully_shard` do not see them: they stay random, on the CPU
    and in one mode, no optimizer holds them, and no checkpoint has them. The forward runs all the same.

    ## What to do
    Keep them in `nn.ModuleList`, `nn.ModuleDict`, `nn.ParameterList` or `nn.ParameterDict`. What is hidden on purpose
    (a frozen teacher) should not need gradients; else name its attribute in the option `allowed`.
    """

    code = "D212"
    name = "modules-hidden"
    phase = Phase.D2
    severity = Severity.WARNING
    needs = (Section.MODEL,)
    options_type = HiddenOptions

    def check(self, facts: Facts) -> Iterator[Finding]:
        reached = set(facts.runtime.hidden_gradients) if facts.runtime is not None else set()
        for hidden in facts.require(Section.MODEL).hidden:
            allowed = any(glob_matches(glob, hidden.name) for glob in self.options.allowed)
            if hidden.trainable and not allowed:
                yield self._hidden(hidden, reached)
        for qualified_type in facts.runtime.outside if facts.runtime is not None else ():
            yield self.finding(
                subject=qualified_type,
                kind=SubjectKind.MODULE,
                severity=Severity.ERROR,
                message="the forward called a module of this class, which has trainable parameters and is in no "
                "attribute of the model",
                key="called",
            )

    def _hidden(self, hidden: HiddenFacts, reached: set[str]) -> Finding:
        count = counted(len(hidden.trainable), "trainable parameter")
        trained = [name for name in hidden.trainable if name in reached or name in hidden.with_gradient]
        what = f"{counted(hidden.members, 'member')} of {listed(hidden.types)} in a plain container"
        used = f"; {counted(len(trained), 'of them got a gradient', 'of them got gradients')}" if trained else ""
        return self.finding(
            subject=hidden.name,
            kind=SubjectKind.MODULE,
            severity=Severity.ERROR if trained else Severity.WARNING,
            message=f"{what}, with {count} that nothing registers{used}",
            evidence={"parameters": hidden.trainable, "types": hidden.types, "with_gradient": trained},
        )
