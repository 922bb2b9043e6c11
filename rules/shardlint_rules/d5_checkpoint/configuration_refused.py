"""D523 configuration-refused."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from shardlint import Facts, Finding, Phase, Rule, Section, Severity, SubjectKind
from shardlint.facts import CheckpointFacts, FileProblem, known
from shardlint_rules._files import COMPANIONS, READ_FILES

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"


@frozen
class _Companion:
    """A file of settings, what is wrong with it, and whether it `lacks` though it was expected."""

    name: str
    problems: tuple[FileProblem, ...]
    lacks: bool


class ConfigurationRefused(Rule):
    """
    The configuration next to the weights cannot be read, or the installed library refuses it.

    ## What it does
    Reports a `config.json` or `generation_config.json` that is not a JSON object or cannot be read; a
    `config.json` from which the installed Transformers builds no model, with the field and what was expected (asked
    only when there is no live model); and, as a warning, a folder of the library's own layout without any
    `config.json`. A model type or a class that the library does not know, as with remote code, is not a fault: then
    the report says that the coverage of the checkpoint is unknown.

    ## Why it is unsafe
    Nothing says for which architecture the tensors are, so it is unknown whether they fill it. A broken
    `generation_config.json` stops no training, but the library passes over it, and generation runs with defaults.

    ## What to do
    Correct the field, or fetch the file again from where the weights came from. If the configuration is of a newer
    release of the library, install that release.
    """

    code = "D523"
    name = "configuration-refused"
    phase = Phase.D5
    severity = Severity.ERROR
    needs = (Section.CHECKPOINT,)
    tags = (READ_FILES,)

    noun = "file"

    def subjects(self, facts: Facts) -> Iterator[_Companion]:
        """The settings next to the weights, as far as they are there or are missed."""
        checkpoint = facts.require(Section.CHECKPOINT)
        wrong: dict[str, list[FileProblem]] = {name: [] for name in COMPANIONS}
        for problem in checkpoint.problems:
            if problem.file in COMPANIONS and problem.kind in _SAYINGS:
                wrong[problem.file].append(problem)
        missed = facts.model is None and facts.plan is None and _lacks_config(checkpoint)
        there = {"config.json": checkpoint.config, "generation_config.json": checkpoint.generation_config}
        for name, problems in wrong.items():
            lacks = missed and name == "config.json"
            if problems or lacks or known(there[name]) is not None:
                yield _Companion(name, tuple(problems), lacks)

    def judge(self, companion: _Companion, facts: Facts) -> Iterator[Finding]:
        for problem in companion.problems:
            yield self._finding(problem)
        if companion.lacks:
            yield self._absent()

    def _absent(self) -> Finding:
        return self.finding(
            subject="config.json",
            kind=SubjectKind.FILE,
            severity=Severity.WARNING,
            message="config.json: expected next to the weights, found no such file: nothing says for which "
            "architecture they are, so nothing was compared with it",
            evidence={"problem": "absent", "detail": "no such file", "field": None},
            key="absent",
        )

    def _finding(self, problem: FileProblem) -> Finding:
        field = f"{problem.key}: " if problem.key else ""
        return self.finding(
            subject=problem.file,
            kind=SubjectKind.FILE,
            severity=Severity.WARNING if problem.file == "generation_config.json" else self.severity,
            message=f"{problem.file}: {_SAYINGS[problem.kind]}: {field}{problem.detail}",
            evidence={"problem": problem.kind, "detail": problem.detail, "field": problem.key},
            key=problem.kind,
        )


_SAYINGS = {
    "config-json": "it is not a JSON object",
    "config-refused": "no model can be built from it",
    "missing": "the file is not there",
    "empty": "the file is empty",
    "lfs-pointer": "a Git-LFS pointer stands in place of the file",
    "unreadable": "the file cannot be read",
    "changed": "the file changed while it was read",
}


def _lacks_config(checkpoint: CheckpointFacts) -> bool:
    """Whether a folder as `save_pretrained` lays it out has no configuration at all."""
    if checkpoint.config is not None or any(problem.file == "config.json" for problem in checkpoint.problems):
        return False
    index = checkpoint.index.name if checkpoint.index else ""
    counted = {file.name for file in checkpoint.files if file.counts}
    return index == _INDEX or counted == {_SINGLE}
