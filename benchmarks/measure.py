"""Time and memory of training steps, and how often these wait for a GPU."""

import gc
import itertools
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

import torch
from reference import NAME, reference_loss
from torch.profiler import ProfilerActivity, profile
from transformers import BertForSequenceClassification
from workloads import Batch, Setting

from attendrop import AttendOut, regularize
from attendrop.methods.core.base import Method
from attendrop.randomness.candidates import candidate_region, pack

# One training step; and what makes it ready, so that only the step itself is timed.
Step = Callable[[Batch], None]
Contender = Callable[[], AbstractContextManager[Step]]
# On a CPU, other processes of a shared machine must not count.
clock = time.perf_counter if torch.cuda.is_available() else time.process_time


class Bench:
    """One model with its optimizer, and the kinds of training step that are compared on it."""

    def __init__(self, setting: Setting, model: BertForSequenceClassification) -> None:
        self.setting = setting
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
        self.seeds = itertools.count()

    @contextmanager
    def stock(self) -> Iterator[Step]:
        """Yield a step of the model as it is."""
        yield lambda batch: self._learn(lambda: self.model(**batch).loss)

    @contextmanager
    def doubled(self) -> Iterator[Step]:
        """Yield a stock step with every row twice: the least that two passes for each row take in one batch."""
        yield lambda batch: self._learn(
            lambda: self.model(**{name: torch.cat([value, value]) for name, value in batch.items()}).loss
        )

    @contextmanager
    def reference(self, layers: str) -> Iterator[Step]:
        """Yield a reference-style AD-DROP step."""
        before = self.model.config._attn_implementation
        self.model.set_attn_implementation(NAME)
        try:
            yield lambda batch: self._learn(lambda: reference_loss(self.model, batch, layers))
        finally:
            self.model.set_attn_implementation(before)

    @contextmanager
    def library(self, method: Method, items: list[Batch] | None = None) -> Iterator[Step]:
        """Yield a step through the library, in an epoch in which the method acts; each time with other draws.

        ``items`` are labelled rows, for methods that read some in addition to the training batches.
        """
        data = {"reward_data": items, "train_data": items}
        steps, seed = 10_000, next(self.seeds)
        with regularize(self.model, method, seed=seed, total_steps=steps, optimizer=self.optimizer, **data) as reg:
            reg.set_epoch(1)

            def step(batch: Batch) -> None:
                self._learn(lambda: reg.loss(batch, rows=range(len(batch["labels"])) if method.needs_rows else None))
                reg.step()

            yield step

    @contextmanager
    def attendout(self, method: AttendOut, items: list[Batch]) -> Iterator[Step]:
        """Yield a step of AttendOut; the first one closes its period, so that the next begins a whole one."""
        with regularize(self.model, method, optimizer=self.optimizer, reward_data=items) as reg:
            started = False

            def step(batch: Batch) -> None:
                nonlocal started
                self._learn(lambda: reg.loss(batch))
                reg.step()
                if not started:
                    reg.finish()
                    started = True

            yield step

    @contextmanager
    def products(self, *, ranked: bool) -> Iterator[Step]:
        """Yield a stock step with the least that recorded attribution adds: ``dO V^T`` in each layer, and the ranking.

        Args:
            ranked: Whether the products are ranked for candidates, too.
        """
        config = self.model.config
        heads, dim = config.num_attention_heads, config.hidden_size // config.num_attention_heads

        def step(batch: Batch) -> None:
            self._learn(lambda: self.model(**batch).loss)
            size, length = batch["input_ids"].shape
            valid = batch["attention_mask"][:, None, None].bool()
            for _ in range(config.num_hidden_layers):
                gradient, value = (torch.rand(size, heads, length, dim, device=valid.device) for _ in range(2))
                found = gradient @ value.transpose(-1, -2)
                if ranked:
                    pack(candidate_region(found, valid, 0.3).mask)

        yield step

    @contextmanager
    def forward(self) -> Iterator[Step]:
        """Yield a stock pass without gradients: the least that attribution by attention weights adds to a step."""

        def step(batch: Batch) -> None:
            with torch.no_grad(), self.setting.autocast():
                self.model(**batch)

        yield step

    @contextmanager
    def backward_to_first(self) -> Iterator[Step]:
        """Yield a stock pass with gradients of activations only, down to the first layer: the least for gradients."""
        for parameter in self.model.parameters():
            parameter.requires_grad_(False)

        def step(batch: Batch) -> None:
            with self.setting.autocast():
                embedded = self.model.get_input_embeddings()(batch["input_ids"]).detach().requires_grad_()
                hidden = self.model(inputs_embeds=embedded, attention_mask=batch["attention_mask"])
                torch.autograd.grad(hidden.logits.max(-1).values.sum(), embedded)

        try:
            yield step
        finally:
            for parameter in self.model.parameters():
                parameter.requires_grad_(True)

    def _learn(self, loss: Callable[[], torch.Tensor]) -> None:
        with self.setting.autocast():
            value = loss()
        value.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def interleave(
    contenders: Mapping[str, Contender],
    batches: Mapping[str, list[Batch]] | list[Batch],
    *,
    rounds: int,
    seconds: float,
    most: int = 15,
) -> dict[str, list[float]]:
    """Time all contenders in turn, again and again; every second round in reverse order.

    Args:
        contenders: Steps by name. The first is the one that others are compared with.
        batches: What one timing runs over: for all contenders, or by name.
        rounds: Minimum number of rounds.
        seconds: Further rounds, up to ``most``, are run until this time has passed.
        most: See ``seconds``.

    Returns:
        Seconds that the batches take, by name, one for each round.

    """
    names = list(contenders)
    times: dict[str, list[float]] = {name: [] for name in names}
    first = names[0]
    todo = {name: batches if isinstance(batches, list) else batches[name] for name in names}
    warm = _time(contenders[first], todo[first][:1] * 2, 1) / 2
    # Short steps are repeated, so that a timing takes a fifth of a second or more.
    repeats = max(1, min(20, round(0.2 / warm / len(todo[first]))))
    began = time.perf_counter()
    while len(times[first]) < rounds or (len(times[first]) < most and time.perf_counter() - began < seconds):
        for name in names if len(times[first]) % 2 == 0 else reversed(names):
            times[name].append(_time(contenders[name], todo[name], repeats))
    return times


