"""What the rules about single checkpoint files share: problems of certain kinds become findings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import ClassVar

from attrs import frozen

from shardlint import Facts, Finding, Rule, Section, Severity, SubjectKind
from shardlint.facts import FileProblem

# The settings next to the weights: what is wrong with them says nothing about the weights (D523).
COMPANIONS = ("config.json", "generation_config.json")
_WEIGHTS = ("safetensors", "lfs-pointer", "pickle", "gguf", "dcp", "adapter")
# The tag of rules that cannot judge while a file that counts cannot be read, and that of rules that compare what was
# read and run all the same. Every rule about a checkpoint says which it is.
WHOLE_CHECKPOINT = "whole-checkpoint"
READ_FILES = "read-files"


@frozen
class FileProblems:
    """One file and what is wrong with it, each with its number; `counts` unless no loader opens the file."""

    name: str
    problems: tuple[tuple[int, FileProblem], ...]
    counts: bool


class FileProblemRule(Rule, abstract=True):
    """
    A base for rules that report file problems. `sayings` maps the kinds of problem to what is said about them,
    `severities` those kinds that have another severity than the rule.

    The subjects are the files that count, as far as they could be opened when `of_opened` is true, and every file that
    has such a problem. A problem of a weight file that no loader opens (it stands beside the files that count) is
    reported as information, which blocks nothing.
    """

    needs = (Section.CHECKPOINT,)
    blocks: ClassVar[tuple[str, ...]] = (f"tag:{WHOLE_CHECKPOINT}",)
    noun = "file"
    sayings: dict[str, str]
    severities: ClassVar[dict[str, Severity]] = {}
    of_opened: ClassVar[bool] = False

    def subjects(self, facts: Facts) -> Iterator[FileProblems]:
        checkpoint = facts.require(Section.CHECKPOINT)
        named = set(checkpoint.index.weight_map.values()) if checkpoint.index else set()
        beside = {file.name for file in checkpoint.files if not file.counts and file.kind in _WEIGHTS} - named
        wrong: dict[str, list[tuple[int, FileProblem]]] = defaultdict(list)
        for number, problem in enumerate(checkpoint.problems):
            if problem.kind in self.sayings and problem.file not in COMPANIONS:
                wrong[problem.file].append((number, problem))
        names = dict.fromkeys(
            file.name for file in checkpoint.files if file.counts and (file.opened or not self.of_opened)
        )
        for name in names | dict.fromkeys(wrong):
            yield FileProblems(name, tuple(wrong.get(name, ())), name not in beside)

    def judge(self, subject: FileProblems, facts: Facts) -> Iterator[Finding]:
        for number, problem in subject.problems:
            yield self._finding(problem, number, counts=subject.counts)

    def _finding(self, problem: FileProblem, number: int, *, counts: bool) -> Finding:
        about = f" (tensor {problem.key})" if problem.key else ""
        beside = "" if counts else "; no loader reads this file"
        return self.finding(
            subject=problem.file,
            kind=SubjectKind.FILE,
            severity=self.severities.get(problem.kind, self.severity) if counts else Severity.INFO,
            message=f"{problem.file}{about}: {self.sayings[problem.kind]}: {problem.detail}{beside}",
            evidence={"problem": problem.kind, "detail": problem.detail, "tensor": problem.key},
            key=f"{problem.kind}:{problem.key or number}",
        )
