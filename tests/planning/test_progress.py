"""Long calls say what they do: on a terminal, in a notebook and to the logger."""

import logging
import os
import pty
import subprocess
import sys
import time

import pytest

from monet_jax.planning import progress as progress_module
from monet_jax.planning.progress import SWITCH, progress

#: A call that takes half a second, shown every twentieth of one.
CALL = """
import time
from monet_jax.planning import progress as module
module.FIRST_SECONDS = module.EVERY_SECONDS = 0.05
with module.progress() as say:
    say("compiling a plan, program 2 of at most 6")
    time.sleep(0.5)
"""


@pytest.fixture
def often(monkeypatch):
    monkeypatch.setattr(progress_module, "FIRST_SECONDS", 0.05)
    monkeypatch.setattr(progress_module, "EVERY_SECONDS", 0.05)


def test_nobody_waits_for_three_seconds_without_a_sign():
    assert progress_module.FIRST_SECONDS < 3 and progress_module.EVERY_SECONDS < 3


def test_the_logger_is_told_what_is_done_and_for_how_long(often, caplog):
    with caplog.at_level(logging.INFO, "monet_jax"), progress() as say:
        say("compiling")
        time.sleep(0.3)
    assert caplog.messages and all("compiling (0 s)" in message for message in caplog.messages)


def test_short_calls_say_nothing(caplog):
    with caplog.at_level(logging.INFO, "monet_jax"), progress() as say:
        say("compiling")
    assert not caplog.messages


def test_calls_inside_others_use_their_line(often, caplog):
    with caplog.at_level(logging.INFO, "monet_jax"), progress() as say:
        say("outer")
        with progress() as inner:
            inner("inner")
            time.sleep(0.2)
        count = len(caplog.messages)
        time.sleep(0.2)
    assert "inner" in caplog.messages[0] and len(caplog.messages) > count


def test_a_switch_turns_it_off(often, caplog, monkeypatch):
    monkeypatch.setenv(SWITCH, "0")
    with caplog.at_level(logging.INFO, "monet_jax"), progress() as say:
        say("compiling")
        time.sleep(0.2)
    assert not caplog.messages


def test_a_terminal_shows_a_live_line_on_standard_error():
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    done = subprocess.run(
        [sys.executable, "-c", CALL], stderr=theirs, stdout=subprocess.PIPE, env=environment
    )
    os.close(theirs)
    shown = os.read(ours, 100_000).decode()
    os.close(ours)
    assert done.returncode == 0 and not done.stdout
    assert "compiling a plan, program 2 of at most 6" in shown


def test_a_notebook_shows_one_line_that_goes_away(tmp_path):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CALL)])
    nbclient.NotebookClient(notebook, timeout=120).execute()
    (output,) = notebook.cells[0].outputs
    assert output.output_type == "display_data" and output.data["text/plain"] == ""