def ratios(times: Mapping[str, list[float]], name: str, base: str) -> list[float]:
    """Time of one contender over another's, round by round."""
    return [ours / theirs for ours, theirs in zip(times[name], times[base], strict=True)]


def _time(contender: Contender, batches: list[Batch], repeats: int) -> float:
    with contender() as step:
        # The first pass through the library looks for the attention layers; that happens once in a run.
        step({name: value[:2] for name, value in batches[0].items()})
        _wait(batches)
        began = clock()
        for _ in range(repeats):
            for batch in batches:
                step(batch)
        _wait(batches)
        return (clock() - began) / repeats


def _wait(batches: list[Batch]) -> None:
    if batches[0]["input_ids"].is_cuda:
        torch.cuda.synchronize()


def peak_memory(bench: Bench, contender: Contender, batch: Batch, steps: int = 1) -> tuple[int, int]:
    """Measure the most memory that steps hold at one time, in bytes: in all, and without weights and optimizer state.

    More than one step is measured from before the first, so that what the contender makes and keeps is counted.

    On CUDA from the allocator's own count. On a CPU from the profiler's record of every allocation and release of
    torch's allocator in one step after warm-up, to which the bytes of weights and optimizer state are added.
    """
    with bench.stock() as stock:
        stock(batch)  # the optimizer's state
    with contender() as step:
        if steps == 1:
            step(batch)
        state = [value for values in bench.optimizer.state.values() for value in values.values()]
        fixed = sum(tensor.nbytes for tensor in (*bench.model.parameters(), *bench.model.buffers(), *state))
        if bench.setting.device.type == "cuda":
            gc.collect()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            for _ in range(steps):
                step(batch)
            return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_allocated() - before
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
            for _ in range(steps):
                step(batch)
    events = [event for event in record.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = highest = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        highest = max(highest, held)
    return fixed + highest, highest


def host_waits(bench: Bench, contender: Contender, batch: Batch) -> int:
    """Count the operations of one step in which the host waits for the GPU; 0 on a CPU."""
    on_gpu = bench.setting.device.type == "cuda"
    with contender() as step:
        for _ in range(2):  # the first looks for attention layers, and makes what methods keep
            step(batch)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            if on_gpu:
                torch.cuda.set_sync_debug_mode("warn")
            try:
                step(batch)
            finally:
                if on_gpu:
                    torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing CUDA operation" in str(warning.message) for warning in found)
