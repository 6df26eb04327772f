"""Ops of problems in the format of the schedule zoo."""


def instance_node(n, kind, kib, deps, milliseconds):
    return {
        "id": n,
        "kind": kind,
        "op": f"op{n}",
        "out_bytes": kib * 1024 + 100,
        "fixed_bytes": 2**20,
        "deps": [deps],
        "time_ms": [milliseconds],
    }
