"""A plan as `jax.checkpoint` policies of names, which print as code to paste."""

import dataclasses
from collections.abc import Iterable
from typing import Any

import jax

from ..plans.record import ValueRow
from .values import shorten_source

#: What no policy does, whatever the plan.
ALWAYS_LOST = (
    "barriers: XLA may put off weight gradients, and keep what they read",
    "the verdict: nothing here is compiled; `monet_jax.compiled_bytes` says what it takes",
)


@dataclasses.dataclass(frozen=True)
class SavedName:
    """A value that a policy saves.

    Attributes:
        name: by which the policy knows it.
        is_given: whether the model gives this `checkpoint_name` to it.
        value: its row, of one of the iterations or stages.
    """

    name: str
    is_given: bool
    value: ValueRow

    @property
    def to_write(self) -> str:
        """Where the model has to give the name."""
        row = self.value
        shape = ",".join(map(str, row.shape))
        where = shorten_source(row.source) or row.path or "a line that JAX does not know"
        return (
            f"{where}: name the result of `{row.primitive}`, "
            f'{row.dtype}[{shape}]: jax.ad_checkpoint.checkpoint_name(result, "{self.name}")'
        )


@dataclasses.dataclass(frozen=True)
class Policy:
    """The `jax.checkpoint` of one scanned body, or of stages that are alike.

    Attributes:
        where: what it is put around.
        is_of_scan: whether it is put around the body of a scan.
        saved: the values that it saves.
    """

    where: str
    is_of_scan: bool
    saved: tuple[SavedName, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names that it saves."""
        return tuple(x.name for x in self.saved)

    @property
    def policy(self) -> Any:
        """The argument `policy` of `jax.checkpoint`."""
        return jax.checkpoint_policies.save_only_these_names(*self.names)

    @property
    def code(self) -> str:
        """Python code to paste: the policy, its use, and where names are missing."""
        names = ", ".join(f'"{name}"' for name in self.names)
        policy = f"jax.checkpoint_policies.save_only_these_names({names})"
        used = "jax.checkpoint(function, policy=policy)"
        if self.is_of_scan:
            used = "jax.lax.scan(jax.checkpoint(body, policy=policy, prevent_cse=False), ...)"
        missing = (f"# {x.to_write}" for x in self.saved if not x.is_given)
        return "\n".join((f"# {self.where}", f"policy = {policy}", used, *missing))


@dataclasses.dataclass(frozen=True)
class Policies:
    """A plan as `jax.checkpoint` policies; it prints as code to paste.

    Attributes:
        policies: in the order of the program. What has none is left without `jax.checkpoint`.
        not_expressed: what the plan does and no policy can say, a sentence each.
        lost: what policies lose in any case.
    """

    policies: tuple[Policy, ...]
    not_expressed: tuple[str, ...]
    lost: tuple[str, ...] = ALWAYS_LOST

    def __str__(self) -> str:
        parts = [policy.code for policy in self.policies]
        parts = parts or [
            "# Nothing is recomputed by a `jax.checkpoint` that a policy can express."
        ]
        remarks = [f"# Not expressed: {said}" for said in self.not_expressed]
        remarks += [f"# Lost: {said}" for said in self.lost]
        return "\n\n".join([*parts, "\n".join(remarks)])


def joined(several: Iterable[Policies]) -> Policies:
    """The policies of several plans, those of the parts of a step, as one."""
    some = list(several)
    return Policies(
        tuple(policy for one in some for policy in one.policies),
        tuple(dict.fromkeys(said for one in some for said in one.not_expressed)),
        tuple(dict.fromkeys(said for one in some for said in one.lost)),
    )
