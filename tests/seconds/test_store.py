"""Measured seconds on disk: found again, and never believed where the file is not what it was."""

import json
import stat

import pytest

from monet_jax import _disk
from monet_jax.seconds.store import Store


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(_disk.DIRECTORY, str(tmp_path))
    monkeypatch.delenv(_disk.DISABLE, raising=False)
    return tmp_path / "seconds"


def written(device="a card", **seconds):
    store = Store(device)
    for key, value in seconds.items():
        store.put(key, value)
    store.write()


def test_seconds_are_found_by_the_same_device_and_by_no_other(folder):
    written(x=0.5)
    assert Store("a card").get("x") == 0.5
    assert Store("another card").get("x") is None
    (file,) = folder.iterdir()  # and nothing half-written beside it
    assert json.loads(file.read_text())["device"] == "a card"


def test_what_two_processes_measure_at_once_is_kept():
    first, second = Store("a card"), Store("a card")
    first.put("x", 1.0)
    second.put("y", 2.0)
    first.write()
    second.write()
    assert [Store("a card").get(key) for key in "xy"] == [1.0, 2.0]


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: "[" * 100_000,
        lambda text: text.replace('"format": 1', '"format": 0'),
        lambda text: text.replace("a card", "a faster card"),
        lambda text: text.replace("0.5", '"0.5"'),
        lambda text: text.replace("0.5", "NaN"),
        lambda text: text.replace("0.5", "-0.5"),
        lambda text: text.replace("0.5", "0.0"),
        lambda text: text.replace("0.5", "true"),
    ],
)
def test_a_damaged_or_foreign_file_counts_as_empty_and_is_replaced(folder, damage):
    written(x=0.5)
    (file,) = folder.iterdir()
    file.write_text(damage(file.read_text()))
    assert Store("a card").get("x") is None
    written(y=2.0)
    assert Store("a card").get("y") == 2.0


def test_a_folder_that_cannot_be_written_costs_only_the_measurements(folder, monkeypatch):
    folder.parent.joinpath("file").write_text("")
    monkeypatch.setenv(_disk.DIRECTORY, str(folder.parent / "file"))
    written(x=0.5)
    assert Store("a card").get("x") is None


def test_the_switch_of_all_caches_is_obeyed(folder, monkeypatch):
    written(x=0.5)
    monkeypatch.setenv(_disk.DISABLE, "1")
    assert Store("a card").get("x") is None
    written(y=0.5)
    monkeypatch.delenv(_disk.DISABLE)
    assert Store("a card").get("y") is None
    assert stat.S_ISREG(next(folder.iterdir()).stat().st_mode)
