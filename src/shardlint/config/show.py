"""Show settings: every value with where it comes from; and the file that `config init` writes."""

from __future__ import annotations

import json
from datetime import date
from typing import Any

from ..engine.source import DEFAULT, SettingSource
from ..names import printable
from .files import shown
from .schema import all_keys
from .settings import Settings
from .tables import ListOf, MapOf, Table

TEMPLATE = """\
# Settings of shardlint. Every key is optional but `version`; `shardlint config show` tells what is in force,
# `shardlint config schema` prints the JSON Schema for editors.
version: 1

# Take over the settings of other files, relative to this one, and edit them.
# extends: [../shardlint-base.yaml]

# packs:
#   require: [acme]               # a run without this pack cannot be trusted
#   disable: []
#   local: [lint/house_rules.py]  # relative to this file; the code in it runs

lint:
  # Rules by code, name, code prefix, phase (D3), tag or pack. `select` replaces what is inherited.
  select: [ALL]
  # extend-select: [V002]
  # ignore: [D513]
  fail-level: error
  # heavy: true                   # also compare every weight with the checkpoint
  # severity: {D504: error, D516: off}
  # options:
  #   some-rule: {limit: 3}
  # suppress:
  #   - rule: coverage-incomplete
  #     subject: "layers.*.attn.rope.inv_freq"  # `*` is one segment, `**` any number
  #     reason: rebuilt when the model is built, never stored
  #     expires: 2030-12-31       # the last day on which this holds
  #     expect: 32                # more than so many findings are all shown

# What the owner of the model declares.
# contract:
#   probes:
#     - {glob: "model.embed_tokens.weight", required: true, comparison: exact}
#   invariants:
#     - {name: rope-is-whole, checker: "package.module:check_rope", phase: materialization}
#   training-only-targets: ["value_head.*"]
#   inference-only-sources: ["rotary_emb.inv_freq"]

# checkpoint:
#   renames:
#     # Regular expressions, as re.sub takes them: searched anywhere in a key unless `^` stands first.
#     - {from: '^transformer\\.', to: 'model.'}
#     - {from: '^(h\\.\\d+\\.)mlp\\.c_fc\\.', to: '\\1mlp.fc1.'}
#   allow-overlay: false
#   allow-cast: [bfloat16]        # beside --reference: a cast to this dtype is meant
#   fuse:
#     - {from: ["h.*.q.weight", "h.*.k.weight", "h.*.v.weight"], to: "h.*.qkv.weight", dim: 0}

# report:
#   output-format: [text, "json:report.json"]
"""


def render_settings(settings: Settings) -> str:
    """
    Every setting on a line of its own, `key: value  # place`, defaults included, in the order of the schema.

    Lists are shown item by item, since each item may come from another file.
    """
    lines = ["# " + _origin(settings)]
    lines += [f"# warning: {printable(warning)}" for warning in settings.warnings]
    for path, key in all_keys():
        if isinstance(key.kind, Table) or "[]" in path:
            continue
        setting = settings.values.get(*path.split("."))
        if setting is not None:
            lines += [_line(leaf, value.plain(), value.source) for leaf, value in setting.leaves(path)]
        elif isinstance(key.kind, (ListOf, MapOf)) or key.default is None:
            lines.append(f"{path}:  # not set")
        else:
            lines.append(_line(path, key.default, DEFAULT))
    return "\n".join(lines) + "\n"


def _origin(settings: Settings) -> str:
    if not settings.files:
        return "no configuration file: every value is a default"
    return "from " + ", then ".join(printable(shown(path)) for path in settings.files)


def _line(path: str, value: Any, source: SettingSource) -> str:
    text = value.isoformat() if isinstance(value, date) else value if _is_word(value) else json.dumps(value)
    return f"{printable(path)}: {text}  # {printable(str(source))}"


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and value.replace("-", "").replace("_", "").isalnum() and value.isascii()
