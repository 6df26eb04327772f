"""A demo on real data: the planned step trains as well as the plain one, in less memory.

A residual network learns scikit-learn's handwritten digits twice from the same seed, with plain
JAX and with `remat` around the loss; everything else is the same. Needs the extra `examples`.
"""

import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from sklearn.datasets import load_digits

from .. import _api
from .._plan import Plan
from ..compiler import compile
from ..compiler.budget import format_bytes
from ..report.tables import plain_table, render

#: Digits held back to measure the accuracy: the last fifth.
HELD_BACK = 360

Data = tuple[jax.Array, jax.Array]


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the demo trains, and for how long.

    Attributes:
      budget: as in `remat`.
      epochs: passes over the training digits.
      seeds: plain runs; with more than one, the spread of their accuracies is reported.
      batch: digits a step.
      depth: residual blocks, before the pooling and after it.
      width: channels.
      timed_steps: steps of each program that are timed, in turns.
    """

    budget: int | float | str = 0.45
    epochs: int = 10
    seeds: int = 1
    batch: int = 128
    depth: int = 3
    width: int = 32
    timed_steps: int = 10


@dataclasses.dataclass(frozen=True)
class Run:
    """One training.

    Attributes:
      accuracy: share of the held-back digits that it reads right.
      losses: the loss at every step.
    """

    accuracy: float
    losses: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The results of the demo.

    Attributes:
      plan: of the planned loss.
      plain_bytes, planned_bytes: of the compiled value-and-gradient, on this device.
      plain: a plain run for each seed.
      planned: the planned run, with the first seed.
      gradient_difference: largest difference of the first step's gradients, relative to the
        largest gradient.
      plain_seconds, planned_seconds: median times of a training step.
    """

    plan: Plan
    plain_bytes: int
    planned_bytes: int
    plain: tuple[Run, ...]
    planned: Run
    gradient_difference: float
    plain_seconds: float
    planned_seconds: float

    @property
    def keeps_budget(self) -> bool:
        """Whether the compiled planned program fits."""
        return self.planned_bytes <= self.plan.budget_bytes

    @property
    def deviations(self) -> float | None:
        """The planned accuracy's distance from the plain mean, in standard deviations."""
        accuracies = [run.accuracy for run in self.plain]
        if len(accuracies) < 2:
            return None
        distance = abs(self.planned.accuracy - statistics.mean(accuracies))
        return distance / statistics.stdev(accuracies) if distance else 0.0


class Block(nn.Module):
    """[batch, h, w, width] to the same: two 3x3 convolutions, pre-norm, residual."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        width = x.shape[-1]
        y = nn.gelu(nn.LayerNorm(name="norm0")(x))
        y = nn.Conv(width, (3, 3), name="conv0")(y)
        y = nn.gelu(nn.LayerNorm(name="norm1")(y))
        return x + nn.Conv(width, (3, 3), name="conv1")(y)


class DigitReader(nn.Module):
    """[batch, 8, 8] images to [batch, 10] logits: blocks at full and then at half resolution."""

    depth: int
    width: int

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        x = nn.Conv(self.width, (3, 3), name="stem")(images[..., None])
        for i in range(self.depth):
            x = Block(name=f"wide{i}")(x)
        x = nn.max_pool(x, (2, 2), (2, 2))
        for i in range(self.depth):
            x = Block(name=f"deep{i}")(x)
        x = jnp.mean(nn.LayerNorm(name="norm")(x), axis=(1, 2))
        return nn.Dense(10, name="head")(x)


def run_demo(settings: Settings, console: Console) -> Comparison:
    """Trains with and without a plan, and compares.

    Args:
      settings: what to train.
      console: shows progress, where it is a terminal.

    Raises:
      InfeasibleBudget: no plan fits the budget.
    """
    model = DigitReader(settings.depth, settings.width)
    train, held_back = _digits()
    loss = functools.partial(_loss, model)
    params, batch = _first_step(model, train, settings)
    plan = _api.plan(loss, params, batch, budget=settings.budget)
    planned_loss = plan.apply(loss)
    with _progress(console) as progress:
        fit = functools.partial(_fit, model, train, held_back, settings, progress)
        plain = tuple(fit(f"plain, seed {s}", loss, s) for s in range(settings.seeds))
        planned = fit("planned, seed 0", planned_loss, 0)
    timed = _step_seconds((loss, planned_loss), params, batch, settings.timed_steps)
    plain_bytes, planned_bytes = (_gradient_bytes(f, params, batch) for f in (loss, planned_loss))
    difference = _gradient_difference(loss, planned_loss, params, batch)
    return Comparison(
        plan, plain_bytes, planned_bytes, plain, planned, difference, timed[0], timed[1]
    )


def describe(comparison: Comparison) -> str:
    """The comparison as a table, followed by the report of the plan."""
    c = comparison
    plain = [run.accuracy for run in c.plain]
    accuracy = f"{statistics.mean(plain):.2%}"
    if len(plain) > 1:
        accuracy += f" ± {statistics.stdev(plain):.2%} ({len(plain)} seeds)"
    table = plain_table("", "Plain", "Planned", right=("Plain", "Planned"))
    table.add_row("Compiled bytes", format_bytes(c.plain_bytes), _planned_bytes(c))
    table.add_row("Test accuracy", accuracy, f"{c.planned.accuracy:.2%}{_deviations(c)}")
    table.add_row("Last loss", f"{c.plain[0].losses[-1]:.4f}", f"{c.planned.losses[-1]:.4f}")
    table.add_row("Step time", _milliseconds(c.plain_seconds), _milliseconds(c.planned_seconds))
    table.add_row("First-step gradient difference", "", f"{c.gradient_difference:.1e}")
    return f"{render(table)}\n\n{c.plan}"


def _planned_bytes(c: Comparison) -> str:
    kept = "within" if c.keeps_budget else "OVER"
    return f"{format_bytes(c.planned_bytes)}, {kept} {format_bytes(c.plan.budget_bytes)}"


def _deviations(c: Comparison) -> str:
    return "" if c.deviations is None else f" ({c.deviations:.1f} deviations off)"


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms"


def _digits() -> tuple[Data, Data]:
    """The 8x8 digits in [0, 1] and their labels, in a fixed random order: to learn, held back."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    x = jnp.asarray(images[order].reshape(-1, 8, 8) / 16, jnp.float32)
    y = jnp.asarray(labels[order], jnp.int32)
    return (x[:-HELD_BACK], y[:-HELD_BACK]), (x[-HELD_BACK:], y[-HELD_BACK:])


