"""D525 chunks-incomplete."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from shardlint import Facts, Phase, Section, Severity
from shardlint.facts import FileProblem
from shardlint_rules._files import FileProblemRule, FileProblems


class ChunksIncomplete(FileProblemRule):
    """
    The chunks of a tensor in a distributed checkpoint do not cover it exactly once.

    ## What it does
    Takes every tensor of `.metadata` and lays its chunks over its shape: reports chunks that leave it, two that share
    elements, elements that no chunk holds, and chunks of which nothing says in which file they lie. Data files that
    are absent or too short are reported by D505.

    ## Why it is unsafe
    Loading fills what there is: elements that no chunk holds keep what the memory had before, and where two chunks
    overlap the last one wins. It happens when ranks die while saving, when folders are merged, and when a save mixes
    ranks of two meshes.

    ## What to do
    Save again, with all ranks of the mesh. Do not mix the files of two saves in one folder.
    """

    code = "D525"
    name = "chunks-incomplete"
    phase = Phase.D5
    severity = Severity.ERROR
    blocks = ()
    noun = "tensor"
    sayings = {
        "chunk-unplaced": "a chunk is in no file",
        "chunk-bounds": "a chunk leaves the tensor",
        "chunk-overlap": "two chunks overlap",
        "chunk-hole": "elements are in no chunk",
    }

    def subjects(self, facts: Facts) -> Iterator[FileProblems]:
        """Every tensor of a folder of torch.distributed.checkpoint; no other format has chunks."""
        checkpoint = facts.require(Section.CHECKPOINT)
        wrong: dict[str | None, list[tuple[int, FileProblem]]] = defaultdict(list)
        for number, problem in enumerate(checkpoint.problems):
            if problem.kind in self.sayings:
                wrong[problem.key].append((number, problem))
        chunked = checkpoint.entries if checkpoint.format == "dcp" else ()
        for key in dict.fromkeys([*(entry.key for entry in chunked), *wrong]):
            yield FileProblems(key or ".metadata", tuple(wrong.get(key, ())), counts=True)
