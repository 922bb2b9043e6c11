"""
Configuration: `shardlint.yaml`, or `[tool.shardlint]` in `pyproject.toml`.

`load_settings` gives the `Settings` of a run or raises `ConfigError` with everything that is wrong, each problem with
file, line and column. `shardlint.config.merge` states how the settings of files that extend each other combine.
"""

from .files import find_config
from .options import rule_options
from .problems import ConfigError, ConfigProblem
from .schema import config_reference, config_schema
from .settings import CheckpointSettings, PackSettings, Settings, load_settings
from .show import TEMPLATE, render_settings

__all__ = [
    "TEMPLATE",
    "CheckpointSettings",
    "ConfigError",
    "ConfigProblem",
    "PackSettings",
    "Settings",
    "config_reference",
    "config_schema",
    "find_config",
    "load_settings",
    "render_settings",
    "rule_options",
]
