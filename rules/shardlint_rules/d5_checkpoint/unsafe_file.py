"""D514 unsafe-file."""

from __future__ import annotations

import re
from collections.abc import Iterator

from attrs import frozen

from shardlint import Facts, Finding, Phase, Rule, Section, Severity, SubjectKind
from shardlint.names import counted
from shardlint_rules._files import READ_FILES


@frozen
class _Named:
    """A file: where it lies when that is `outside`; or a pattern of names with the `pickles` of such names."""

    name: str
    outside: str = ""
    pickles: tuple[str, ...] = ()


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

    noun = "file"

    def subjects(self, facts: Facts) -> Iterator[_Named]:
        """Every file of the folder, and every one that is named and lies outside."""
        checkpoint = facts.require(Section.CHECKPOINT)
        for problem in checkpoint.problems:
            if problem.kind == "escapes-folder":
                yield _Named(problem.file or "(empty name)", outside=problem.detail)
        pickles: dict[str, list[str]] = {}
        for file in checkpoint.files:
            if file.kind == "pickle" or (file.kind == "adapter" and not file.name.endswith(".safetensors")):
                pickles.setdefault(re.sub(r"\d+", "*", file.name), []).append(file.name)
            else:
                yield _Named(file.name)
        yield from (_Named(pattern, pickles=tuple(names)) for pattern, names in pickles.items())

    def judge(self, named: _Named, facts: Facts) -> Iterator[Finding]:
        if named.outside:
            yield self.finding(
                subject=named.name,
                kind=SubjectKind.FILE,
                message=f"the file leaves the folder: {named.outside}",
                evidence={"detail": named.outside},
            )
        if named.pickles:
            beside = "beside" if facts.require(Section.CHECKPOINT).entries else "instead of"
            count = counted(len(named.pickles), "pickled weight file")
            yield self.finding(
                subject=named.name,
                kind=SubjectKind.PATTERN if len(named.pickles) > 1 else SubjectKind.FILE,
                severity=Severity.WARNING,
                message=f"{count} {beside} safetensors ({', '.join(named.pickles[:3])}); not opened",
                evidence={"files": named.pickles[:50]},
            )
