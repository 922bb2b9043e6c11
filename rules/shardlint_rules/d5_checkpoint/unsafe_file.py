"""D514 unsafe-file."""

from __future__ import annotations

import re
from collections.abc import Iterator

from shardlint import Facts, Finding, Phase, Rule, Section, Severity, SubjectKind
from shardlint.names import counted
from shardlint_rules._files import READ_FILES


class UnsafeFile(Rule):
    """
    A file of the checkpoint is outside its folder, or is a pickle.

    ## What it does
    Reports index entries and symbolic links that lead out of the folder (links into the `blobs` of a Hugging Face cache
    stay inside), and weights stored as pickle. None of these files is opened.

    ## Why it is unsafe
    A path that leaves the folder reads whatever the author of the index wished. Unpickling runs code of the file's
    author before any check can be made.

    ## What to do
    Copy the file into the folder, or delete the entry. Convert pickled weights to safetensors in a place where running
    their code does no harm, and delete the originals.
    """

    code = "D514"
    name = "unsafe-file"
    phase = Phase.D5
    severity = Severity.ERROR
    needs = (Section.CHECKPOINT,)
    tags = (READ_FILES,)

    def check(self, facts: Facts) -> Iterator[Finding]:
        checkpoint = facts.require(Section.CHECKPOINT)
        for problem in checkpoint.problems:
            if problem.kind == "escapes-folder":
                yield self.finding(
                    subject=problem.file or "(empty name)",
                    kind=SubjectKind.FILE,
                    message=f"the file leaves the folder: {problem.detail}",
                    evidence={"detail": problem.detail},
                )
        pickles: dict[str, list[str]] = {}
        for file in checkpoint.files:
            if file.kind == "pickle" or (file.kind == "adapter" and not file.name.endswith(".safetensors")):
                pickles.setdefault(re.sub(r"\d+", "*", file.name), []).append(file.name)
        beside = "beside" if checkpoint.entries else "instead of"
        for pattern, names in pickles.items():
            count = counted(len(names), "pickled weight file")
            yield self.finding(
                subject=pattern,
                kind=SubjectKind.PATTERN if len(names) > 1 else SubjectKind.FILE,
                severity=Severity.WARNING,
                message=f"{count} {beside} safetensors ({', '.join(names[:3])}); not opened",
                evidence={"files": names[:50]},
            )
