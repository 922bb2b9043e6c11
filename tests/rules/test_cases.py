"""Every case of every built-in rule, through the public kit."""

from pathlib import Path

import pytest

from shardlint.testing import check_case, load_folder
from shardlint_rules.pack import shardlint_rules


@pytest.mark.parametrize("case", load_folder(Path(__file__).parent), ids=str)
def test_case(case):
    check_case(case, shardlint_rules())
