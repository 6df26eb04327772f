"""A neural ODE, differentiated through a solver of fixed steps (Chen et al., 2018, NeurIPS)

Their ODE-Net for MNIST: three convolutions, then features that follow a differential equation from
time 0 to 1, whose right-hand side is two convolutions. The solver, the classical Runge-Kutta method
in equal steps, is a scan, whose steps are differentiated.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from .problem import BlockRemat, Problem, Scale, labelled, make_problem, repeated

# Batch, and what differs from the defaults of ODENet.
_SCALES: dict[str, tuple[int, dict[str, Any]]] = {
    "full": (128, {}),
    "bench": (64, {}),
    "tiny": (2, {"width": 8, "groups": 4, "steps": 3}),
}


def _norm(groups: int, dtype: Any, name: str) -> nn.GroupNorm:
    return nn.GroupNorm(groups, epsilon=1e-5, dtype=dtype, name=name)


class Slope(nn.Module):
    """dx/dt of [batch, height, width, channels] at a time."""

    groups: int
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, time: jax.Array) -> jax.Array:
        for i in range(2):
            y = jax.nn.relu(_norm(self.groups, self.dtype, f"norm{i}")(x))
            when = jnp.broadcast_to(time.astype(y.dtype), (*y.shape[:-1], 1))
            x = nn.Conv(x.shape[-1], (3, 3), dtype=self.dtype, name=f"conv{i}")(
                jnp.concatenate([when, y], -1)
            )
        return _norm(self.groups, self.dtype, "norm2")(x)


class Step(nn.Module):
    """x at a time to x one step of the classical Runge-Kutta method later."""

    size: float
    groups: int
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, time: jax.Array) -> tuple[jax.Array, None]:
        slope, half = Slope(self.groups, self.dtype, name="slope"), self.size / 2
        k1 = slope(x, time)
        k2 = slope(x + half * k1, time + half)
        k3 = slope(x + half * k2, time + half)
        k4 = slope(x + self.size * k3, time + self.size)
        return x + self.size / 6 * (k1 + 2 * k2 + 2 * k3 + k4), None


class ODENet(nn.Module):
    """[batch, 28, 28, 1] images to [batch, classes] logits; the defaults are those for MNIST."""

    width: int = 64
    groups: int = 32
    steps: int = 32
    classes: int = 10
    dtype: Any = jnp.float32
    block_remat: BlockRemat = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.Conv(self.width, (3, 3), padding=0, dtype=self.dtype, name="conv0")(x)
        for i in (1, 2):
            x = jax.nn.relu(_norm(self.groups, self.dtype, f"norm{i}")(x))
            x = nn.Conv(self.width, (4, 4), 2, padding=1, dtype=self.dtype, name=f"conv{i}")(x)
        solve = repeated(Step, self.block_remat)
        times = jnp.arange(self.steps, dtype=jnp.float32) / self.steps
        x, _ = solve(1 / self.steps, self.groups, self.dtype, name="solver")(x, times)
        x = jax.nn.relu(_norm(self.groups, self.dtype, "norm3")(x))
        return nn.Dense(self.classes, dtype=self.dtype, name="head")(x.mean((1, 2)))


def problem(scale: Scale, batch: int | None, dtype: Any, block_remat: BlockRemat) -> Problem:
    """Classification of [batch, 28, 28, 1] images."""
    default_batch, changes = _SCALES[scale]
    model = ODENet(dtype=dtype, block_remat=block_remat, **changes)
    batch = batch or default_batch
    return make_problem("neural_ode", model, labelled((batch, 28, 28, 1), (batch,), model.classes))
