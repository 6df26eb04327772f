"""What do XLA:CPU's fusions of YNNPACK cost and bring: bytes and seconds, with them and without?

    python docs/measurements/row_fusions.py mlp resnet50:4 gpt2:1    # adds to row_fusions-cpu.json

Sums over rows become such fusions; an operand that is broadcast, which XLA would compute where it
is read, becomes an array before one. The programs are the value and gradient of the zoo's models at
the bench's scale (of a batch, where one is named), run in turns on this machine.
"""

import sys
from pathlib import Path
from typing import Any

import jax
from keeping import keep, kept_rows

from monet_jax import zoo
from monet_jax.seconds.clock import in_turns, ratio

#: What turns them off.
WITHOUT = {"xla_cpu_experimental_ynn_fusion_type": ""}
TURNS = 9


def row(named: str) -> dict[str, Any]:
    """The bytes of one model's temporaries, and the ratio of its seconds."""
    model, _, batch = named.partition(":")
    problem = zoo.build(model, scale="bench", batch=int(batch) if batch else None)
    args = problem.make_args(0)
    lowered = jax.jit(jax.value_and_grad(problem.loss, has_aux=True)).lower(*args)
    programs = [lowered.compile(), lowered.compile(compiler_options=WITHOUT)]
    runs = [lambda program=program: program(*args) for program in programs]
    timings = in_turns(runs, TURNS)
    off = ratio(timings[1], timings[0])
    temps = [program.memory_analysis().temp_size_in_bytes for program in programs]
    return {
        "model": named,
        "temp_bytes": temps[0],
        "without": round(temps[1] / temps[0], 3),
        "seconds": round(timings[0].seconds, 3),
        "ratio": [round(x, 3) for x in (off.median, off.low, off.high)],
    }


def main() -> None:
    """Runs the command line."""
    path = Path(__file__).parent / "row_fusions-cpu.json"
    rows = kept_rows(path)
    for named in sys.argv[1:]:
        found = row(named)
        print(found, flush=True)
        rows = [*(x for x in rows if x["model"] != named), found]
        keep(path, f"row_fusions.py {' '.join(sys.argv[1:])}", rows, jax=jax.__version__)


if __name__ == "__main__":
    main()
