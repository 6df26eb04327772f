"""Is what a derivative reads from codes what it would read otherwise, and nothing else encoded?

A codec that keeps everything stands in for the lossy ones: then gradients are those of JAX, if what
follows from a decoded value is computed right. With a coarse codec they are right in the mean.
"""

import dataclasses
import random
from typing import Any, ClassVar

import jax.numpy as jnp
import pytest
from emission import (
    ROOFLINE,
    Flat,
    analyzed,
    assert_same,
    emitted,
    flat,
    in_double,
    pulled,
    saving_codes,
)
from programs import NAMED, Case

from monet_jax import _codes, operators
from monet_jax._analyze import analyze
from monet_jax._backend import Backend
from monet_jax.operators.codecs import Codec, Kind


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


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Small values may be kept as codes."""
    monkeypatch.setattr(_codes, "_LEAST", 2)
    monkeypatch.setattr(_codes, "_SHARE", 0.0)


def encoding(case: Case, codec: Codec) -> Flat:
    """A case of which lossy codes may be kept."""
    exact = operators.rewriter(operators.selected("exact"), operators.Context(Backend()))
    return flat(case, dataclasses.replace(exact, codecs=(codec,)))


def with_every_code(case: Case, codec: Codec):
    """A case that saves every code there is."""
    made = encoding(case, codec)
    graph, origins = analyze(made.program, made.derivative, ROOFLINE, Backend())
    return made, emitted(made, graph, origins, saving_codes(graph))


def lossy_bytes(found) -> int:
    """Bytes of the codes that a program saves, masks aside."""
    saved = [name for region in found.regions for name in region.saved]
    written = {i: e for s in found.origins.stages for e in s.equations for i in e.outputs}
    names = {
        name: operators.form_name(written[found.origins.values[name]], found.origins.values[name])
        for name in saved
    }
    return sum(
        found.graph.values[found.graph.index[n]].nbytes
        for n in saved
        if names[n] not in ("exact", "mask")
    )


@pytest.mark.parametrize("name", NAMED)
def test_gradients_are_those_of_jax_where_codes_keep_everything(name):
    case = NAMED[name]()
    made = encoding(case, Whole())
    plain = pulled(made, made.function)
    graph, origins = analyzed(made, random.Random(name), 3)
    found = emitted(made, graph, origins, saving_codes(graph))
    results = plain(*made.leaves), in_double(plain, made.leaves)
    assert_same(pulled(made, found.function)(*made.leaves), *results)


def test_the_programs_above_have_codes():
    sizes = {}
    for name in NAMED:
        _, found = with_every_code(NAMED[name](), Whole())
        sizes[name] = lossy_bytes(found)
    assert all(sizes[name] for name in ("conv_norm_relu", "mlp", "attention_typed_key", "u_net"))
    print(sizes)
