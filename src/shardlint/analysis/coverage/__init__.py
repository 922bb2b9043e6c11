"""
Checkpoint coverage: what became of every live key and of every stored key that found no place. Public; no torch.

`coverage_of` gives the coverage of a run, judged once: by the retained load report, else by the load plan, else by the
headers of a checkpoint whose keys are the live names. `planned_coverage` and `stored_coverage` are the last two alone.
"""

from .basis import coverage_of, planned_coverage, retained_report, stored_coverage
from .model import Coverage, CoverageStatus, SourceClass, TargetClass, iter_unexplained

__all__ = [
    "Coverage",
    "CoverageStatus",
    "SourceClass",
    "TargetClass",
    "coverage_of",
    "iter_unexplained",
    "planned_coverage",
    "retained_report",
    "stored_coverage",
]
