"""Set-ups as people write them: a list per module, one training step, and the lint that has nothing to say."""

import pytest
import torch

import shardlint

LOUD = ("error", "warning")


class Setups:
    """
    The set-ups of one module: a decorator that collects them, and their test.

    `says` names by code what a sound set-up is told all the same, and `because` says why that is right.
    """

    def __init__(self):
        self.parameters = []

    def __call__(self, function=None, *, says=(), because=""):
        if function is None:
            return lambda decorated: self(decorated, says=says, because=because)
        assert bool(says) == bool(because), "what is said has a reason"
        self.parameters.append(pytest.param(function, sorted(says), id=function.__name__))
        return function

    def test(self):
        """The test of the module: every rule at its default, and no alarm."""

        @pytest.mark.filterwarnings("ignore")
        @pytest.mark.parametrize(("setup", "says"), self.parameters)
        def test_has_no_false_alarm(setup, says):
            torch.manual_seed(0)
            found = shardlint.lint(setup(), config=False).findings
            loud = [finding for finding in found if finding.severity.name.lower() in LOUD]
            told = "\n".join(f"{finding.code} {finding.subject}: {finding.message}" for finding in loud)
            assert sorted({finding.code for finding in loud}) == says, told

        return test_has_no_false_alarm


def score(output):
    """A loss of whatever a model returns: its own, else the mean square of everything in it."""
    if isinstance(output, torch.Tensor):
        return output.float().square().mean()
    if getattr(output, "loss", None) is not None:
        return output.loss
    values = output.values() if hasattr(output, "values") else output
    return sum(score(value) for value in values if torch.is_tensor(value) or isinstance(value, (tuple, list, dict)))


def stepped(model, optimizer, *inputs, loss=score, **named):
    """One step of training, traced: forward, backward, step, and the gradients are cleared."""
    with shardlint.trace(model, optimizer) as trace:
        loss(model(*inputs, **named)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return shardlint.Target(model=model, optimizer=optimizer, trace=trace)


def adamw(model, **options):
    """AdamW over the parameters that train."""
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3, **options)
