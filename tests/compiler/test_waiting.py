"""Steps are taken while a compiler works, and change nothing of what it says."""

import os
import threading
import time

import jax.numpy as jnp
import pytest
from compilers import CPU_CHILD
from jax import ShapeDtypeStruct as Spec

from monet_jax.compiler import child
from monet_jax.compiler.compile import begin_to_compile, compile_bytes
from monet_jax.compiler.options import Options
from monet_jax.compiler.targets import resolve_target
from monet_jax.compiler.waiting import made_ahead, meanwhile, waited_for


@pytest.fixture(scope="module", autouse=True)
def _no_child_outlives_the_tests():
    yield
    child._stop_children()


def test_steps_are_taken_as_long_as_the_work_takes():
    taken, is_enough = [], threading.Event()

    def steps():
        for n in range(1_000_000):
            taken.append(n)
            if n == 3:
                is_enough.set()
            yield

    def work(value):
        assert is_enough.wait(60)
        return value

    with meanwhile(steps()):
        assert waited_for(work, 5) == 5
        assert 4 <= len(taken) < 1_000_000
    assert waited_for(threading.get_ident) == threading.get_ident()  # no steps, no thread


def test_what_the_work_raises_is_raised_and_so_is_what_a_step_raises():
    def fails(error):
        raise error
        yield

    with meanwhile(iter([None])), pytest.raises(ZeroDivisionError):
        waited_for(lambda: 1 / 0)
    with meanwhile(fails(KeyboardInterrupt())), pytest.raises(KeyboardInterrupt):
        waited_for(time.sleep, 0)


def test_what_is_made_ahead_comes_once_and_in_order():
    made = []
    items, ahead = made_ahead(made.append(n) or n for n in range(5))
    assert next(items) == 0 and made == [0]
    assert [next(ahead), next(ahead)] == [None, None] and made == [0, 1, 2]
    assert list(items) == [1, 2, 3, 4] and made == [0, 1, 2, 3, 4]
    assert list(ahead) == []


@pytest.mark.parametrize("attached", [True, False])
def test_a_program_has_the_same_bytes_whatever_is_done_meanwhile(attached):
    target = resolve_target("cpu") if attached else CPU_CHILD

    def compiled(n):
        return compile_bytes(lambda x: jnp.sin(x) * n, (Spec((n,), jnp.float32),), target=target)

    taken = []
    with meanwhile(taken.append(n) for n in range(3)):
        figures = compiled(1_001)
    assert taken
    assert figures.total_bytes == compiled(1_002).total_bytes - 8


def test_an_interrupted_step_leaves_a_child_that_answers():
    def steps():
        raise KeyboardInterrupt
        yield

    def compiled(n):
        return compile_bytes(lambda x: x * n, (Spec((n,), jnp.float32),), target=CPU_CHILD)

    with meanwhile(steps()), pytest.raises(KeyboardInterrupt):
        compiled(1_003)
    assert compiled(1_004).output_bytes == 4 * 1_004


@pytest.fixture
def asked(monkeypatch):
    """The children that were asked for a program each, by their numbers."""
    asked, known = [], child._compiler_child

    def noted(target, devices=1, n=0):
        asked.append(n)
        return known(target, devices, n)

    monkeypatch.setattr(child, "_compiler_child", noted)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    return asked


def begun_and_compiled(fun, n):
    args, options = (Spec((n,), jnp.float32),), Options(CPU_CHILD)
    begin_to_compile(fun, args, target=CPU_CHILD, options=options)
    return compile_bytes(fun, args, target=CPU_CHILD, options=options)


def test_a_program_that_was_begun_is_compiled_once_with_the_same_bytes(asked):
    figures = begun_and_compiled(lambda x: jnp.sin(x) * 5, 1_005)
    assert asked == [1]
    again = compile_bytes(
        lambda x: jnp.sin(x) * 6, (Spec((1_006,), jnp.float32),), target=CPU_CHILD
    )
    assert asked == [1, 0]
    assert figures.total_bytes == again.total_bytes - 8


def test_what_fails_when_it_was_begun_fails_when_it_is_asked_for(asked, monkeypatch):
    monkeypatch.setattr(child._CompilerChild, "ask", lambda *_: {"error": "no registers left"})
    with pytest.raises(child.CompilerFailed, match="no registers left"):
        begun_and_compiled(lambda x: x * 7, 1_007)
    assert asked == [1, 0]  # and again under the compiler's defaults


def test_on_one_core_nothing_is_begun(asked, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    begun_and_compiled(lambda x: x * 8, 1_008)
    assert asked == [0]
