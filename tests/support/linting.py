"""What the checkpoint rules say about a folder (and a live model)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shardlint import Facts, Finding
from shardlint.checkpoint.folder import collect_checkpoint
from shardlint.engine.runner import SelectedRule, Status, evaluate
from shardlint.facts import PlanFacts
from shardlint.loading.plan import collect_plan
from shardlint_rules.pack import shardlint_rules

CHECKPOINT_RULES = [SelectedRule(rule=rule()) for rule in shardlint_rules() if rule.phase.value == "D5"]


def facts_of(folder: Path, model: Any = None) -> Facts:
    checkpoint = collect_checkpoint(folder)
    if model is None:
        return Facts(checkpoint=checkpoint, plan=collect_plan(checkpoint))
    from shardlint.collect.model import model_facts
    from shardlint.introspect.walk import walk

    facts = model_facts(walk(model))
    return Facts(checkpoint=checkpoint, model=facts, plan=collect_plan(checkpoint, model=model, model_facts=facts))


def plan_of(folder: Path, model: Any = None) -> PlanFacts:
    plan = facts_of(folder, model).plan
    assert plan is not None
    return plan


def findings_of(facts: Facts, *codes: str) -> list[Finding]:
    """The findings of the checkpoint rules, of `codes` only when some are given. No rule may crash."""
    evaluation = evaluate(facts, CHECKPOINT_RULES)
    crashed = [item.code for item in evaluation.outcomes if item.status is Status.CRASHED]
    assert not crashed, [str(item.message) for item in evaluation.findings if item.code == "SL001"]
    return [item for item in evaluation.findings if not codes or item.code in codes]


def mentions(finding: Finding, *texts: str) -> bool:
    said = f"{finding.subject} {finding.message} {finding.evidence}"
    return any(text in said for text in texts)
