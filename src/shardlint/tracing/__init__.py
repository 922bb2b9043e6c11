"""
Trace training steps: what ran in which order, which gradients came, what was gathered and never used.

    with shardlint.trace(model, optimizer) as t:
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
    report = shardlint.lint(model, optimizer=optimizer, trace=t)

Nothing that is computed changes, and every hook is gone afterwards, also when the step raised. Importing this package
imports no torch.
"""

from .trace import Trace, TraceError, trace

__all__ = ["Trace", "TraceError", "trace"]
