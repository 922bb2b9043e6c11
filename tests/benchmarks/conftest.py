"""
Benchmarks compare two times of one run. Whatever else the machine does can only spoil such a ratio, so a benchmark is
measured again, a few times at most, before it fails.
"""

import inspect

import pytest

ATTEMPTS = 5


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    if pyfuncitem.get_closest_marker("benchmark") is None:
        return None
    wanted = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in wanted}
    for attempt in range(ATTEMPTS):
        try:
            pyfuncitem.obj(**arguments)
            return True
        except AssertionError:
            if attempt == ATTEMPTS - 1:
                raise
    return None
