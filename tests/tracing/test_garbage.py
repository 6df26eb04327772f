"""While a call plans, garbage is collected rarely; afterwards as the user has it."""

import gc
import threading

import pytest

from monet_jax.planning.progress import progress
from monet_jax.tracing.garbage import THRESHOLDS, rarely_collected


@pytest.fixture
def thresholds():
    """Sets the user's thresholds, and puts the tests' back."""
    before = gc.get_threshold()
    yield gc.set_threshold
    gc.set_threshold(*before)


@pytest.mark.parametrize("switch", ["0", "1"])
def test_calls_that_plan_do_it(thresholds, monkeypatch, switch):
    monkeypatch.setenv("MONET_JAX_PROGRESS", switch)
    thresholds(700, 10, 10)
    with progress(), progress():
        assert gc.get_threshold() == THRESHOLDS
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("users", [(50_000, 20, 100), (0, 10, 10)])
def test_users_who_collect_more_rarely_keep_their_thresholds(thresholds, users):
    thresholds(*users)
    with rarely_collected():
        assert gc.get_threshold() == users
    assert gc.get_threshold() == users


def test_an_error_and_a_thread_that_ends_later_leave_the_user_s(thresholds):
    thresholds(700, 10, 10)
    entered, may_end = threading.Event(), threading.Event()

    def other():
        with rarely_collected():
            entered.set()
            may_end.wait()

    thread = threading.Thread(target=other)
    with pytest.raises(KeyError), rarely_collected():
        thread.start()
        entered.wait()
        raise KeyError
    assert gc.get_threshold() == THRESHOLDS
    may_end.set()
    thread.join()
    assert gc.get_threshold() == (700, 10, 10)
