"""The page about tracing runs as it stands; the callback traces a real `Trainer`."""

import re
from pathlib import Path

import pytest
import torch

from shardlint import LintError
from shardlint.contract import Contract, DataSemantics
from support.models import llama

PAGE = Path(__file__).parents[2] / "docs" / "trace.md"


def test_the_examples_of_the_page_run(capsys):
    names = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    assert capsys.readouterr().out == "('0', '1', '2')\n('2', '1', '0')\n"


def trained(folder, callback):
    from transformers import Trainer, TrainingArguments

    rows = [{"input_ids": torch.arange(8), "labels": torch.arange(8)} for _ in range(8)]
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=3,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    model = llama()
    Trainer(model=model, args=arguments, train_dataset=rows, callbacks=[callback]).train()
    return model


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_a_trainer_is_traced(tmp_path):
    from shardlint.integrations.tracing import TraceCallback

    callback = TraceCallback(steps=2, config=False, select=["D7"])
    model = trained(tmp_path, callback)
    assert callback.report.findings == ()
    runtime = callback.trace.runtime
    assert (len(runtime.steps), runtime.looks) == (4, ("optimizer-step",) * 2)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    contract = Contract(data=DataSemantics(forward_fields=("position_ids",)))
    with pytest.raises(LintError):
        trained(tmp_path, TraceCallback(config=False, select=["D7"], contract=contract))
