"""By how much the model of compiled bytes misses a program's plans, and a program for that."""

import jax
import jax.numpy as jnp

import planners
from monet_jax.analyzer.pins import Pins
from monet_jax.bench.models.programs import trace_loss
from monet_jax.compiler.targets import resolve_target
from monet_jax.planning.judge import compiled_plans_of


def off(loss, args, name, whole=True):
    """By how much the model misses the compiled temporaries of saving all, or nothing."""
    target = resolve_target(name)
    plans = compiled_plans_of(trace_loss(loss, args, target), target, Pins())
    nothing = plans.calibration_plan
    decisions = planners.save_all(plans.judge.graph) if whole else nothing
    figures = plans.unplanned if whole else plans.of(nothing).figures
    assert figures is not None
    return plans.model.modelled(decisions.regions, plans.judge.graph) / figures.temp_bytes - 1


def attentions(depth, x):
    """A loss of that many attentions, and its arguments.

    Arguments:
        depth: how many.
        x: examples, tokens, heads and features, abstract.
    """

    def loss(weights, x):
        for w in weights:
            scores = jnp.einsum("bthd,bshd->bhts", x @ w, x)
            x = x + jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), x)
        return jnp.mean(x**2)

    features = x.shape[-1]
    return loss, ([jax.ShapeDtypeStruct((features, features), x.dtype)] * depth, x)
