"""What a user may say of the host's memory, and what plans for a target may use of it."""

import pytest
from networks import net, specs

import monet_jax
from monet_jax.compiler import host
from monet_jax.compiler.host import KINDS, HostMemory, HostOptions
from monet_jax.compiler.targets import TARGETS
from monet_jax.planning.options import PlanOptions

GIB = 2**30


@pytest.fixture(autouse=True)
def every_kind_can_be_moved(monkeypatch):
    monkeypatch.setattr(host, "MOVABLE", frozenset(KINDS))
    monkeypatch.delenv(host.POOL_VARIABLE, raising=False)


def on(target, *options):
    return HostOptions.of(*options).on(TARGETS[target])


def test_nothing_lives_on_the_host_unless_it_is_asked_for():
    assert on("gpu:h100", "never") is None and on("cpu", "never") is None
    assert PlanOptions().host_options == HostOptions()


@pytest.mark.parametrize(
    ("words", "kinds"),
    [
        ("activations", ("activations",)),
        (["states", "activations"], ("activations", "states")),
        ("auto", KINDS),
    ],
)
def test_kinds(words, kinds):
    assert on("gpu:h100", words) == HostMemory(kinds, 64 * GIB, 50e9, 50e9)


def test_what_the_platform_pins_bounds_the_budget(monkeypatch):
    assert on("gpu:h100", "auto", "8GiB").budget_bytes == 8 * GIB
    monkeypatch.setenv(host.POOL_VARIABLE, "16")
    assert on("gpu:h100", "auto").budget_bytes == 16 * GIB
    with pytest.raises(ValueError, match=f"pins 17,179,869,184.*{host.POOL_VARIABLE}"):
        on("gpu:h100", "auto", "17GiB")
    monkeypatch.setenv(host.POOL_VARIABLE, "many")
    with pytest.raises(ValueError, match=f"{host.POOL_VARIABLE}.*'many'"):
        on("gpu:h100", "auto")


def test_directions_have_their_own_bandwidths():
    found = on("gpu:a100", "auto", None, (170e9, 411e9))
    assert (found.out_bytes_per_second, found.back_bytes_per_second) == (170e9, 411e9)
    assert on("tpu:v5e", "states", "64GiB", 15e9).out_bytes_per_second == 15e9


@pytest.mark.parametrize(
    ("target", "options", "says"),
    [
        ("cpu", ("activations",), "ignores host memory kinds"),
        ("gpu:a100", ("activations",), "gpu:a100.*`host_bandwidth`"),
        ("tpu:v5e", ("states", "64GiB"), "tpu:v5e.*`host_bandwidth`"),
        ("tpu:v5e", ("states", None, 15e9), "tpu:v5e.*`host_budget"),
    ],
)
def test_targets_of_which_too_little_is_known(target, options, says):
    names = ("host", "host_budget", "host_bandwidth")
    given = dict(zip(names, options, strict=False))
    with pytest.raises(ValueError, match=says):
        monet_jax.remat(abs, budget=0.5, target=target, **given)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        (("activation",), ValueError, "\"activations\".*'activation'"),
        ((("states", "weights"),), ValueError, "'weights'"),
        ((("states", "auto"),), ValueError, "'auto'"),
        ((True,), TypeError, "`host`"),
        (("never", "8GiB"), ValueError, '"never"'),
        (("never", None, 55e9), ValueError, '"never"'),
        (("auto", 0.5), TypeError, "`host_budget`"),
        (("auto", "50%"), ValueError, "`host_budget`.*50%"),
        (("auto", 0), ValueError, "`host_budget`"),
        (("auto", None, 0), ValueError, "positive"),
        (("auto", None, float("inf")), ValueError, "finite"),
        (("auto", None, "fast"), TypeError, "`host_bandwidth`"),
        (("auto", None, (1e9, 2e9, 3e9)), TypeError, "pair"),
    ],
)
def test_options_that_make_no_sense(options, error, says):
    with pytest.raises(error, match=says):
        HostOptions.of(*options)


def test_what_nothing_moves_yet_is_refused_and_not_ignored(monkeypatch):
    monkeypatch.setattr(host, "MOVABLE", frozenset({"activations"}))
    assert on("gpu:h100", "auto").kinds == ("activations",)
    with pytest.raises(ValueError, match=r'"parameters".*What can: activations'):
        HostOptions.of("parameters")
    monkeypatch.setattr(host, "MOVABLE", frozenset())
    with pytest.raises(ValueError, match="nothing"):
        HostOptions.of("auto")


def test_plans_are_kept_by_what_they_may_use_of_the_host(monkeypatch):
    some = [{}, {"host": "activations"}, {"host": "activations", "host_budget": "8GiB"}]
    some += [{"host": "activations", "host_bandwidth": (55e9, 40e9)}, {"host": "states"}]
    traced = PlanOptions().traced(net, specs())

    def kept():
        return [PlanOptions(target="gpu:h100", **x).kept_by(traced) for x in some]

    assert len(set(map(repr, kept()))) == len(some)
    before = kept()
    monkeypatch.setenv(host.POOL_VARIABLE, "16")
    assert [x == y for x, y in zip(before, kept(), strict=True)] == [
        True,
        False,
        True,
        False,
        False,
    ]
