"""Reports to write."""

from shardlint import Finding, FrozenDict, Phase, Section, Severity, SubjectKind
from shardlint.engine.runner import Outcome, Status
from shardlint.report import Report, SuppressedFinding, Verdict

WHY = "A tensor without a source keeps whatever its initialiser wrote."
REMEDIATION = "Either:\n\n- restore the key in the checkpoint, or\n- declare the tensor as `training-only`."


def missing(layer, **more):
    values = {
        "code": "D501",
        "name": "coverage-incomplete",
        "phase": Phase.D5,
        "severity": Severity.ERROR,
        "subject": f"model.layers.{layer}.mlp.up_proj.weight",
        "kind": SubjectKind.TENSOR,
        "message": f"has no source; nearest is model.layers.{layer}.mlp.gate_proj.weight",
        "evidence": {"shape": (64, 32), "dtype": "float32"},
        "why": WHY,
        "remediation": REMEDIATION,
        "related_config": ("contract.training-only-targets",),
    }
    return Finding(**(values | more))


def tie(**more):
    values = {
        "code": "D406",
        "name": "tie-not-real",
        "phase": Phase.D4,
        "severity": Severity.WARNING,
        "subject": "lm_head.weight",
        "kind": SubjectKind.TENSOR,
        "message": "is declared tied to model.embed_tokens.weight and has memory of its own",
    }
    return Finding(**(values | more))


def outcome(code, status, **more):
    return Outcome(code=code, name=f"rule-{code.lower()}", phase=Phase(code[:2]), status=status, **more)


OUTCOMES = (
    outcome("D101", Status.NOT_EVALUATED, reason="no contract was given", lacks=(Section.CONTRACT,)),
    outcome("D406", Status.FOUND, findings=1, seconds=0.5),
    outcome("D501", Status.FOUND, findings=32, seconds=0.25),
    outcome("D502", Status.NOT_EVALUATED, reason="no load report was retained", lacks=(Section.LOAD,)),
    outcome("D503", Status.NOT_EVALUATED, reason="no contract was given", lacks=(Section.CONTRACT,)),
    outcome("D504", Status.CLEAN),
    outcome("D505", Status.NOT_EVALUATED, reason="the format of this checkpoint has no index"),
    outcome("V001", Status.BLOCKED, reason="blocked by D401"),
    outcome("V002", Status.LEFT_OUT, reason="a heavy rule: ask for it with --heavy or by its exact code or name"),
)

METADATA = FrozenDict(
    {
        "model": {
            "class": "transformers.LlamaForCausalLM",
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "modules": 500,
            "parameters": 291,
            "buffers": 1,
            "parameter_elements": 8_030_261_248,
        },
        "checkpoint": {"path": "ckpt", "format": "safetensors-sharded", "files": 4, "tensors": 291, "bytes": 1},
    }
)

COVERAGE = FrozenDict(
    {
        "status": "INCOMPLETE",
        "basis": "load-report",
        "counts": {"targets": {"direct_load": 258, "unsupported_missing_target": 32}, "sources": {}},
        "missing": [],
        "unexpected": [],
    }
)


def sample(**more):
    values = {
        "tool": "shardlint 0.1.0",
        "target": "train.py:build",
        "verdict": Verdict.FAIL,
        "findings": (tie(), *(missing(layer) for layer in range(32))),
        "suppressed": (
            SuppressedFinding(
                finding=missing(40), reason="known since March", source="shardlint.yaml:12", expires="2027-01-31"
            ),
        ),
        "outcomes": OUTCOMES,
        "metadata": METADATA,
        "coverage": COVERAGE,
        "seconds": 1.5,
    }
    return Report(**(values | more))
