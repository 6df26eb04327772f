"""The bench computes in the dtype of its target, and its claims follow from the rows."""

import dataclasses
import json

import jax.numpy as jnp
import pytest
from paths import ROOT

from monet_jax.analyzer.step_costs import StepCosts
from monet_jax.compiler.compile import Estimate, compile_bytes
from monet_jax.compiler.targets import resolve_target


@pytest.mark.slow
def test_bench_computes_as_people_do_on_a_target():
    models = pytest.importorskip("monet_jax.bench.models")
    from monet_jax.bench.models.cells import Cell
    from monet_jax.compiler.targets import TARGETS

    words = ["mlp"], ["cpu"], "tiny", "temps", False
    request = models.make_request(*words)
    names = "cpu", "gpu:h100", "tpu:v5e"
    asked = models.make_request(*words, "bfloat16")
    assert [asked.dtype_on(TARGETS[name]) for name in names] == ["bfloat16"] * 3
    found = [request.dtype_on(TARGETS[name]) for name in names]
    assert found == ["float32", "bfloat16", "bfloat16"]
    cell = Cell("mlp", "tiny", TARGETS["cpu"], "bfloat16")
    programs = cell.programs(frozenset())
    plain = next(programs)
    assert plain.row.cell == ("mlp", "cpu", "bfloat16") and plain.row.flops > 0
    for program in (plain, *programs):
        equations = program.traced.program.equations
        products = [e.eqn for e in equations if e.primitive == "dot_general"]
        assert all(v.aval.dtype == "bfloat16" for e in products for v in e.invars)


def test_results_from_before_dtypes_are_of_float32():
    models = pytest.importorskip("monet_jax.bench.models")
    from monet_jax.bench.models.rows import from_json

    stored = json.loads((ROOT / "docs" / "measurements" / "mlp-h100.json").read_text())
    rows = from_json(json.dumps(stored)).rows
    assert {row.dtype for row in rows} == {"float32"}
    found = [(claim.figure, claim.holds) for claim in models.check_claims(rows)]
    assert found == [(claim["figure"], claim["holds"]) for claim in stored["claims"]]


def bench_rows():
    from monet_jax.bench.models import Row

    def make(program, kind, total, flops, **fields):
        return Row(
            model="m", target="cpu", program=program, kind=kind, total_bytes=total,
            temp_bytes=total - 10, flops=flops, seconds=float(flops), flops_ratio=flops / 100,
            seconds_ratio=flops / 100, **fields,
        )  # fmt: skip

    ours = {"kind": "ours", "budget": "baseline", "baseline": "loss: dots", "overhead": 0.1}
    return [
        make("plain", "plain", 110, 100),
        make("loss: dots", "baseline", 60, 130),
        make("ours @ loss: dots", total=58, flops=120, budget_bytes=60, used=58 / 60,
             prediction_error=0.02, **ours),
    ]  # fmt: skip


def verdicts(rows):
    from monet_jax.bench.models import check_claims

    return [claim.title for claim in check_claims(rows) if claim.holds is False]


def test_claims_hold_where_they_should():
    pytest.importorskip("flax")
    assert verdicts(bench_rows()) == []


@pytest.mark.parametrize(
    ("change", "claim"),
    [
        ({"total_bytes": 61}, "2. budgets are kept"),
        ({"total_bytes": 61}, "3. the smallest plan"),
        ({"flops": 140}, "3. at a baseline's bytes, at most its FLOPs"),
        ({"seconds": 140.0}, "3. at a baseline's bytes, at most its roofline"),
        ({"status": "error"}, "no program failed"),
        ({"status": "infeasible"}, "3. at a baseline's bytes"),
        ({"used": 0.8}, "5. the median plan"),
        ({"used": 0.7}, "5. below 75%"),
        ({"prediction_error": 0.2}, "6. median error"),
    ],
)
def test_claims_fail_where_a_row_speaks_against_them(change, claim):
    pytest.importorskip("flax")
    plain, baseline, ours = bench_rows()
    failed = verdicts([plain, baseline, dataclasses.replace(ours, **change)])
    assert any(title.startswith(claim) for title in failed), failed


def rows_beside_xla(estimated_share=1.0, **changed):
    """Two caps, of which XLA's own rematerialization keeps one."""
    plain, baseline, ours = bench_rows()
    figures = {"estimated_seconds": 1.0, "estimated_share": estimated_share}
    ours = dataclasses.replace(ours, **figures)
    small = dataclasses.replace(ours, program="ours @ 20%", budget="temps", budget_bytes=58)
    kept = dataclasses.replace(ours, program="XLA @ loss: dots", kind="xla", budget=None)
    broken = dataclasses.replace(kept, program="XLA @ 20%", budget_bytes=58, total_bytes=59)
    return [plain, baseline, dataclasses.replace(ours, **changed), small, kept, broken]


def test_xla_s_own_rematerialization_is_counted_where_it_keeps_its_cap():
    models = pytest.importorskip("monet_jax.bench.models")
    slower, broken = {"estimated_seconds": 1.02}, {"total_bytes": 61}
    figures = [claim.figure for claim in models.check_claims(rows_beside_xla())][-3:]
    assert figures == ["1 of 2", "1 of 1 cells", "1 of 1 cells"]
    assert verdicts(rows_beside_xla()) == []
    assert [title[:9] for title in verdicts(rows_beside_xla(**slower))] == ["7. ... in"]
    assert "7. plans keep" in {title[:13] for title in verdicts(rows_beside_xla(**broken))}
    assert verdicts(rows_beside_xla(estimated_share=0.7, **slower)) == []
    table = models.describe(models.Results(tuple(rows_beside_xla()), {}))
    assert table.count("not kept") == 1


def test_estimates_of_a_program_are_summed_and_say_what_they_miss():
    fields = pytest.importorskip("monet_jax.bench.models.fields")
    figures = compile_bytes(jnp.sin, (jnp.ones(4),), target=resolve_target("cpu"))
    work = StepCosts(flops=100, seconds=1.0)
    assert fields.estimate_fields(figures, work) == fields.estimate_fields(None, work) == {}
    estimates = Estimate(5e-6, 3, 20, (64,), (64,)), Estimate(1e-5, 1, 0, (64,), (64,))
    known = dataclasses.replace(figures, estimates=estimates)
    expected = {"estimated_seconds": 2.5e-5, "estimated_share": 0.6}
    assert fields.estimate_fields(known, work) == pytest.approx(expected)
