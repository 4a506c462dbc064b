"""Several methods at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from attendrop.attention import Plan
from attendrop.errors import AttendropError
from attendrop.methods.base import Batch, ComputeLoss, Method, Pass, Session, Setup, overrides, run_pass
from attendrop.methods.compatibility import refuse_conflicts
from attendrop.methods.replay import Replay
from attendrop.sites import Site


@dataclass(frozen=True, init=False)
class Compose(Method):
    """Several methods at once.

    At each attention layer what one drops is dropped beside what another drops; penalties are added up; what acts on
    parameters, gradients or the batch acts there. Each method draws for itself, follows its own schedule of epochs, and
    logs under its own name. What two of them change is changed in an order that the methods declare
    (:attr:`Method.order`), so that ``a+b`` and ``b+a`` are the same. On the command line: ``--method ad-drop+r-drop
    --set ad-drop.p=0.3``.

    Example:
        >>> trainer = RegularizedTrainer(model=model, args=args, regularizer=Compose(ADDrop(p=0.3), RDrop(alpha=1.0)))

    Args:
        *methods: Two or more different ones.

    Raises:
        AttendropError: Fewer than two; one of them twice; or two that have no meaning together, with the reason.
    """

    summary: ClassVar[str] = "several methods at once"
    paper: ClassVar[str] = ""

    methods: tuple[Method, ...]

    def __init__(self, *methods: Method) -> None:
        flat = tuple(part for method in methods for part in method.parts)
        if len(flat) < 2:
            raise AttendropError(f"Compose takes two methods or more, not {len(flat)}.")
        object.__setattr__(self, "methods", flat)
        object.__setattr__(self, "name", "+".join(part.name for part in flat))
        refuse_conflicts(flat)

    @property
    def parts(self) -> tuple[Method, ...]:
        return self.methods

    @property
    def columns(self) -> Mapping[str, str]:
        return {name: kind for part in self.methods for name, kind in part.columns.items()}

    @property
    def uses_attention(self) -> bool:  # type: ignore[override]
        """Whether one of them does."""
        return any(part.uses_attention for part in self.methods)

    @property
    def skips_parameters(self) -> bool:  # type: ignore[override]
        """Whether one of them does."""
        return any(part.skips_parameters for part in self.methods)

    @property
    def needs_loss_scale(self) -> bool:  # type: ignore[override]
        """Whether one of them does."""
        return any(part.needs_loss_scale for part in self.methods)

    def active(self, epoch: int) -> bool:
        return any(part.active(epoch) for part in self.methods)

    def needs_epoch(self) -> bool:
        return any(part.needs_epoch() for part in self.methods)

    def chosen(self, sites: Sequence[Site]) -> Sequence[Site]:
        found = {site for part in self.methods if part.uses_attention for site in part.chosen(sites)}
        return [site for site in sites if site in found]

    def rewarded_on(self) -> str | None:
        return next((part.rewarded_on() for part in self.methods if part.rewarded_on() is not None), None)

    def reward_share(self) -> float:
        return max(part.reward_share() for part in self.methods)

    def start(self, setup: Setup) -> Session:
        return Ensemble(self, setup)

    def options(self) -> dict[str, Any]:
        """Of each method its options, by its name."""
        return {part.name: part.options() for part in self.methods}


class Ensemble(Session):
    """The sessions of several methods, as one."""

    def __init__(self, method: Compose, setup: Setup) -> None:
        super().__init__(method)
        setup = dataclasses.replace(setup, accompany=self._accompany)
        self.sessions = [part.start(setup) for part in method.parts]
        self.in_order = sorted(self.sessions, key=lambda session: (session.method.order, session.method.name))
        leading = [session for session in self.sessions if overrides(session, Session, "loss")]
        if len(leading) > 1:
            names = [session.method.name for session in leading]
            raise AttendropError(
                f"'{names[0]}' and '{names[1]}' cannot be combined. Both decide which passes a step takes, which they "
                "should declare among their traits (DECIDES_PASSES)."
            )

    @property
    def parts(self) -> Sequence[Session]:
        return self.sessions

    def loss(self, step: Pass, compute_loss: ComputeLoss) -> tuple[Tensor, Any]:
        acting: list[tuple[Session, Pass]] = []
        leader: Session | None = None
        batch = step.batch
        for session in self.in_order:
            if not session.method.active(step.epoch or 0):
                continue
            own = self._as_seen_by(session, step, batch)
            batch = session.batch(own)
            if overrides(session, Session, "loss"):
                leader = session
            else:
                acting.append((session, own))

        def one_pass(batch: Batch, plan: Plan | None = None, model: nn.Module | None = None, /) -> tuple[Tensor, Any]:
            return run_pass(acting, compute_loss, batch, plan, model)

        if leader is None:
            return one_pass(batch)
        return leader.loss(self._as_seen_by(leader, step, batch), one_pass)

    def edit_gradients(self, parameters: Mapping[str, nn.Parameter]) -> None:
        for session in self.in_order:
            session.edit_gradients(parameters)

    def after_step(self, steps_taken: int) -> dict[str, float]:
        return self._figures({session: session.after_step(steps_taken) for session in self.sessions})

    def replay(self) -> Replay | None:
        return next((found for session in self.sessions if (found := session.replay()) is not None), None)

    def searching(self) -> bool:
        return any(session.searching() for session in self.sessions)

    def finish(self) -> dict[str, float]:
        return self._figures({session: session.finish() for session in self.sessions})

    def named(self, figures: Mapping[str, float]) -> dict[str, float]:
        return dict(figures)

    def state_dict(self) -> dict[str, Any]:
        return self._by_name({session: session.state_dict() for session in self.sessions})

    def own_state_dict(self) -> dict[str, Any]:
        return self._by_name({session: session.own_state_dict() for session in self.sessions})

    def load_state_dict(self, state: Mapping[str, Any], own: Mapping[str, Any]) -> None:
        for session in self.sessions:
            name = session.method.name
            session.load_state_dict(state.get(name, {}), own.get(name, {}))

    def conclude(self, batches: Iterable[Batch]) -> dict[str, Any]:
        kept = list(batches) if len(self.sessions) > 1 else batches
        return {name: value for session in self.sessions for name, value in session.conclude(kept).items()}

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        return {name: value for session in self.sessions for name, value in session.tensors().items()}

    def close(self) -> None:
        for session in self.sessions:
            session.close()

    def _accompany(self, model: nn.Module) -> Any:
        """Let all but the one that trains this model act on it, too."""
        others = [session for session in self.in_order if not overrides(session, Session, "loss")]
        for session in others:
            session.accompany(model)
        parameters = dict(model.named_parameters())

        def before_step() -> None:
            for session in others:
                session.edit_gradients(parameters)

        return before_step

    def _as_seen_by(self, session: Session, step: Pass, batch: Batch) -> Pass:
        key = dataclasses.replace(step.key, salt=f"{session.method.name}/")
        return dataclasses.replace(step, batch=batch, key=key, source=session.method.source)

    def _figures(self, found: Mapping[Session, Mapping[str, float]]) -> dict[str, float]:
        return {name: value for session, own in found.items() for name, value in session.named(own).items()}

    def _by_name(self, found: Mapping[Session, dict[str, Any]]) -> dict[str, Any]:
        return {session.method.name: state for session, state in found.items() if state}
