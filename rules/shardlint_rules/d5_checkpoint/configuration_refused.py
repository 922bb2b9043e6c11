"""D523 configuration-refused."""

from __future__ import annotations

from collections.abc import Iterator

from shardlint import Facts, Finding, Phase, Rule, Section, Severity, SubjectKind
from shardlint.facts import CheckpointFacts, FileProblem
from shardlint_rules._files import COMPANIONS, READ_FILES

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"


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

    def check(self, facts: Facts) -> Iterator[Finding]:
        checkpoint = facts.require(Section.CHECKPOINT)
        for problem in checkpoint.problems:
            if problem.file in COMPANIONS and problem.kind in _SAYINGS:
                yield self._finding(problem)
        if facts.model is None and facts.plan is None and _lacks_config(checkpoint):
            yield self.finding(
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
