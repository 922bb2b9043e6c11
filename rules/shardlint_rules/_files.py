"""What the rules about single checkpoint files share: problems of certain kinds become findings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from shardlint import Facts, Finding, Rule, Section, Severity, SubjectKind
from shardlint.facts import FileProblem

# The settings next to the weights: what is wrong with them says nothing about the weights (D523).
COMPANIONS = ("config.json", "generation_config.json")
_WEIGHTS = ("safetensors", "lfs-pointer", "pickle", "gguf", "dcp", "adapter")
# The tag of rules that cannot judge while a file that counts cannot be read, and that of rules that compare what was
# read and run all the same. Every rule about a checkpoint says which it is.
WHOLE_CHECKPOINT = "whole-checkpoint"
READ_FILES = "read-files"


class FileProblemRule(Rule, abstract=True):
    """
    A base for rules that report file problems. `sayings` maps the kinds of problem to what is said about them.

    A problem of a weight file that no loader opens (it stands beside the files that count) is reported as information,
    which blocks nothing.
    """

    needs = (Section.CHECKPOINT,)
    blocks: ClassVar[tuple[str, ...]] = (f"tag:{WHOLE_CHECKPOINT}",)
    sayings: dict[str, str]

    def check(self, facts: Facts) -> Iterator[Finding]:
        checkpoint = facts.require(Section.CHECKPOINT)
        named = set(checkpoint.index.weight_map.values()) if checkpoint.index else set()
        beside = {file.name for file in checkpoint.files if not file.counts and file.kind in _WEIGHTS} - named
        for number, problem in enumerate(checkpoint.problems):
            if problem.kind in self.sayings and problem.file not in COMPANIONS:
                yield self._finding(problem, number, counts=problem.file not in beside)

    def _finding(self, problem: FileProblem, number: int, *, counts: bool) -> Finding:
        about = f" (tensor {problem.key})" if problem.key else ""
        beside = "" if counts else "; no loader reads this file"
        return self.finding(
            subject=problem.file,
            kind=SubjectKind.FILE,
            severity=self.severity if counts else Severity.INFO,
            message=f"{problem.file}{about}: {self.sayings[problem.kind]}: {problem.detail}{beside}",
            evidence={"problem": problem.kind, "detail": problem.detail, "tensor": problem.key},
            key=f"{problem.kind}:{problem.key or number}",
        )
