"""Building an architecture ends within its limits, whatever it catches."""

import signal

import pytest

from shardlint.loading import build_limits
from shardlint.loading.build_limits import BuildGivenUp


def endless():
    while True:
        try:
            sum(range(1000))
        except Exception:  # as careless models do
            continue


def test_a_loop_that_catches_everything_is_given_up(monkeypatch):
    monkeypatch.setattr(build_limits, "CPU_SECONDS", 0.05)
    before = signal.getsignal(signal.SIGPROF)
    with pytest.raises(BuildGivenUp, match="processor time"), build_limits._time(0.05):
        endless()
    assert signal.getsignal(signal.SIGPROF) == before
    assert signal.getitimer(signal.ITIMER_PROF)[0] == 0


def test_memory_beyond_the_limit_is_an_error_and_the_limit_goes():
    with pytest.raises(MemoryError), build_limits.memory_limit(64 * 2**20):
        bytearray(2**30)
    assert len(bytearray(2**28)) == 2**28
