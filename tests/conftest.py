"""What every test wants: modules that a test wrote into its own folder are forgotten when it ends."""

import sys

import pytest


@pytest.fixture(autouse=True)
def _forget_modules_of_temporary_folders(tmp_path_factory):
    yield
    base = str(tmp_path_factory.getbasetemp())
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(base):
            del sys.modules[name]
