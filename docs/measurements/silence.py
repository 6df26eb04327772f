"""How long is a call of `plan` or `fit` silent on a terminal, in a notebook, and in the log?

    python docs/measurements/silence.py plan cpu gpt2 unet        # 45 % of plain's temporaries
    python docs/measurements/silence.py fit gpu:h100 gpt2:tiny --budget 1GiB

The call runs in a process of its own: on a pseudo-terminal, in a notebook's kernel, and with
standard error in a pipe, where it logs. A sign is a text that was not there before; a spinner that
turns is none. A silence lasts from the call's begin to the first sign, from one to the next, or
from the last to the call's end. Models are `MODEL[:SCALE]`. Rows are added to `silence.json`.
"""

import argparse
import itertools
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import pexpect
from jupyter_client.manager import start_new_kernel
from keeping import keep, kept_rows

HERE = Path(__file__).parent
BEGIN, END = "the call begins", "the call ends"
CODE = f"""
import logging, sys, warnings
import monet_jax
from monet_jax import zoo

warnings.simplefilter("ignore")
model, scale, target, call, budget = {{}}
problem = zoo.build(model, scale=scale)
loss, args = problem.loss, problem.args

def make_args(batch):
    return zoo.build(model, scale=scale, batch=batch).args

if call == "plan":
    plain = monet_jax.plan(loss, *args, budget="1000TiB", target=target, cache=False)
    budget = plain.fixed_bytes + int(0.45 * (plain.unplanned_bytes - plain.fixed_bytes))
logging.basicConfig(format="%(message)s")
logging.getLogger("monet_jax").setLevel("INFO")
print("{BEGIN}", flush=True)
if call == "plan":
    monet_jax.plan(loss, *args, budget=budget, target=target, cache=False)
else:
    monet_jax.fit(loss, make_args, budget=budget, target=target)
print("{END}", flush=True)
"""
#: A line of progress, with the seconds of the call so far.
SIGN = re.compile(r"monet_jax: [^\r\n\x1b]*\(\d+ s\)")
#: Seconds without a word after which a call has hung.
HUNG = 600

#: What a process shows, with the second when it came.
Shown = Iterator[tuple[float, str]]


def on_terminal(code: str) -> Shown:
    """What code shows on a terminal."""
    child = pexpect.spawn(sys.executable, ["-c", code], encoding="utf-8", dimensions=(40, 240))
    while True:
        try:
            text = child.read_nonblocking(1 << 16, timeout=HUNG)
        except pexpect.EOF:
            return
        yield time.perf_counter(), text


def in_notebook(code: str) -> Shown:
    """What code shows in a cell of a notebook."""
    manager, client = start_new_kernel()
    try:
        client.execute(code)
        while True:
            message = client.get_iopub_msg(timeout=HUNG)
            content = message["content"]
            if content.get("execution_state") == "idle":
                return
            shown = content.get("text") or content.get("data", {}).get("text/plain", "")
            yield time.perf_counter(), shown or "\n".join(content.get("traceback", []))
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def in_log(code: str) -> Shown:
    """What code writes into a pipe."""
    command = [sys.executable, "-c", code]
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, **both) as child:
        assert child.stdout is not None
        for line in child.stdout:
            yield time.perf_counter(), line


WHERE: dict[str, Callable[[str], Shown]] = {
    "terminal": on_terminal,
    "notebook": in_notebook,
    "log": in_log,
}


def silences(shown: Shown) -> list[float]:
    """Seconds between the signs of a call, its begin and its end among them."""
    times: list[float] = []
    last = text = ""
    for second, new in shown:
        text = (text + new)[-4096:]
        if not times and BEGIN in text:
            times.append(second)
        signs = SIGN.findall(text)
        if times and signs and signs[-1] != last:
            last = signs[-1]
            times.append(second)
        if times and END in text:
            times.append(second)
            return [later - earlier for earlier, later in itertools.pairwise(times)]
    raise RuntimeError(f"the call did not end: {text}")


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("call", choices=("plan", "fit"))
    parser.add_argument("target")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--budget", default="24GiB", help="of `fit`")
    args = parser.parse_args()
    path = HERE / "silence.json"
    rows = kept_rows(path)
    for name, where in itertools.product(args.models, WHERE):
        model, _, scale = name.partition(":")
        given = (model, scale or "bench", args.target, args.call, args.budget)
        found = silences(WHERE[where](CODE.format(given)))
        row: dict[str, Any] = {
            "call": args.call,
            "model": name,
            "target": args.target,
            "where": where,
            "seconds": round(sum(found), 1),
            "longest_silence": round(max(found), 2),
            "signs": len(found) - 1,
        }
        print(row, file=sys.stderr, flush=True)
        keys = ("call", "model", "target", "where")
        rows = [*(x for x in rows if any(x[key] != row[key] for key in keys)), row]
        keep(path, f"silence.py {' '.join(sys.argv[1:])}", rows, jax=jax.__version__)


if __name__ == "__main__":
    main()
