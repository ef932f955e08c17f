from __future__ import annotations

import os
import signal

import pytest

from kvbench.signals import ENDING, one_interrupt


@pytest.mark.parametrize("number", ENDING)
def test_first_signal_interrupts_and_the_next_ones_do_not(number: signal.Signals) -> None:
    reached = []
    with one_interrupt():
        try:
            os.kill(os.getpid(), number)
            pytest.fail("the first signal must interrupt")
        except KeyboardInterrupt:
            for again in ENDING:
                os.kill(os.getpid(), again)
            reached.append("teardown")
    assert reached == ["teardown"]


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(number) for number in ENDING]
    with one_interrupt():
        assert signal.getsignal(signal.SIGTERM) != before[1]
    assert [signal.getsignal(number) for number in ENDING] == before
