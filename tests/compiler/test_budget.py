"""Each form of a budget means the bytes that it states, and errors say what to write."""

import math

import numpy as np
import pytest

from monet_jax.compiler.budget import format_bytes, parse_budget, validate_budget


def _never() -> int:
    raise AssertionError("this budget needs no compilation")


@pytest.mark.parametrize(
    ("budget", "nbytes"),
    [
        (17, 17),
        (np.int64(2**40), 2**40),
        ("12GiB", 12 * 2**30),
        ("12GB", 12 * 10**9),
        ("12gb", 12 * 10**9),
        (" 512 MiB ", 512 * 2**20),
        ("1.5e9", 1_500_000_000),
        ("1_000_000B", 1_000_000),
        ("0.5 TiB", 2**39),
        ("2kB", 2000),
    ],
)
def test_bytes_and_strings(budget, nbytes):
    assert parse_budget(budget, unplanned_bytes=_never, target_memory=_never) == nbytes


def test_a_float_is_a_share_of_the_unplanned_bytes():
    assert parse_budget(0.25, unplanned_bytes=lambda: 1000, target_memory=_never) == 250
    assert parse_budget("62.5 %", unplanned_bytes=lambda: 1000, target_memory=_never) == 625
    assert parse_budget(1.0, unplanned_bytes=lambda: 1000, target_memory=_never) == 1000


def test_auto_leaves_a_reserve_on_the_target():
    assert parse_budget("auto", unplanned_bytes=_never, target_memory=lambda: 1000) == 900


@pytest.mark.parametrize(
    ("budget", "says"),
    [
        (0, "at least 1 byte"),
        (-5, "at least 1 byte"),
        ("0GiB", "at least 1 byte"),
        ("-1GiB", "not an amount"),
        ("", "not an amount"),
        ("lots", "not an amount"),
        ("60 % of it", "not an amount"),
        ("120%", "share in"),
        ("0%", "share in"),
        ("-5%", "not an amount"),
        ("12GiB and more", "not an amount"),
        ("12Gb", "unit 'Gb'"),
        ("12b", "unit 'b'"),
        ("12 parsecs", "unit 'parsecs'"),
        ("1e999", "not finite"),
        (0.0, "share in"),
        (-0.5, "share in"),
        (math.nan, "share in"),
        (math.inf, "share in"),
        (12e9, r"int\(12000000000\.0\)"),
    ],
)
def test_amounts_that_cannot_be(budget, says):
    with pytest.raises(ValueError, match=says):
        validate_budget(budget)


@pytest.mark.parametrize("budget", [None, True, False, 1j, b"12GiB", [12]])
def test_things_that_are_no_budget(budget):
    with pytest.raises(TypeError, match="it must be an int of bytes, a string"):
        validate_budget(budget)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (8 * 2**30, "8.0 GiB"),
        (2**30 - 1, "1.0 GiB"),
        (-(2**20), "-1.0 MiB"),
        (5000 * 2**40, "5000.0 TiB"),
    ],
)
def test_bytes_for_people(nbytes, text):
    assert format_bytes(nbytes) == text
