"""D208 adapter-target-unmatched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shardlint import Facts, Finding, Phase, Rule, Section, Severity, SubjectKind
from shardlint.facts import AdapterFacts, ModelFacts
from shardlint.names import closest, collapse_exactly, counted, natural_key

_TOGETHER = {"qkv": ("q", "k", "v"), "kv": ("k", "v"), "wqkv": ("q", "k", "v"), "gateup": ("gate", "up")}


class AdapterTargetUnmatched(Rule):
    """
    An adapter names a target that it does not reach, or not everywhere.

    ## What it does
    Takes each declared target of each adapter. One that no adapted module ends with is reported, with parameters of
    the same role or modules of a like name. One that some modules end with is reported too where other layers hold
    the role as a parameter that no module of that name stands for: fused experts (`experts.gate_up_proj` for
    `gate_proj`), fused attention (`qkv_proj` for `q_proj`). Parameters that `target_parameters` names count as
    reached.

    ## Why it is unsafe
    PEFT complains only when nothing at all matches. Otherwise the named matrices stay frozen silently: the
    adapter trains attention alone, and an experiment measures something else than its configuration says.

    ## What to do
    Correct the name, or target fused parameters with `target_parameters`.
    """

    code = "D208"
    name = "adapter-target-unmatched"
    phase = Phase.D2
    severity = Severity.WARNING
    needs = (Section.MODEL,)
    related_config = ("target_modules", "target_parameters")

    def check(self, facts: Facts) -> Iterator[Finding]:
        model = facts.require(Section.MODEL)
        for adapter in model.adapters:
            for target in adapter.targets:
                yield from self.look_for(model, adapter, target)

    def look_for(self, model: ModelFacts, adapter: AdapterFacts, target: str) -> Iterator[Finding]:
        matched = [name for name in adapter.matched if _ends_with(name, target)]
        same = [name for name in _same_role(model, adapter, target) if not _reached(adapter, name)]
        if not matched:
            yield self.unmatched(model, adapter, target, same)
        elif same:
            yield self.finding(
                subject=target,
                kind=SubjectKind.PATTERN,
                message=f"the adapter {adapter.name!r} reaches {counted(len(matched), 'module')} called {target}, "
                f"but not {_shown(same)}, which has that role",
                evidence={"adapter": adapter.name, "matched": matched[:50], "not_reached": same[:50]},
                key=adapter.name,
            )

    def unmatched(self, model: ModelFacts, adapter: AdapterFacts, target: str, same: list[str]) -> Finding:
        names = {module.fqn.rpartition(".")[2] for module in model.modules}
        near = f"; {_shown(same)} has that role" if same else ""
        like = closest(target.rpartition(".")[2], names) if not same else ()
        near = f"; modules are called {', '.join(like)}" if like else near
        return self.finding(
            subject=target,
            kind=SubjectKind.PATTERN,
            message=f"expected modules called {target} to carry the adapter {adapter.name!r}, found none{near}",
            evidence={"adapter": adapter.name, "same_role": same[:50], "nearest": like},
            key=adapter.name,
        )


def _ends_with(name: str, target: str) -> bool:
    return name == target or name.endswith(f".{target}")


def _reached(adapter: AdapterFacts, name: str) -> bool:
    if any(_ends_with(name, target) or f".{target}." in name for target in adapter.target_parameters):
        return True
    return any(name == module or name.startswith(f"{module}.") for module in adapter.matched)


def _same_role(model: ModelFacts, adapter: AdapterFacts, target: str) -> list[str]:
    """Parameters that hold the target's role in another form: fused with others, or without a module of its name."""
    own, wanted = set(adapter.keys), _words(target.rpartition(".")[2])
    names = []
    for tensor in model.parameters:
        if len(tensor.shape) < 2 or not own.isdisjoint(tensor.aliases):
            continue
        owner, _, last = tensor.fqn.rpartition(".")
        role = owner.rpartition(".")[2] if last == "weight" else last
        if _ends_with(owner, target) and last == "weight":
            continue  # a module of that very name: left out by the other options of the adapter
        if role == target or (len(wanted) > 1 and role != target and wanted < _words(role)):
            names.append(tensor.fqn)
    return sorted(names, key=natural_key)


def _words(name: str) -> set[str]:
    parts = name.split("_")
    return {word for part in parts for word in _TOGETHER.get(part, (part,))}


def _shown(names: Iterable[str]) -> str:
    return ", ".join(text for text, _ in collapse_exactly(names)[:3])
