"""Prices by the clock: every distinct op is compiled and timed once on this process's device.

Medians are kept on disk, but those of runs that differ much: these are timed anew by the next
process. What cannot run alone, takes too much memory, or comes when the time is over, is priced by
a roofline of rates that are measured on the device as well.
"""

import concurrent.futures
import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax

from ..compiler.targets import Target, default_device, usable_bytes
from ..ir.costs import Work, work_of
from .attained import roofline_of
from .clock import MOST_SPREAD, Timing, timed
from .group import Group
from .prices import MEASURED, ROOFLINE, Price, Prices
from .rates import measured_roofline, touch_seconds_per_byte
from .running import can_run, part_of, runnable
from .store import Store, device_in_words, key_of

#: Seconds that measuring may take for one function.
MOST_SECONDS = 20.0
#: Runs of an op, and seconds after which none begins; thrice as many where the runs differ.
_LEAST_RUNS, _SECONDS_OF_AN_OP = 3, 0.03
#: A run of an op should take no longer; of longer ones, a part is timed.
_MOST_OF_A_RUN = 0.2
#: The share of the memory that the arrays of one op may take.
_MEMORY_SHARE = 1 / 8


class Measured(Prices):
    """Prices of ops on the default device of this process.

    Arguments:
        target: the device.
        announce: is told what is measured.
    """

    def __init__(self, target: Target, announce: Callable[[str], None]):
        self._device = default_device()
        self._store = Store(device_in_words(self._device))
        self._announce = announce
        # The results of the run before lie beside the operands and the results.
        self._most_bytes = int(_MEMORY_SHARE * usable_bytes(target)) // 2
        self._known: dict[str, Price] = {}
        self._measured = 0
        self._spent = 0.0
        self._scattered = 0
        # A function is being traced, and nothing can run there; but traces are a thread's own.
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "monet_jax-clock")
        self.roofline = self._apart(measured_roofline, self._store, roofline_of(target))
        self.touch_seconds_per_byte = self._apart(touch_seconds_per_byte, self._store)
        self._overhead = self._apart(_overhead, self._store)

    def of(self, group: Group) -> Price:
        """The price of an op."""
        key = key_of(group.text)
        if key not in self._known:
            self._known[key] = self._with_copies(self._priced(key, group), group)
        return self._known[key]

    def finish(self) -> str:
        """Keep what was measured; say where the clock was of no use."""
        self._store.write()
        scattered, self._scattered = self._scattered, 0
        if not scattered:
            return ""
        return (
            f"The times of {scattered} of {self._measured} ops scatter over more than "
            f"{MOST_SPREAD:.0%}, also when they are run again: the device is busy. Their medians "
            "are used, and not kept. Plan again when it is idle."
        )

    def _with_copies(self, price: Price, group: Group) -> Price:
        """A price, with the copies of cotangents that a product timed alone does without.

        XLA:CPU copies them where the product is transposed, as it is in a loop that was timed.
        """
        if price.source == ROOFLINE:
            return price
        alone = (work_of(e) for e in group.equations if e.primitive == "dot_general")
        copying = self.roofline.relaying_seconds(sum(alone, Work()))
        return dataclasses.replace(price, seconds=price.seconds + copying)

    def _priced(self, key: str, group: Group) -> Price:
        known = self._store.get(key)
        if known is not None:
            return Price(known, MEASURED)
        modelled = self.roofline.seconds(group.work, group.moved_bytes)
        is_open = self._spent < MOST_SECONDS and can_run(group)
        found = self._timed(key, group, modelled) if is_open else None
        return Price(modelled, ROOFLINE) if found is None else Price(found, MEASURED)

    def _timed(self, key: str, group: Group, modelled: float) -> float | None:
        """Seconds of an op, which are kept where its runs agree; None where it does not run alone.

        On a busy device, medians of runs that differ are nearer to those of an idle one than a
        roofline is (docs/how/seconds.md).
        """
        self._measured += 1
        self._announce(f"timing op {self._measured} on this device, {self._spent:.0f} s so far")
        began = time.perf_counter()
        try:
            timing, parts = self._apart(_timing, group, modelled, self._most_bytes)
        except Exception:  # what runs inside a step need not run alone
            return None
        finally:
            self._spent += time.perf_counter() - began
        # A run has an overhead that an op inside a program has not.
        found = parts * max(timing.seconds - self._overhead, 0.05 * timing.seconds)
        if timing.spread > MOST_SPREAD:
            self._scattered += 1
        else:
            self._store.put(key, found)
        return found

    def _apart[Result](self, function: Callable[..., Result], *args: Any) -> Result:
        def on_device() -> Result:
            with jax.default_device(self._device):
                return function(*args)

        return self._thread.submit(on_device).result()


def _timing(group: Group, modelled: float, most_bytes: int) -> tuple[Timing, float]:
    """Times an op, or a part of a large one.

    Raises:
        MemoryError: it moves more bytes than it may, and so does the smallest part.
    """
    excess = max(modelled / _MOST_OF_A_RUN, 1.0)
    if group.moved_bytes > most_bytes:  # twice, since what a loop reads in each trip is not divided
        excess = max(2 * group.moved_bytes / most_bytes, excess)
    part, parts = part_of(group, 1 / excess)
    if part.moved_bytes > most_bytes:
        raise MemoryError(f"An op moves {part.moved_bytes} bytes; {most_bytes} may be used.")
    run = runnable(part)
    jax.block_until_ready(run())
    return timed_again(run), parts


def timed_again(run: Callable[[], Any]) -> Timing:
    """Times an op, which has run before; for longer where its runs differ too much."""
    timing = timed(run, _LEAST_RUNS, _SECONDS_OF_AN_OP)
    if timing.spread <= MOST_SPREAD:
        return timing
    return timed(run, 3 * _LEAST_RUNS, 3 * _SECONDS_OF_AN_OP)


def _overhead(store: Store) -> float:
    """Seconds of a run that does nothing."""
    known = store.get("overhead")
    if known is None:
        run = jax.jit(lambda x: x + 1).lower(0.0).compile()
        run(0.0)
        known = timed(lambda: run(0.0), 30, 0.01).seconds
        store.put("overhead", known)
    return known
