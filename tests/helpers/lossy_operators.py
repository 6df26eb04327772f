"""Cases whose plans save lossy codes, codecs that stand in for lossy ones, and their statistics."""

import dataclasses
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from emission import Flat, emitted, flat, graph_and_stages
from programs import Case

from monet_jax import operators
from monet_jax.compiler.backend import Backend
from monet_jax.operators.codecs import Codec, Kind
from planners.graph import Graph
from planners.plan import Plan
from planners.regions.simple_plans import certified, saving_codes


@dataclasses.dataclass(frozen=True)
class Draws:
    """What many draws of an estimate say of it, against the exact value.

    Attributes:
        error_of_mean: of each coordinate.
        mean_square: of the error, of each coordinate.
        count: how many were drawn.
    """

    error_of_mean: np.ndarray
    mean_square: np.ndarray
    count: int

    @property
    def bias(self) -> float:
        """The norm of the mean's error over what chance gives: near 1 if nothing is biased."""
        chance = math.sqrt(self.mean_square.sum() / self.count)
        return float(np.linalg.norm(self.error_of_mean)) / chance

    def largest_z(self, deviation: np.ndarray) -> float:
        """Over coordinates whose deviation is not next to nothing: on a level, all is rounding."""
        counted = deviation > 0.05 * deviation.max()
        z = np.abs(self.error_of_mean[counted]) / deviation[counted] * math.sqrt(self.count)
        return float(z.max())


def draws(estimate, exact, count, seed=1) -> Draws:
    """Draws of `estimate`, a function of a key."""

    @jax.jit
    def errors(keys):
        error = jax.vmap(estimate)(keys).astype(jnp.float32) - exact.astype(jnp.float32)
        return error.mean(0), jnp.square(error).mean(0)

    error, square = errors(jax.random.split(jax.random.key(seed), count))
    return Draws(np.asarray(error, np.float64), np.asarray(square, np.float64), count)


@dataclasses.dataclass(frozen=True)
class Whole:
    """Keeps an array as it is, in another shape."""

    kind: ClassVar[Kind] = Kind.BIASED
    name = "whole"

    def applies(self, aval: Any) -> bool:
        return jnp.issubdtype(aval.dtype, jnp.floating)

    def encode(self, x, noise=None):
        del noise
        return (x.reshape(-1),)

    def decode(self, code, aval):
        return code[0].reshape(aval.shape)

    def mean_square(self, x):
        return jnp.zeros(x.shape, jnp.float32)


Encoder = Codec | operators.OfOperands | operators.OfLocalDerivatives


def encoding(case: Case, codec: Encoder) -> Flat:
    """A case of which lossy codes may be kept."""
    exact = operators.rewriter(operators.selected("exact"), operators.Context(Backend()))
    return flat(case, dataclasses.replace(exact, codecs=(codec,)))


def with_every_code(case: Case, codec: Encoder):
    """A case that saves every code there is."""
    made = encoding(case, codec)
    graph, staged = graph_and_stages(made)
    return made, emitted(made, graph, staged, saving_codes(graph))


def lossy_bytes(found) -> int:
    """Bytes of the lossy codes that a program saves."""
    total = 0
    for name in (name for region in found.regions for name in region.saved):
        number = found.staged.values[name]
        codec = operators.representation_name(found.staged.writer[number], number)
        if codec not in ("exact", "mask") and not codec.startswith("uint"):
            total += found.graph.values[found.graph.index[name]].nbytes
    return total


#: Axes of images, of kernels and of results.
LAYOUTS = [("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW")]


def convolve(x, w, layout=LAYOUTS[0], strides=(1, 1), groups=1):
    return jax.lax.conv_general_dilated(
        x, w, strides, "SAME", dimension_numbers=layout, feature_group_count=groups
    )


def plan_without_recomputation(graph: Graph, codes: bool) -> Plan:
    """The plan that saves what the backward pass reads, as codes where there are any or not."""
    regions = []
    for region in saving_codes(graph):
        stage = graph.stages[region.first]
        saved = {graph.index[name] for name in region.saved} if codes else set()
        read = {
            i
            for op in stage.backward
            for i in op.in_implementation(op.implementation_by(saved)).inputs
        } | saved
        written = [graph.values[i] for op in stage.forward for i in op.outputs if i in read]
        names = tuple(x.name for x in written if x.savable)
        regions.append(region if region.alone else dataclasses.replace(region, saved=names))
    return certified(graph, tuple(regions), planner="test", bound_seconds=0.0)
