"""D210 config-shape-mismatch."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

from shardlint import Facts, Finding, Phase, Rule, Section, Severity, SubjectKind
from shardlint.analysis.model_config import known_settings, model_configurations, text_part
from shardlint.facts import PartConfig
from shardlint.names import ROOT, owner_of
from shardlint_rules._sizes import ConfigPart, Size, sizes_of


class ConfigShapeMismatch(Rule):
    """
    The configuration says one size, and the tensors have another.

    ## What it does
    Compares the configuration with the built tensors where both say the same thing: vocabulary and hidden size with the
    input embedding, the number of layers with the repeated blocks, attention heads with the projections, the number of
    experts with fused experts. An embedding with more rows than the vocabulary is padded, and right. A tokenizer beside
    the checkpoint (`tokenizer.json`, a vocabulary, or a SentencePiece model) that gives larger tokens than the
    embedding has rows is reported too, and so, as information, is a `generation_config.json` beside it whose token ids
    (`eos_token_id`, `pad_token_id` and others like them) lie beyond the embedding. A configuration describes the
    parameters below the module that carries it, through whatever wraps that module; one that cannot be read, and a
    tokenizer that cannot, are not evaluated. Models whose layers differ in kind, configurations that give several
    numbers for one size, and models of several parts are compared only where it is known which number belongs to which
    tensor.

    ## Why it is unsafe
    Whatever is rebuilt from the configuration (a resumed run, a server, a converted checkpoint) gets other shapes than
    this model. A token beyond the embedding reads foreign memory or stops a GPU with an assertion far from its cause.

    ## What to do
    Change sizes through the library's functions (`resize_token_embeddings`), which change the configuration too, or set
    the configuration to what was built. Build truncated models with a truncated configuration. Take the token ids of
    `generation_config.json` from the tokenizer that the model was trained with.
    """

    code = "D210"
    name = "config-shape-mismatch"
    phase = Phase.D2
    severity = Severity.ERROR
    needs = (Section.MODEL,)
    related_config = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")

    noun = "size"

    def subjects(self, facts: Facts) -> Iterator[Size]:
        model = facts.require(Section.MODEL)
        for configuration in model_configurations(model):
            if configuration.unreadable:
                yield Size(configuration.fqn, "configuration", functools.partial(_unreadable, configuration))
                continue
            config = text_part(configuration.config)
            if config is not None:
                yield from sizes_of(ConfigPart.of(model, configuration, config), facts)

    def judge(self, subject: Size, facts: Facts) -> Iterable[Finding]:
        message = subject.difference()
        if not message:
            return ()
        return (
            self.finding(
                subject=subject.fqn,
                kind=SubjectKind.MODULE if subject.name == "layers" else SubjectKind.TENSOR,
                severity=Severity.INFO if subject.name.startswith("generation:") else None,  # kept by shrunk models
                message=message,
                evidence=subject.evidence,
                owner=None if subject.name == "layers" else owner_of(subject.fqn),
                key=subject.name,
            ),
        )

    def subject_name(self, subject: Size) -> str:
        return f"{subject.name} of {subject.fqn or ROOT}"


def _unreadable(configuration: PartConfig) -> str:
    known_settings(configuration)
    return ""
