"""
The kit for authors of rules: base snapshots, cases as data, and assertions. It needs neither torch nor pytest.

A pack's whole test of its rules is a folder of YAML files and five lines of Python::

    from shardlint.testing import check_case, load_folder

    @pytest.mark.parametrize("case", load_folder(Path(__file__).parent / "rules"), ids=str)
    def test_rule(case):
        check_case(case, RULES)
"""

from .base_facts import BASES, base_snapshot
from .builders import checkpoint_for, declaration, index_for, model, module, optimizer_for, tensor, values_for
from .cases import Case, CaseError, Expected, case_facts, cases_by_rule, load_cases, load_folder
from .edits import EditError, apply_edits
from .running import (
    RuleRun,
    assert_findings,
    assert_not_evaluated,
    assert_rule_clean,
    check_case,
    rules_by_code,
    run_case,
    run_rule,
)

__all__ = [
    "BASES",
    "Case",
    "CaseError",
    "EditError",
    "Expected",
    "RuleRun",
    "apply_edits",
    "assert_findings",
    "assert_not_evaluated",
    "assert_rule_clean",
    "base_snapshot",
    "case_facts",
    "cases_by_rule",
    "check_case",
    "checkpoint_for",
    "declaration",
    "index_for",
    "load_cases",
    "load_folder",
    "model",
    "module",
    "optimizer_for",
    "rules_by_code",
    "run_case",
    "run_rule",
    "tensor",
    "values_for",
]
