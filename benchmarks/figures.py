"""The rows of the table: what is compared, on what, and the target."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import launches as launched
import torch
from deployed import deployed
from fidelity import Fidelity, enough_nodes
from measure import Bench, Contender, interleave, peak_memory, ratios
from pruned import contenders, onnx_contenders
from rows import Row
from runs import time_runs
from texts import INFERENCE_BATCH, cola_rows, epoch_batches, inference_batches, step_batches, why_no_real_data
from workloads import BATCH_SIZE, Setting, build_launch_model, build_model, family_models, made_up, reward_items

from attendrop import ADDrop, AttendOut, ChildTuning, Compose, FineTune, Method, RDrop
from attendrop.methods.core.registry import build_method, method_names

REFERENCE_LENGTH = 47
# Tokens and sequences of the batches on which memory for long inputs is measured.
LONG, LONG_BATCH = 512, 8


def steps(setting: Setting) -> Iterator[Row]:
    """Single training steps, each against the stock step."""
    for shape in setting.shapes:
        bench = Bench(setting, build_model(setting, shape))
        gradient = 1.85 if shape == "MiniLM" else 1.70
        attention, at_random = (ADDrop(attribution=name, layers="all") for name in ("attention", "random"))
        compared: dict[str, tuple[str, Contender, float | None]] = {
            "finetune": ("finetune through the library", partial(bench.library, FineTune()), 1.03),
            "gradient": ("AD-DROP, gradient, all layers", partial(bench.library, ADDrop(layers="all")), gradient),
            "first": ("AD-DROP, gradient, first layer", partial(bench.library, ADDrop(layers="first")), 1.65),
            "reference": ("reference style, first layer", partial(bench.reference, "first"), None),
            "attention": ("AD-DROP, attention weights", partial(bench.library, attention), 1.45),
            "random": ("AD-DROP, random region", partial(bench.library, at_random), 1.12),
        }
        contenders = {"stock": bench.stock} | {name: contender for name, (_, contender, _) in compared.items()}
        for name, batch in step_batches(setting, shape).items():
            case = f"{shape}, {name}"
            times = interleave(contenders, [batch], rounds=setting.rounds, seconds=0 if setting.quick else 10)
            for key, (figure, _, target) in compared.items():
                yield Row(f"{figure} / stock step", case, ratios(times, key, "stock"), target)
            yield Row(
                "AD-DROP, first layer / reference style, first layer", case, ratios(times, "first", "reference"), 1.0
            )


def floors(setting: Setting) -> Iterator[Row]:
    """What the passes that attribution needs cost at the least, in the stock model."""
    for shape in setting.shapes:
        bench = Bench(setting, build_model(setting, shape))
        contenders: dict[str, Contender] = {
            "stock": bench.stock,
            "forward": bench.forward,
            "backward": bench.backward_to_first,
        }
        for name, batch in step_batches(setting, shape).items():
            times = interleave(contenders, [batch], rounds=setting.rounds, seconds=0)
            case = f"{shape}, {name}"
            for key, figure in (
                ("forward", "floor, attention weights: (stock step + forward) / stock step"),
                ("backward", "floor, gradient: (stock step + forward + backward of activations) / stock step"),
            ):
                yield Row(figure, case, [1 + ratio for ratio in ratios(times, key, "stock")], None)


def epochs(setting: Setting) -> Iterator[Row]:
    """A sample of a CoLA epoch with AD-DROP in all layers: reference style against the library."""
    source = "made-up rows of CoLA's lengths" if why_no_real_data() else "CoLA"
    for shape in setting.shapes:
        bench = Bench(setting, build_model(setting, shape))
        rows = cola_rows(BATCH_SIZE * _epoch_length(setting, shape))
        padded = [setting.to_device(batch) for batch in epoch_batches(rows)]
        fixed = [setting.to_device(batch) for batch in epoch_batches(rows, REFERENCE_LENGTH)]
        contenders: dict[str, Contender] = {
            "library": partial(bench.library, ADDrop(layers="all")),
            "equal": partial(bench.reference, "all"),
            "fixed": partial(bench.reference, "all"),
            "stock": bench.stock,
        }
        batches = {"library": padded, "equal": padded, "fixed": fixed, "stock": padded}
        times = interleave(contenders, batches, rounds=setting.rounds, seconds=0 if setting.quick else 20)
        case = f"{shape}, {source}, {len(rows)} rows"
        yield Row(
            "reference style / library, equal padding", case, ratios(times, "equal", "library"), 1.6, at_least=True
        )
        figure = f"reference style padded to {REFERENCE_LENGTH} / library"
        yield Row(figure, case, ratios(times, "fixed", "library"), 4.0, at_least=True)
        yield Row("reference style / stock, equal padding", case, ratios(times, "equal", "stock"), None)
        yield Row("AD-DROP, gradient, all layers / stock", case, ratios(times, "library", "stock"), None)


def trainer(setting: Setting) -> Iterator[Row]:
    """Whole runs of two epochs with the trainer, evaluation included."""
    for shape in setting.shapes:
        rows = cola_rows(BATCH_SIZE * _epoch_length(setting, shape))
        model = build_model(setting, shape)
        times = time_runs(setting, model, rows, rounds=setting.rounds, seconds=0 if setting.quick else 45)
        case = f"{shape}, CoLA lengths, {len(rows)} rows, 2 epochs"
        figure = "finetune: RegularizedTrainer / stock Trainer"
        yield Row(figure, case, ratios(times, "finetune", "stock"), 1.03)
        yield Row("whole cross-tuned run / plain run", case, ratios(times, "ad-drop", "finetune"), 1.36)


def launches(setting: Setting) -> Iterator[Row]:
    """What a step sends to a GPU, counted on the CPU; and steps so small that they cost what the host does."""
    found = launched.table()
    stock = found["plain"]["all, 12 layers"]
    bounds = {"finetune through the library": 1.0, "AD-DROP, recorded": 1.13, "mixout": 1.2, "AttendOut": 2.3}
    for name in launched.METHODS:
        operations = found[name]["all, 12 layers"]
        note = f"{operations:.0f} / {stock:.0f}"
        yield Row(f"operations, {name} / stock step", "12 layers", [operations / stock], bounds.get(name), note=note)
    batch = setting.to_device(made_up(24, ragged=True))
    bench = Bench(setting, build_launch_model(6))
    contenders: dict[str, Contender] = {"stock": bench.stock} | {
        name: partial(bench.library, method, reward_items(batch, 4)) for name, method in launched.METHODS.items()
    }
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so small operations would pay for threads that wait for each other
    times = interleave(contenders, [batch], rounds=setting.rounds, seconds=0 if setting.quick else 240, most=60)
    torch.set_num_threads(threads)
    bounds = {"AD-DROP, recorded": 1.25, "AD-DROP, separate pass": 1.8}
    for name in launched.METHODS:
        figure, case = f"{name} / stock step, bound by the host", "6 layers, 48 wide, 24 ragged"
        yield Row(figure, case, ratios(times, name, "stock"), bounds.get(name))


def recorded(setting: Setting) -> Iterator[Row]:
    """AD-DROP with recorded attributions: steps, whole runs and memory, against the stock step; and what bounds it."""
    every, first = (ADDrop(p=0.3, attribution="recorded", layers=layers) for layers in ("all", "first"))
    for shape in setting.shapes:
        bench = Bench(setting, build_model(setting, shape))
        compared: dict[str, tuple[str, Contender, float | None]] = {
            "all": ("AD-DROP, recorded, all layers", partial(bench.library, every), 1.10),
            "first": ("AD-DROP, recorded, first layer", partial(bench.library, first), 1.03),
            "own pass": ("AD-DROP, gradient, all layers", partial(bench.library, ADDrop(p=0.3, layers="all")), None),
            "random": ("AD-DROP, random region", partial(bench.library, replace(every, attribution="random")), None),
            "products": ("floor: stock step + products dO V^T", partial(bench.products, ranked=False), None),
            "ranked": ("floor: the same, ranked", partial(bench.products, ranked=True), None),
        }
        contenders = {"stock": bench.stock} | {name: contender for name, (_, contender, _) in compared.items()}
        for length in setting.lengths:
            batch = setting.to_device(made_up(length, ragged=False))
            times = interleave(contenders, [batch], rounds=setting.rounds, seconds=0 if setting.quick else 10)
            for key, (figure, _, target) in compared.items():
                yield Row(f"{figure} / stock step", f"{shape}, {length} full", ratios(times, key, "stock"), target)
        plain = peak_memory(bench, bench.stock, batch)[0]
        ours = peak_memory(bench, partial(bench.library, every), batch)[0]
        note = f"{ours / 2**20:.0f} MiB / {plain / 2**20:.0f} MiB"
        yield Row(
            "peak memory, AD-DROP recorded / fine-tuning", f"{shape}, {length} full", [ours / plain], 1.05, note=note
        )
        rows = cola_rows(BATCH_SIZE * _epoch_length(setting, shape))
        crossed = ADDrop(p=0.3, attribution="recorded", layers="all", cross_tuning=True)
        times = time_runs(setting, bench.model, rows, rounds=setting.rounds, seconds=0, method=crossed)
        case = f"{shape}, CoLA lengths, {len(rows)} rows, 2 epochs"
        yield Row("whole cross-tuned run, recorded / plain run", case, ratios(times, "ad-drop", "finetune"), 1.02)
        del bench, contenders, compared


def iga(setting: Setting) -> Iterator[Row]:
    """Integrated gradients: how many nodes are enough, and the cost of a step with so many."""
    found = enough_nodes(setting)
    for scope, fidelities in found.items():
        for fidelity in fidelities:
            note = f"Gauss–Legendre, {fidelity.steps} nodes"
            figure = f"IGA {scope}: mean Spearman per row against 20 Riemann steps"
            yield Row(figure, fidelity.case, fidelity.correlations, 0.95, at_least=True, note=note)
    chosen = {scope: _most(fidelities) for scope, fidelities in found.items()}
    default = ADDrop().steps
    for shape in setting.shapes:
        bench = Bench(setting, build_model(setting, shape))
        contenders: dict[str, Contender] = {"stock": bench.stock}
        for scope, count in chosen.items():
            method = ADDrop(attribution="integrated_gradient", layers="all", scope=scope, steps=count)
            contenders[scope] = partial(bench.library, method)
        for length in setting.lengths[:1]:
            batch = setting.to_device(made_up(length, ragged=True))
            contenders["default"] = partial(bench.library, ADDrop(attribution="integrated_gradient", layers="all"))
            times = interleave(contenders, [batch], rounds=min(2, setting.rounds), seconds=0)
            timed = (
                ("joint", chosen["joint"], 8.0),
                ("layerwise", chosen["layerwise"], 25.0),
                ("default", default, 8.0),
            )
            for name, count, target in timed:
                figure = f"AD-DROP, IGA {'joint, the default' if name == 'default' else name} / stock step"
                note = f"Gauss–Legendre, {count} nodes"
                yield Row(figure, f"{shape}, {length} ragged", ratios(times, name, "stock"), target, note=note)


def memory(setting: Setting) -> Iterator[Row]:
    """Peak memory of a step, against fine-tuning with eager attention."""
    for shape in setting.shapes:
        batch = setting.to_device(made_up(setting.lengths[-1], ragged=True))
        peaks = {}
        for implementation in ("eager", "sdpa"):
            bench = Bench(setting, build_model(setting, shape, implementation))
            contender = bench.stock if implementation == "eager" else partial(bench.library, ADDrop(layers="all"))
            peaks[implementation] = peak_memory(bench, contender, batch)
            del bench, contender
        case = f"{shape}, {setting.lengths[-1]} ragged"
        for position, (what, target) in enumerate((("", 1.3), (", without weights and optimizer state", None))):
            ours, eager = (peaks[name][position] for name in ("sdpa", "eager"))
            note = f"{ours / 2**20:.0f} MiB / {eager / 2**20:.0f} MiB"
            yield Row(f"peak memory, AD-DROP / eager fine-tuning{what}", case, [ours / eager], target, note=note)


def long_inputs(setting: Setting) -> Iterator[Row]:
    """Peak memory of a step on long inputs, against fine-tuning with eager and with SDPA attention."""
    shape, length = setting.shapes[-1], LONG if not setting.quick else setting.lengths[-1]
    batch = setting.to_device({name: value[:LONG_BATCH] for name, value in made_up(length, ragged=False).items()})
    for dropout in (0.1, 0.0):
        peaks = {}
        for name in ("AD-DROP", "eager", "sdpa"):
            model = build_model(setting, shape, "eager" if name == "eager" else "sdpa", attention_dropout=dropout)
            bench = Bench(setting, model)
            contender = partial(bench.library, ADDrop(layers="all")) if name == "AD-DROP" else bench.stock
            peaks[name], _ = peak_memory(bench, contender, batch)
            del bench, contender, model
        case = f"{shape}, batch {LONG_BATCH}, {length} full, attention dropout {dropout:g}"
        for other, target in (("eager", 1.35), ("sdpa", None)):
            ours, theirs = peaks["AD-DROP"], peaks[other]
            note = f"{ours / 2**20:.0f} MiB / {theirs / 2**20:.0f} MiB"
            figure = f"peak memory, AD-DROP / {other.replace('sdpa', 'SDPA')} fine-tuning"
            yield Row(figure, case, [ours / theirs], target, note=note)


_PERIOD_BATCHES = ("64 full", "128 ragged")


def attendout(setting: Setting) -> Iterator[Row]:
    """AttendOut at its defaults, over whole periods, against the stock step; and its memory."""
    method = AttendOut()
    period = method.dropout_step
    for shape in setting.shapes:
        bench = Bench(setting, build_model(setting, shape))
        for name, batch in step_batches(setting, shape).items():
            if name not in _PERIOD_BATCHES and not name.startswith("CoLA") and not setting.quick:
                continue  # a round is a whole period of each, and takes minutes
            if shape == "BERT-base" and name.startswith(str(setting.lengths[-1])):
                continue
            contenders = {
                "stock": bench.stock,
                "attendout": partial(bench.attendout, method, reward_items(batch, method.reward_batch_size)),
            }
            times = interleave(contenders, [batch] * period, rounds=setting.rounds, seconds=0)
            yield Row(
                f"AttendOut, mean of {period} steps / stock step", f"{shape}, {name}",
                ratios(times, "attendout", "stock"), 3.3 if name.startswith("CoLA") else 2.8,
            )  # fmt: skip
        batch = setting.to_device(made_up(setting.lengths[-1], ragged=True))
        plain = peak_memory(bench, bench.stock, batch)[0]
        ours = peak_memory(
            bench, partial(bench.attendout, method, reward_items(batch, method.reward_batch_size)), batch, period + 1
        )[0]
        note = f"{ours / 2**20:.0f} MiB / {plain / 2**20:.0f} MiB"
        case = f"{shape}, {setting.lengths[-1]} ragged"
        yield Row("peak memory, AttendOut / fine-tuning", case, [ours / plain], 2.5, note=note)


_TARGETS = dict.fromkeys(("vanilla", "scheduler", "dropblock", "drophead", "headmask"), 1.12) | {
    "layerdrop": 0.90,
    "attention-layerdrop": 1.05,
    "r-drop": 2.05,
    "mixout": 1.35,
    "child-tuning": 1.05,
    "child-tuning variant=D": 1.05,
}
# What takes other ways than the defaults do, beside them.
_WAYS: dict[str, Method] = {
    "ad-drop": ADDrop(),
    "child-tuning variant=D": ChildTuning(variant="D"),
    "ad-drop+r-drop": Compose(ADDrop(), RDrop()),
    "ad-drop+child-tuning": Compose(ADDrop(), ChildTuning()),
}
_DOUBLED = "floor of r-drop: twice the rows"
# Whose step is a period, or differs much from step to step: as many steps in a timing.
_STEPS = {"layerdrop": 8, "attention-layerdrop": 8}


def methods(setting: Setting) -> Iterator[Row]:
    """A step of every method at its defaults, and the memory that it takes, against plain fine-tuning."""
    own = [name for name in method_names() if name not in ("finetune", "attendout")]
    every = {name: build_method(name) for name in own} | _WAYS
    length = setting.lengths[0]
    for shape in setting.shapes:
        bench = Bench(setting, build_model(setting, shape))
        batch = setting.to_device(made_up(length, ragged=False))
        items = [{name: value[:2] for name, value in batch.items()}]
        contenders = {name: partial(bench.library, method, items) for name, method in every.items()}
        case = f"{shape}, {length} full"
        timed: dict[str, Contender] = contenders | {_DOUBLED: bench.doubled}
        if setting.methods:
            contenders, timed = ({n: each[n] for n in setting.methods if n in each} for each in (contenders, timed))
        for steps in sorted({_STEPS.get(name, 1) for name in timed}):
            chosen = [name for name in timed if _STEPS.get(name, 1) == steps]
            # Few at a time, so that the stock step beside which a method is timed was taken within the same seconds.
            for some in (chosen[start : start + 4] for start in range(0, len(chosen), 4)):
                group = {"stock": bench.stock, **{name: timed[name] for name in some}}
                times = interleave(group, [batch] * steps, rounds=setting.rounds, seconds=0 if setting.quick else 40)
                for name in some:
                    yield Row(f"{name} / stock step", case, ratios(times, name, "stock"), _TARGETS.get(name))
        plain = peak_memory(bench, bench.stock, batch)[0]
        for name, contender in contenders.items():
            ours = peak_memory(bench, contender, batch)[0]
            note = f"{ours / 2**20:.0f} MiB / {plain / 2**20:.0f} MiB"
            yield Row(f"peak memory, {name} / fine-tuning", case, [ours / plain], None, note=note)


def inference(setting: Setting) -> Iterator[Row]:
    """Prediction with constant attention in all layers but the first, against the stock model."""
    batches = inference_batches(setting)
    for shape in setting.shapes:
        model = build_model(setting, shape)
        compared = contenders(model)
        for name, found in batches.items():
            case = f"{shape}, batch {INFERENCE_BATCH}, {name}"
            times = interleave(compared, found, rounds=setting.rounds, seconds=0)
            target = 1.6 if "full" in name else 2.5
            yield Row("stock / all layers constant but the first", case, ratios(times, "stock", "pruned"), target, True)
            yield Row("stock / unpruned without padding", case, ratios(times, "stock", "unpadded"), None)
        del compared
        in_onnx = onnx_contenders(setting, model)
        for name, found in batches.items() if in_onnx else ():
            times = interleave(in_onnx, found, rounds=setting.rounds, seconds=0)
            case = f"{shape}, batch {INFERENCE_BATCH}, {name}"
            target = None if "full" in name else 1.5
            yield Row("ONNX Runtime: unpruned / pruned", case, ratios(times, "stock", "pruned"), target, at_least=True)


def families(setting: Setting) -> Iterator[Row]:
    """The same, of other families than BERT, on the first batch."""
    for shape, model in family_models(setting).items():
        compared = contenders(model)
        for name, found in inference_batches(setting).items():
            if "IMDB" in name:
                continue
            times = interleave(compared, found[:1], rounds=max(5, setting.rounds), seconds=0)
            case = f"{shape}, batch {INFERENCE_BATCH}, {name}"
            yield Row("stock / all layers constant but the first", case, ratios(times, "stock", "pruned"), None)
            yield Row("stock / unpruned without padding", case, ratios(times, "stock", "unpadded"), None)


FIGURES: dict[str, Callable[[Setting], Iterator[Row]]] = {
    "steps": steps,
    "floors": floors,
    "epochs": epochs,
    "trainer": trainer,
    "launches": launches,
    "recorded": recorded,
    "iga": iga,
    "memory": memory,
    "long_inputs": long_inputs,
    "attendout": attendout,
    "methods": methods,
    "inference": inference,
    "families": families,
    "deployed": deployed,
}


def _epoch_length(setting: Setting, shape: str) -> int:
    """How many batches stand for an epoch."""
    return 2 if setting.quick else {"MiniLM": 10, "BERT-base": 4}[shape]


def _most(fidelities: list[Fidelity]) -> int:
    return max(fidelity.steps for fidelity in fidelities)
