"""D208 adapter-target-unmatched."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from attrs import frozen

from shardlint import Facts, Finding, Phase, Rule, Section, Severity, SubjectKind
from shardlint.analysis.wrapper_names import base_name
from shardlint.facts import AdapterFacts, ModelFacts
from shardlint.names import closest, collapse_exactly, counted, natural_key

_TOGETHER = {"qkv": ("q", "k", "v"), "kv": ("k", "v"), "wqkv": ("q", "k", "v"), "gateup": ("gate", "up")}


@frozen
class _Declared:
    """One name that an adapter declares, and the option in which it stands."""

    adapter: AdapterFacts
    setting: str
    name: str


class AdapterTargetUnmatched(Rule):
    """
    An adapter names a target that it does not reach, or not everywhere.

    ## What it does
    Takes each declared target of each adapter. One that no adapted module ends with is reported, with parameters of the
    same role or modules of a like name. One that some modules end with is reported too where other layers hold the role
    as a parameter that no module of that name stands for: fused experts (`experts.gate_up_proj` for `gate_proj`), fused
    attention (`qkv_proj` for `q_proj`). Likewise every name of `target_parameters`, `modules_to_save` and
    `rank_pattern` (or `alpha_pattern`) and every number of `layers_to_transform` that nothing answers to.

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
    related_config = ("target_modules", "target_parameters", "modules_to_save", "layers_to_transform")

    noun = "declared name"

    def subjects(self, facts: Facts) -> Iterator[_Declared]:
        for adapter in facts.require(Section.MODEL).adapters:
            yield from (_Declared(adapter, "target_modules", name) for name in adapter.targets)
            if adapter.pattern:
                yield _Declared(adapter, "target_modules expression", adapter.pattern)
            yield from (_Declared(adapter, "target_parameters", name) for name in adapter.target_parameters)
            yield from (_Declared(adapter, "modules_to_save", name) for name in _saved_names(adapter))
            yield from (_Declared(adapter, "layers_to_transform", str(number)) for number in adapter.layers or ())
            yield from (_Declared(adapter, "rank_pattern", name) for name in adapter.rank_patterns)

    def judge(self, subject: _Declared, facts: Facts) -> Iterator[Finding]:
        model, adapter, name = facts.require(Section.MODEL), subject.adapter, subject.name
        if subject.setting == "target_modules":
            yield from self.look_for(model, adapter, name)
        elif not _REACHED[subject.setting](adapter, name):
            yield self.no_effect(model, subject)

    def no_effect(self, model: ModelFacts, declared: _Declared) -> Finding:
        adapter, name, setting = declared.adapter, declared.name, declared.setting
        last = name.rpartition(".")[2]
        near: tuple[str, ...] = ()
        if setting == "target_parameters":
            near = closest(last, {tensor.fqn.rpartition(".")[2] for tensor in model.parameters})
        elif setting == "modules_to_save":
            near = closest(last, {module.fqn.rpartition(".")[2] for module in model.modules})
        hint = f"; the nearest {'name is' if len(near) == 1 else 'names are'} {', '.join(near)}" if near else ""
        what = _NOTHING[setting]
        return self.finding(
            subject=name,
            kind=SubjectKind.PATTERN,
            message=f"{setting} of the adapter {adapter.name!r} names {name}, and no {what}{hint}",
            evidence={"adapter": adapter.name, "setting": setting, "nearest": near},
            key=f"{adapter.name}:{setting}",
        )

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
    """Whether the adapter changes the parameter: by itself, or with the module that holds it."""
    base = base_name(name)
    if base is not None and base in adapter.matched_parameters:
        return True
    return any(name == module or name.startswith(f"{module}.") for module in adapter.matched)


def _saved_names(adapter: AdapterFacts) -> Iterator[str]:
    """The modules to save; of those that the library adds for a task one is enough."""
    task = adapter.task_modules
    one = any(_is_saved(adapter, name) for name in task)
    yield from (name for name in dict.fromkeys(adapter.modules_to_save) if not (one and name in task))


def _is_saved(adapter: AdapterFacts, name: str) -> bool:
    return any(module.endswith(name) for module in adapter.saved)


def _parameter_is_reached(adapter: AdapterFacts, name: str) -> bool:
    return any(_ends_with(parameter, name) for parameter in adapter.matched_parameters)


def _layer_is_reached(adapter: AdapterFacts, name: str) -> bool:
    """Whether an adapted module stands in the layer, told by the first number of its name as PEFT tells it."""
    starts = [re.compile(rf"(?:^|.*?\.){pattern}\.(\d+)\.") for pattern in adapter.layers_pattern]
    starts = starts or [re.compile(r".*?\.[^.]*\.(\d+)\.")]
    found = (start.match(module) for module in (*adapter.matched, *adapter.matched_parameters) for start in starts)
    return any(match is not None and int(match[1]) == int(name) for match in found)


def _rank_is_used(adapter: AdapterFacts, name: str) -> bool:
    """Whether the name or expression of a rank matches the end of an adapted name, as PEFT matches it."""
    try:
        ending = re.compile(rf"(.*\.)?({name})$")
    except re.error:
        return False
    return any(ending.match(adapted) for adapted in (*adapter.matched, *adapter.matched_parameters))


_REACHED: dict[str, Callable[[AdapterFacts, str], bool]] = {
    "target_modules expression": lambda adapter, name: bool(adapter.matched),
    "target_parameters": _parameter_is_reached,
    "modules_to_save": _is_saved,
    "layers_to_transform": _layer_is_reached,
    "rank_pattern": _rank_is_used,
}
_NOTHING = {
    "target_modules expression": "module that it matches carries it",
    "target_parameters": "parameter of that name carries it",
    "modules_to_save": "module of that name is trained and saved with it",
    "layers_to_transform": "layer of that number carries it",
    "rank_pattern": "adapted module has that name",
}


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
