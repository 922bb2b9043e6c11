"""D530 part-not-read."""

from __future__ import annotations

from collections.abc import Iterator

from shardlint import Facts, Finding, Phase, Rule, Section, Severity, SubjectKind
from shardlint.facts import AsideFacts, FileFacts
from shardlint_rules._files import READ_FILES


class PartNotRead(Rule):
    """
    Weights that lie in the folder, or in its subfolders, were not looked at.

    ## What it does
    Names what was set aside: parts in subfolders that the folder itself names (`modules.json` of
    sentence-transformers, `model_index.json` of diffusers), other subfolders with weights, and variants
    (`diffusion_pytorch_model.fp16.safetensors`) of which another one was read. The first are warnings, the others are
    information. Coverage is not complete while a part that the folder names was not read.

    ## Why it is unsafe
    A run that says nothing about a part looks as if it had checked it. A broken dense layer in `2_Dense/` gives wrong
    embeddings, however sound the transformer is.

    ## What to do
    Look at each part by itself (`shardlint lint FOLDER/2_Dense`), and at a variant by naming its file.
    """

    code = "D530"
    name = "part-not-read"
    phase = Phase.D5
    severity = Severity.WARNING
    needs = (Section.CHECKPOINT,)
    tags = (READ_FILES,)

    noun = "file or folder"

    def subjects(self, facts: Facts) -> Iterator[AsideFacts | FileFacts]:
        """Every file that is read, and every file and subfolder that was set aside."""
        checkpoint = facts.require(Section.CHECKPOINT)
        yield from (file for file in checkpoint.files if file.counts)
        yield from checkpoint.aside

    def judge(self, aside: AsideFacts | FileFacts, facts: Facts) -> Iterator[Finding]:
        if isinstance(aside, FileFacts):
            return
        path = f"{facts.require(Section.CHECKPOINT).path}/{aside.name}"
        yield self.finding(
            subject=aside.name,
            kind=SubjectKind.FILE,
            severity=Severity.WARNING if aside.kind == "part" else Severity.INFO,
            message=f"{aside.name} was not looked at: {aside.detail}; to look at it, name {path}",
            evidence={"kind": aside.kind, "path": path},
            key=aside.kind,
        )

    def subject_name(self, aside: AsideFacts | FileFacts) -> str:
        return aside.name
