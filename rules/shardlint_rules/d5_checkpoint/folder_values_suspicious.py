"""D528 folder-values-suspicious."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from shardlint import (
    Examined,
    Facts,
    Finding,
    HeavyRule,
    LiveTarget,
    NotEvaluated,
    Phase,
    Severity,
    Unfinished,
)
from shardlint.names import collapse_exactly, counted, glob_matches
from shardlint.weights import Suspicion, scan_folder, suspicions
from shardlint_rules._files import READ_FILES

_READABLE = ("safetensors", "safetensors-sharded", "adapter", "dcp")
_SHOWN = 20


@frozen(kw_only=True)
class FolderOptions:
    """
    `constant`: globs of tensors of which all elements are the same number on purpose, such as zeros at the start.

    `threads`: how many threads read.
    """

    constant: tuple[str, ...] = ()
    threads: int = 2


class FolderValuesSuspicious(HeavyRule):
    """
    The values of a stored tensor are not those of trained weights.

    ## What it does
    Reads every tensor of a checkpoint that is looked at alone, without a model and without a reference. Infinities,
    NaN, magnitudes above 1e12, and tensors full of numbers below the smallest normal one are errors. A matrix whose
    elements are all the same number is an error when such matrices are a quarter of the folder or more, a warning in
    a numbered layer, and information elsewhere. A layer that equals another one bit for bit, and a matrix that is that
    of another layer transposed, are warnings. Masks, integers, matrices of ones and the tensors that the option
    `constant` names are left out.

    ## Why it is unsafe
    Such a folder loads without a word: names, shapes and dtypes are right. It is what a broken download, an export
    from memory that was never written, or a wrong conversion leaves behind.

    ## What to do
    Make the folder again from where it came from. Tensors that are constant on purpose belong into the option
    `constant` of this rule.
    """

    code = "D528"
    name = "folder-values-suspicious"
    phase = Phase.D5
    severity = Severity.ERROR
    tags = (READ_FILES,)
    noun = "stored tensor"
    related_config = ("lint.options",)
    options_type = FolderOptions

    def check_live(self, facts: Facts, live: LiveTarget) -> Iterator[Finding | Examined]:
        if live.checkpoint is None or facts.checkpoint is None:
            raise NotEvaluated("it reads a checkpoint, and none was given")
        if live.model is not None or live.reference is not None:
            raise NotEvaluated("it looks at a folder alone; V002 compares this one")
        if facts.checkpoint.format not in _READABLE:
            raise NotEvaluated(f"the values of a checkpoint of format {facts.checkpoint.format} are not read")
        try:
            folder = scan_folder(
                facts.checkpoint,
                threads=self.options.threads,
                max_memory=live.max_memory,
                progress=live.progress,
                stop=live.stop,
            )
        except OSError as error:
            raise Unfinished(str(error)) from error
        for suspicion in suspicions(folder):
            yield from self._findings(suspicion)
        refused = next(iter(folder.refused), ("", ""))
        yield Examined(
            judged=len(folder.tensors),
            unknown=len(folder.refused),
            first_unknown=": ".join(refused) if refused[0] else "",
            evidence=f"{counted(len(folder.tensors), 'tensor')}, {counted(folder.elements, 'element')} read",
        )
        if folder.interrupted:
            raise Unfinished("the run was interrupted")

    def _findings(self, suspicion: Suspicion) -> Iterator[Finding]:
        names = [name for name in suspicion.names if not self._meant(suspicion.what, name)]
        for subject, members in collapse_exactly(names):
            yield self.finding(
                subject=subject,
                severity=Severity.from_user(suspicion.level),
                message=suspicion.message,
                evidence={"what": suspicion.what, "tensors": members[:_SHOWN], "count": len(members)},
                key=suspicion.what,
            )

    def _meant(self, what: str, name: str) -> bool:
        return what == "constant" and any(glob_matches(glob, name) for glob in self.options.constant)
