"""D311 shard-cuts-head."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from attrs import frozen

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity
from shardlint.analysis.model_config import EXPERT_COUNTS, config_number
from shardlint.facts import OwnershipFacts, ShardingFacts, known
from shardlint.names import glob_matches

from ._layouts import axes_that_shard, live, once, refuse_strange

_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_KEY_VALUE_HEADS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_head_kv")
_VOCABULARY = ("vocab_size",)
_QUERIES = ("q_proj", "query", "q_b_proj", "wq")
_KEYS = ("k_proj", "v_proj", "key", "value", "wk", "wv")
_OUTPUTS = ("o_proj", "wo", "out_proj")
_TOKENS = ("embed_tokens", "lm_head", "wte", "word_embeddings", "output_layer", "tok_embeddings")


@frozen(kw_only=True)
class HeadOptions:
    """`replicated`: globs of parameters of which several ranks hold the same heads on purpose."""

    replicated: tuple[str, ...] = ()


@frozen
class _Family:
    """
    What a dim of a parameter counts: `what`, and in which dim they lie.

    `count` is how many of them the config declares, None when it does not.
    """

    what: str
    count: int | None
    dim: int
    severity: Severity = Severity.ERROR


class ShardCutsHead(Rule):
    """
    A mesh axis that shards attention heads, experts or the vocabulary does not divide their number.

    ## What it does
    For attention projections, stacked experts and token embeddings that tensor or expert parallelism cuts, divides the
    config's number of heads, key-value heads, experts or tokens by the size of the mesh axis, and lists the degrees
    that are valid. Data-parallel shards are gathered before use and may cut anything. Key-value heads that are
    replicated on purpose are named in the option `replicated`.

    ## Why it is unsafe
    A shard border inside a head leaves ranks with parts of heads: the forward raises on a view, or attends over
    mixed heads. Experts that do not divide evenly leave ranks whose local numbers mean other experts. An uneven
    vocabulary works in some kernels only (a warning).

    ## What to do
    Choose a degree that divides the number, replicate the key-value heads and say so, or pad the vocabulary.
    """

    code = "D311"
    name = "shard-cuts-head"
    phase = Phase.D3
    severity = Severity.ERROR
    needs = (Section.SHARDING, Section.MODEL)
    related_config = ("tp_size", "ep_size", "num_key_value_heads")
    options_type = HeadOptions

    noun = "parameter of heads, experts or tokens"

    def subjects(self, facts: Facts) -> Iterator[OwnershipFacts]:
        sharding = facts.require(Section.SHARDING)
        for record in once(live(sharding.parameters)):
            layout = sharding.layout_of(record)
            on_mesh = known(layout.source_mesh) is not None or "source" in layout.unknown
            if on_mesh and _family(record.fqn, None, len(layout.global_shape)) is not None:
                yield record

    def judge(self, record: OwnershipFacts, facts: Facts) -> Iterator[Finding]:
        sharding, config = facts.require(Section.SHARDING), facts.require(Section.MODEL).config
        if any(glob_matches(glob, record.fqn) for glob in self.options.replicated):
            return
        layout = sharding.layout_of(record)
        if "source" in layout.unknown:
            raise NotEvaluated("the layout before data-parallel sharding is unknown")
        refuse_strange(layout, source=True)
        if not any(placement.is_shard for placement in layout.source_placements):
            return
        if not config:
            raise NotEvaluated("the model has no configuration that says how many heads and experts there are")
        family = _family(record.fqn, config, len(layout.global_shape))
        if family is None or family.count is None:
            raise NotEvaluated("the configuration does not say how many there are of what it holds")
        yield from self.cuts(sharding, record, family, family.count)

    def cuts(self, sharding: ShardingFacts, record: OwnershipFacts, family: _Family, whole: int) -> Iterator[Finding]:
        for axis, size in axes_that_shard(sharding, sharding.layout_of(record), family.dim):
            if whole % size:
                valid = tuple(degree for degree in range(1, whole + 1) if whole % degree == 0)
                shown = ", ".join(map(str, valid[:12]))
                yield self.finding(
                    subject=record.fqn,
                    owner=record.owner,
                    severity=family.severity,
                    message=f"{whole} {family.what} over {size} ranks of {axis}; valid degrees are {shown}",
                    evidence={"count": whole, "axis": axis, "degree": size, "valid_degrees": valid[:64]},
                    key=axis,
                )


def _family(fqn: str, config: Mapping[str, Any] | None, ndim: int) -> _Family | None:
    """What a parameter holds, by its name; of several readings the first that the config counts."""
    segments = fqn.split(".")
    module = segments[-2] if len(segments) > 1 else ""
    heads = config_number(config, *_HEADS)
    grouped = config_number(config, *_KEY_VALUE_HEADS) or heads
    choices = (
        (module in _QUERIES, "attention heads", heads, 0, Severity.ERROR),
        (module in _KEYS, "key-value heads", grouped, 0, Severity.ERROR),
        (module in _OUTPUTS and ndim == 2, "attention heads", heads, 1, Severity.ERROR),
        ("experts" in segments and ndim > 2, "experts", config_number(config, *EXPERT_COUNTS), 0, Severity.ERROR),
        (module in _TOKENS, "tokens", config_number(config, *_VOCABULARY), 0, Severity.WARNING),
    )
    fitting = [_Family(what, count, dim, severity) for fits, what, count, dim, severity in choices if fits]
    return next((family for family in fitting if family.count is not None), fitting[0] if fitting else None)