def _loss(model: nn.Module, params: Any, batch: Data) -> jax.Array:
    logits: Any = model.apply({"params": params}, batch[0])
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch[1]).mean()


def _first_step(model: nn.Module, train: Data, settings: Settings) -> tuple[Any, Data]:
    """Parameters and batch of the first step of the first seed."""
    batches = _batches(train, settings, np.random.default_rng(0))
    return _init(model, 0), next(batches)


def _init(model: nn.Module, seed: int) -> Any:
    return model.init(jax.random.key(seed), jnp.zeros((1, 8, 8)))["params"]


def _batches(data: Data, settings: Settings, random: np.random.Generator) -> Iterator[Data]:
    """All batches of a training, in the order of the seed; an incomplete batch is left out."""
    x, y = data
    for _ in range(settings.epochs):
        order = random.permutation(len(y))
        for start in range(0, len(y) - settings.batch + 1, settings.batch):
            chosen = order[start : start + settings.batch]
            yield x[chosen], y[chosen]


def _fit(
    model: nn.Module,
    train: Data,
    held_back: Data,
    settings: Settings,
    progress: Progress,
    title: str,
    loss: Callable[..., jax.Array],
    seed: int,
) -> Run:
    """One training with Adam."""
    steps = settings.epochs * (len(train[1]) // settings.batch)
    params, optimizer = _init(model, seed), _optimizer(steps)
    state, step = optimizer.init(params), _training_step(loss, optimizer)
    task = progress.add_task(title, total=steps)
    losses = []
    for batch in _batches(train, settings, np.random.default_rng(seed)):
        params, state, value = step(params, state, batch)
        losses.append(float(value))
        progress.update(task, advance=1)
    logits: Any = model.apply({"params": params}, held_back[0])
    accuracy = float(jnp.mean(jnp.argmax(logits, axis=-1) == held_back[1]))
    return Run(accuracy, tuple(losses))


def _optimizer(steps: int) -> optax.GradientTransformation:
    return optax.adam(optax.cosine_decay_schedule(3e-3, steps))


def _training_step(loss: Callable[..., jax.Array], optimizer: optax.GradientTransformation):
    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, batch):
        value, gradient = jax.value_and_grad(loss)(params, batch)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value

    return step


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal)


def _gradient_bytes(loss: Callable[..., jax.Array], params: Any, batch: Data) -> int:
    return compile.compiled_bytes(jax.value_and_grad(loss), params, batch).total_bytes


def _gradient_difference(plain: Any, planned: Any, params: Any, batch: Data) -> float:
    """The largest difference of two gradients, relative to the largest component."""
    a, b = (jax.tree.leaves(jax.jit(jax.grad(f))(params, batch)) for f in (plain, planned))
    largest = max(float(jnp.max(jnp.abs(x))) for x in a)
    return max(float(jnp.max(jnp.abs(x - y))) for x, y in zip(a, b, strict=True)) / largest


def _step_seconds(losses: Sequence[Any], params: Any, batch: Data, steps: int) -> list[float]:
    """Median seconds of a value and gradient of each loss, run in turns."""
    programs = [jax.jit(jax.value_and_grad(loss)) for loss in losses]
    taken: list[list[float]] = [[] for _ in programs]
    for program in programs:
        jax.block_until_ready(program(params, batch))
    for _ in range(steps):
        for program, seconds in zip(programs, taken, strict=True):
            start = time.perf_counter()
            jax.block_until_ready(program(params, batch))
            seconds.append(time.perf_counter() - start)
    return [statistics.median(seconds) for seconds in taken]
