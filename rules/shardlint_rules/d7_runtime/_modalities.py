"""Which sub-models a traced step had no use for: those of an optional input that it did not give."""

from __future__ import annotations

import re
from functools import cached_property

from shardlint import Facts, Section
from shardlint.facts import GradientFacts, ModuleFacts
from shardlint.names import owner_of

_KINDS = (
    ("image", re.compile(r"(?:^|_)(?:pixel|image|img|picture|video|frame|vision|visual)s?(?:_|$)")),
    (
        "audio",
        re.compile(r"(?:^|_)(?:audio|speech|wave|waveform|mel|spectrogram)s?(?:_|$)|^input_(?:features|values)$"),
    ),
)
_OPTIONAL = re.compile(r"(\w+)=None\b")
_NAMES = re.compile(r"[(,]\s*\*{0,2}(\w+)")


class Modalities:
    """
    The optional inputs of images and sound that the modules of a model take, and those that the traced steps gave.

    A sub-model depends on such an input when the module that holds it takes one, and the sub-model was not called as
    a whole.
    """

    def __init__(self, facts: Facts) -> None:
        self.runtime = facts.require(Section.RUNTIME)
        self.model = facts.model

    def not_given(self, gradient: GradientFacts) -> str:
        """Why the parameter's sub-model was not called: the input that no step gave; empty when that is not why."""
        if gradient.module_ran is not False or not self.given:
            return ""
        parent, name = self.sub_model(gradient.fqn)
        if not name or (name.isdecimal() and parent in self.called):
            return ""
        module = self.caller(parent)
        absent = "" if module is None else self.absent(module)
        return f"no traced step gave {absent}, which its sub-model is for" if absent else ""

    def sub_model(self, fqn: str) -> tuple[str, str]:
        """The outermost module around the parameter of which nothing was called: what holds it, and its name."""
        segments = (owner_of(fqn) or "").split(".")
        for end in range(1, len(segments) + 1):
            if ".".join(segments[:end]) not in self.called:
                return ".".join(segments[: end - 1]), segments[end - 1]
        return "", ""

    def caller(self, fqn: str) -> ModuleFacts | None:
        """The module of that name, or around it, that has a forward of its own: no container."""
        while True:
            module = self.modules.get(fqn)
            if module is not None and module.qualified_type.rpartition(".")[2] not in ("ModuleList", "ModuleDict"):
                return module
            if not fqn:
                return None
            fqn = owner_of(fqn) or ""

    def absent(self, module: ModuleFacts) -> str:
        """An optional input of the module, of a kind of which no step gave any."""
        optional = _OPTIONAL.findall(module.forward_signature)
        for _, kind in _KINDS:
            wanted = [name for name in optional if kind.search(name)]
            if wanted and not any(kind.search(name) for name in self.given):
                return str(wanted[0])
        return ""

    @cached_property
    def modules(self) -> dict[str, ModuleFacts]:
        modules = self.model.modules if self.model is not None else ()
        return {alias: module for module in modules for alias in module.aliases or (module.fqn,)}

    @cached_property
    def called(self) -> set[str]:
        """The modules below which something was called, or may have been."""
        found = {""}
        for gradient in self.runtime.gradients:
            if gradient.module_ran is not False:
                segments = (owner_of(gradient.fqn) or "").split(".")
                found.update(".".join(segments[:end]) for end in range(1, len(segments) + 1))
        return found

    @cached_property
    def given(self) -> set[str]:
        """The names of the inputs that some step gave; none when one cannot be told."""
        root = self.modules.get("")
        names = _NAMES.findall(root.forward_signature) if root is not None else []
        fields = {name for step in self.runtime.training_steps() for name in step.fields}
        numbers = {name: int(name[1:-1]) for name in fields if name.startswith("<")}
        if any(number >= len(names) for number in numbers.values()):
            return set()
        return {names[numbers[name]] if name in numbers else name for name in fields}
