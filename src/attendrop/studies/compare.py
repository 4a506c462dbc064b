"""Comparison of methods on custom data: which one should be used to fine-tune on it?

The time line of :func:`run_comparison`: an encoder is chosen on the training rows, and settings on selection rows, if
this is asked for; all methods and baselines are run with each seed; their answer is written; the recommended model is
trained on all rows, and kept.
"""

from __future__ import annotations

import logging
import math
import shlex
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from attendrop.attention.adapter import find_attention_layers
from attendrop.errors import AttendropError, RunsFailed, did_you_mean
from attendrop.methods.core.options import searched_values
from attendrop.methods.core.registry import build_method, get_method, given_options, labelled_method
from attendrop.runs.config import RunConfig, declared, partial_of
from attendrop.runs.data import fingerprint, resolve_run
from attendrop.runs.model_card import CARD, SCORED_ONCE, with_section
from attendrop.runs.model_loading import load_config, load_for, load_tokenizer, trained_pooling
from attendrop.runs.run_folder import check_whole, holds_run, read_json, read_metrics
from attendrop.runs.train import train
from attendrop.studies import FROZEN
from attendrop.studies.answer import Answer, answer, method_label
from attendrop.studies.baselines import defined_for, run_baseline
from attendrop.studies.comparison import BEST, ENCODERS, RECORD, Comparison, MethodSetting
from attendrop.studies.executor import LOCAL, REFERENCE, WITHOUT, Event, OnEvent, RunSpec, open_runner, with_evaluation
from attendrop.studies.learning_curve import HALVINGS, MODELS, SEEDS, LearningCurve, learning_curves
from attendrop.studies.screening import Screening, screen
from attendrop.studies.study import check_study_folder, write_compared, write_reports
from attendrop.support.files import finite, model_sha256, write_json, write_text
from attendrop.tasks.base import Task
from attendrop.tasks.error_analysis import promise
from attendrop.tasks.types.model_classes import is_encoder
from attendrop.wording import aligned, in_markdown, markdown_table, score_text

SELECTION_FRACTION = 0.2
# How far the learning rate is searched, in both directions.
MOST_FACTOR = 8.0
logger = logging.getLogger(__name__)


class Trial(NamedTuple):
    """A setting, and its selection scores, one for each fold, None where it failed."""

    setting: MethodSetting
    scores: list[float | None]


@dataclass(frozen=True)
class Outcome:
    """Result of a comparison.

    Attributes:
        encoders: How encoders were compared on the training rows; None if one was given.
        curves: What more rows would bring, of each model for which it was asked.
        trials: The settings that were tried, by label of the one they began with; empty without a search.
        kept: Label of the row whose model was kept; None if none was.
        accept: Which of its answers to accept, if that was asked for, see
            :func:`attendrop.tasks.error_analysis.choose_threshold`.
        best: Folder of this model.
        failed: Number of runs that failed.
    """

    answer: Answer
    trials: Mapping[str, Sequence[Trial]] = field(default_factory=dict)
    kept: str | None = None
    best: Path | None = None
    encoders: Screening | None = None
    curves: Sequence[LearningCurve] = ()
    accept: Mapping[str, Any] | None = None
    failed: int = 0

    @property
    def chosen(self) -> dict[str, MethodSetting]:
        """The chosen settings, by label of the one they began with; empty without a search."""
        return {label: choose(each) for label, each in self.trials.items()}

    def as_dict(self) -> dict[str, Any]:
        """Return the outcome as JSON values."""
        trials = {
            name: [{"setting": trial.setting.described, "scores": trial.scores} for trial in each]
            for name, each in self.trials.items()
        }
        chosen = {name: setting.described for name, setting in self.chosen.items()}
        found = self.answer.as_dict() | {"trials": trials, "chosen": chosen, "kept": self.kept}
        found["best"] = None if self.best is None else str(self.best)
        if (of := self.encoders) is not None:
            found["encoders"] = finite(asdict(of) | {"chosen": of.chosen.model, "sentences": of.sentences})
        if self.curves:
            found["curves"] = [finite(asdict(each) | {"sentence": each.sentence}) for each in self.curves]
        return found | ({} if self.accept is None else {"accept": dict(self.accept)})

    @property
    def choices(self) -> list[str]:
        """Describe the chosen settings, and what they were chosen from; empty without a search."""
        lines = []
        for name, setting in self.chosen.items():
            failed = sum(None in trial.scores for trial in self.trials[name])
            tried = f"{len(self.trials[name])} settings{f' ({failed} failed)' if failed else ''}"
            lines.append(f"{name}: {setting.described}, of {tried} on selection rows.")
        return lines

    def lines(self) -> list[str]:
        """Return the answer in words, the table, and the chosen settings."""
        lines = [*self.answer.lines(), *([""] if self.trials else []), *self.choices]
        lines += ["", *(each.sentence for each in self.curves)] if self.curves else []
        if (of := self.encoders) is not None:
            lines += ["", *of.sentences, of.title, *aligned(of.table())]
        if self.best is not None:
            model = "The model" if self.kept == self.answer.use else f"The model of {self.kept}"  # none is recommended
            lines += ["", f"{model} is in {self.best}: attendrop predict {shlex.quote(str(self.best))} ..."]
        return lines if self.accept is None else [*lines, promise(self.accept)]

    def write(self, folder: Path) -> None:
        """Write the answer, with the chosen settings."""
        told, table = [*self.choices, *(each.sentence for each in self.curves)], ""
        if (of := self.encoders) is not None:
            told += [" ".join(of.sentences), of.title]
            header, *rows = ([*map(in_markdown, row)] for row in of.table())
            table = f"\n{markdown_table(header, rows)}\n"
        text = self.answer.markdown() + "".join(f"\n{in_markdown(line)}\n" for line in told) + table
        write_reports(folder, text, self.as_dict(), self.answer.records())


def compare(*, output_dir: str, workers: int | None = None, backend: str = LOCAL, **options: Any) -> Outcome:
    """Find out which method to fine-tune data with: ``attendrop compare`` from Python.

    Example:
        >>> outcome = attendrop.compare(
        ...     train_file="train.csv", text_columns=["text"], label_column="label",
        ...     methods=[attendrop.ADDrop(p=0.1), attendrop.ADDrop(p=0.3)], seeds=6, output_dir="runs/answer",
        ... )
        >>> print(*outcome.lines())

    Args:
        output_dir: Folder of the answer, the runs and the chosen model. Another call continues there.
        workers: Number of processes; 0: this one; None: one for each GPU or core.
        backend: See :func:`attendrop.studies.executor.open_runner`.
        **options: ``methods``, ``models``, ``curve``, ``seeds``, ``trials``, ``folds``, ``baselines`` and
            ``keep_best``, see :class:`attendrop.studies.comparison.Comparison`, and options of
            :class:`attendrop.runs.config.RunConfig`; ``model`` is ``"minilm"`` by default.

    Raises:
        AttendropError: An option or the data cannot be used, or no run of plain fine-tuning succeeded.
    """
    own = {name: options.pop(name) for name in declared(Comparison) if name in options}
    known = {each.name for each in (*fields(RunConfig), *fields(Comparison))} - {"method", "config"}
    if unknown := [name for name in options if name not in known]:
        hint = did_you_mean(unknown[0], sorted(known)) or "; help(attendrop.compare) lists them."
        raise AttendropError(f"compare has no option {unknown[0]!r}{hint}")
    options = {"model": "minilm", "output_dir": output_dir} | options | {"method": REFERENCE}
    config = RunConfig(**with_evaluation(options))
    return run_comparison(Comparison(config=config, output_dir=output_dir, **own), workers=workers, backend=backend)


def run_comparison(
    comparison: Comparison,
    *,
    workers: int | None = None,
    backend: str = LOCAL,
    on_event: OnEvent = lambda event: None,
    on_plan: Callable[[int], None] = lambda runs: None,
) -> Outcome:
    """Run a comparison, or its missing runs.

    All methods train on the same rows, in the same batches and with the same number of steps for the same seed. The
    evaluation rows are scored once for each run. It can be stopped at any moment and started again: finished runs are
    kept, and the answer is the same. See :func:`attendrop.studies.executor.open_runner` for the other options;
    ``on_plan`` is called with the number of runs.

    Raises:
        AttendropError: The data cannot be used, or a method on the model, the folder holds the answer of another
            comparison, or no run of plain fine-tuning succeeded.
    """
    folder, encoders, screened_by = Path(comparison.output_dir), None, dict[str, Any]()
    check_study_folder(folder, comparison=True)
    # Choose an encoder, if this is asked for, or read which one was chosen from the same encoders on the same rows.
    if comparison.models:
        screened_by = comparison.record() | {name: model_sha256(name) for name in comparison.models}
        screened_by = {name: value for name, value in screened_by.items() if name not in ("model", "model_sha256")}
        before = (read_json(folder / RECORD, {}) or {}).get(ENCODERS)
        if before is not None and before["of"] == screened_by:
            encoders = Screening.from_dict(before["found"])
        else:
            encoders = screen(comparison.config, comparison.models)
        logger.info("%s", " ".join(encoders.sentences))
        comparison = replace(comparison, config=replace(comparison.config, model=encoders.chosen.model))
    # Bad data and models are to be refused once, and not by each run.
    asked = comparison.config
    run = resolve_run(asked)
    parts, defined = run.parts, defined_for(run.task)
    load_tokenizer(asked.model, run.task)
    refuse_unusable(comparison, run.task)
    if asked.unlabelled is not None and comparison.keep_best and asked.accept is None:
        # The model that is kept is trained on all rows: there must be other texts.
        resolve_run(replace(asked, test_fraction=0.0, ood=None, ood_column=None))
    comparison.check_record()
    if "dev" not in parts.report:
        raise AttendropError("A comparison needs evaluation data: this task has none; give a file with --train-file.")
    unlike = f", {len(parts.report['ood'])} on the OOD split" if "ood" in parts.report else ""
    logger.info(
        "%s: %s, %s to train on, %d for the final scores%s.",
        run.data.source, run.task.type.labels_are, parts.trained_on(run.config.label_names), len(parts.report["dev"]),
        unlike,
    )  # fmt: skip
    if run.data.looks_grouped:
        logger.warning("%s", run.data.looks_grouped)
    if undefined := [name for name in comparison.baselines if name not in defined]:
        logger.info("Not defined for this kind of task, and left out: baseline %s.", ", ".join(undefined))
    baselines = tuple(name for name in comparison.baselines if name in defined)
    # Only the model that is kept needs ``accept``.
    comparison = replace(comparison, config=replace(asked, accept=None), baselines=baselines)
    defaults = {setting.label: setting for setting in comparison.methods}
    rows = len(defaults) + len(baselines) + bool(asked.with_columns)
    final = comparison.seeds * rows + comparison.keep_best
    final += comparison.curve * MODELS * (SEEDS * len(HALVINGS) - min(SEEDS, comparison.seeds))
    with open_runner(folder, workers=workers, backend=backend) as runner:
        screened = {} if encoders is None else {ENCODERS: {"of": screened_by, "found": asdict(encoders)}}
        write_json(folder / RECORD, comparison.record() | screened)
        # Try settings, if this is asked for.
        perform, trials = partial(runner.run, on_event=on_event), dict[str, list[Trial]]()
        if comparison.trials > 1:
            on_plan(len(defaults) * comparison.trials * comparison.folds + final)
            trials = search_settings(comparison, perform)
        on_plan(sum(map(len, trials.values())) * comparison.folds + final)
        # Train all methods with each seed, and compare them.
        settings = defaults | {label: choose(each) for label, each in trials.items()}
        results = perform(final_runs(comparison, settings))
        plain = [each for each in results if each.spec.method == REFERENCE and not each.spec.label]
        if not any(each.metrics for each in plain):
            raise RunsFailed(f"No run of plain fine-tuning succeeded; the first error: {plain[0].text}")
        found = answer([each.run for each in results])
        outcome = Outcome(found, trials, encoders=encoders, failed=sum(not each.metrics for each in results))
        write_compared(folder, {"": results}, REFERENCE)
        outcome.write(folder)  # whatever becomes of the model
        # Predict what more rows would bring, if this is asked for.
        if comparison.curve:
            outcome = replace(outcome, curves=learning_curves(found, results, perform))
            write_compared(folder, {"": results}, REFERENCE, curves=[asdict(each) for each in outcome.curves])
            outcome.write(folder)
        # Keep the model.
        if comparison.keep_best:
            runner.release()
            runner.folder_of(results[0].spec)  # the data may have changed since
            kept, best, accept = keep_best(asked, found, results, folder, on_event)
            outcome = replace(outcome, kept=kept, best=best, accept=accept)
            outcome.write(folder)
    return outcome


def refuse_unusable(comparison: Comparison, task: Task) -> None:
    """Raise AttendropError for methods that cannot act on the attention of the model, before others train for hours."""
    name, refused, model = comparison.config.model, dict[str, str](), None
    for setting in comparison.methods:
        method = build_method(setting.method, setting.options)
        if method.info.uses_attention:
            model = load_for(name, task, comparison.config.pooling).model if model is None else model
            try:
                method.selected_layers(find_attention_layers(model))
            except AttendropError as error:
                refused[setting.label] = str(error)
    if refused:
        reason = next(iter(refused.values()))
        raise AttendropError(f"{', '.join(refused)} cannot act on {name!r}; name other methods by --methods. {reason}")


def final_runs(comparison: Comparison, settings: Mapping[str, MethodSetting]) -> list[RunSpec]:
    """Return the runs of all methods and baselines, seed by seed, with settings by label of the one that is compared.

    One with a learning rate of its own is named by it, too: other rows have that of all runs. Searches that end in the
    same setting are one row. What has no other columns has the setting of plain fine-tuning, so that they differ in
    nothing else.
    """
    config, runs = comparison.config, []
    own = next(setting for setting in settings.values() if setting.method == REFERENCE)
    rates = {each.label: each.learning_rate for each in comparison.methods}
    rows: dict[str, tuple[MethodSetting, str]] = {}
    for label, setting in settings.items():
        rate, name = rates.get(label), labelled_method(setting.method, setting.options)
        named = "" if rate is None else f"{name} learning_rate={rate:g}"
        if rows.setdefault(named or name, (setting, named))[0] is not setting:
            logger.warning("The search for %s ended in a setting that is compared already.", label)
    for seed in range(comparison.seeds):
        runs += [RunSpec(setting.applied(config, seed=seed), label=named) for setting, named in rows.values()]
        if config.with_columns:
            label = WITHOUT + ", ".join(config.with_columns)
            runs.append(RunSpec(own.applied(config, seed=seed, with_columns=None), label=label))
        plain = replace(config, method=REFERENCE, options={}, seed=seed)
        runs += [RunSpec(plain, baseline=name) for name in comparison.baselines]
    return runs


# The search of settings, by optuna -----------------------------------------------------------------------------------


def choose(trials: Sequence[Trial]) -> MethodSetting:
    """Choose the first setting, which is the default, unless another is better by more than one standard error.

    The standard error is that of the mean difference, paired by fold; of one fold there is none, and the best is taken.
    Of several settings one may pass by luck: of eight equally good ones with three folds in 58 % of simulated searches.
    Settings that failed are not chosen, and folds in which the default failed do not count.
    """
    default, *others = trials
    best, most = default, -math.inf
    for trial in others:
        pairs = zip(trial.scores, default.scores, strict=True)
        gains = [one - other for one, other in pairs if one is not None and other is not None]
        error = statistics.stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else 0.0
        if None in trial.scores or (gains and statistics.fmean(gains) <= error):
            continue
        if (mean := statistics.fmean(score for score in trial.scores if score is not None)) > most:
            best, most = trial, mean
    return best.setting


def search_settings(comparison: Comparison, perform: Callable[[list[RunSpec]], list[Event]]) -> dict[str, list[Trial]]:
    """Try up to ``trials`` settings of each method on selection rows; return them by label of the default, the first.

    They are proposed by optuna's tree-structured Parzen estimator, from the scores so far and the seed alone, so that a
    search that is begun again asks for the same runs, and finds those that are finished. A setting is trained on four
    fifths of the training rows and scored on the others, with another split in each fold. Options and learning rates
    that are given are not searched, nor are those given in other settings of the same method, so that each setting
    stays what it is compared as. One that is proposed twice is tried once. Raises AttendropError if no default can be
    trained.
    """
    try:
        import optuna
    except ImportError:
        raise AttendropError("--trials needs optuna; run `pip install 'attendrop[search]'`.") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    states, config, defaults, folds = optuna.trial.TrialState, comparison.config, comparison.methods, comparison.folds
    studies, spaces, found = {}, {}, {each.label: list[Trial]() for each in defaults}
    for default in defaults:
        alike = [each for each in defaults if each.method == default.method]
        given = {name for each in alike for name in each.options}
        given |= {"learning_rate" for each in alike if each.learning_rate}
        methods = [name.strip() for name in default.method.split("+")]
        space = {
            option if len(methods) == 1 else f"{method}.{option}": values  # the default first
            for method in methods
            for option, values in searched_values(get_method(method)).items()
        } | {"learning_rate": (1.0,)}  # as a factor of the default's
        spaces[default.label] = {name: values for name, values in space.items() if name not in given}
        sampler = optuna.samplers.TPESampler(seed=config.seed, n_startup_trials=4)
        studies[default.label] = optuna.create_study(direction="maximize", sampler=sampler)
        studies[default.label].enqueue_trial({name: values[0] for name, values in spaces[default.label].items()})
    first: dict[str, dict[str, Any]] = {}  # the metrics of the defaults
    for number in range(comparison.trials):
        # Propose a setting of each method, as a change of its default: of what that is on these data.
        proposals: dict[str, tuple[Any, MethodSetting]] = {}
        for default in defaults:
            label, rate, changed = default.label, default.learning_rate, dict[str, Any]()
            if number and (not spaces[label] or label not in first):
                continue
            proposal = studies[label].ask()
            for name, values in spaces[label].items():
                if name != "learning_rate":
                    value = proposal.suggest_categorical(name, values)
                    changed |= {name: value} if value != values[0] else {}
                elif (factor := proposal.suggest_float(name, 1 / MOST_FACTOR, MOST_FACTOR, log=True)) != 1.0:
                    rate = float(f"{first[label]['training']['learning_rate'] * factor:.3g}")
            around = given_options(default.method, first[label]["options"]) if changed else {}
            proposals[label] = proposal, MethodSetting(default.method, {**around, **default.options, **changed}, rate)
        # Score those that are new on the selection rows of each fold, and never on the evaluation rows.
        new = {label: each for label, (_, each) in proposals.items() if all(each != t.setting for t in found[label])}
        held_out = {"selection_fraction": SELECTION_FRACTION, "refit": False, "protocol": "held-out"}
        seeds = range(1_000, 1_000 + folds)  # none is the seed of a final run
        results = perform([RunSpec(each.applied(config, seed=s, **held_out)) for each in new.values() for s in seeds])
        for place, (label, setting) in enumerate(new.items()):
            runs = [result.metrics or {} for result in results[place * folds : (place + 1) * folds]]
            found[label].append(Trial(setting, [finite(run.get("selection_score")) for run in runs]))
            if number == 0 and any(runs):
                first[label] = next(filter(None, runs))
        if not first:
            raise RunsFailed(f"No run succeeded; the first error: {results[0].text}")
        for label, (proposal, setting) in proposals.items():
            known = next(trial.scores for trial in found[label] if trial.setting == setting)
            numbers = [score for score in known if score is not None]
            state = states.COMPLETE if len(numbers) == folds else states.FAIL
            studies[label].tell(proposal, statistics.fmean(numbers) if len(numbers) == folds else None, state)
    return found


# The model that is kept ----------------------------------------------------------------------------------------------


def keep_best(
    config: RunConfig, found: Answer, results: Sequence[Event], folder: Path, on_event: OnEvent
) -> tuple[str, Path, dict[str, Any] | None]:
    """Train the recommended model; return the label of its row, its folder, and which answers it accepts, if asked."""
    wanted = best_model(found, results, config, folder)
    place, kept = Path(wanted.config.output_dir), found.use or REFERENCE
    try:
        rows = fingerprint(resolve_run(wanted.config).parts)
        finished = None
        if holds_run(place, wanted.config, rows, wanted.baseline):
            with suppress(AttendropError):  # a file of it is gone
                check_whole(place)
                finished = read_metrics(place)
        same = holds_run(partial_of(place), wanted.config, rows, wanted.baseline)
        if finished is not None:
            metrics = finished
        elif wanted.baseline is None:
            metrics = train(wanted.config, resume=same, overwrite=not same)
        else:
            metrics = run_baseline(wanted.config, wanted.baseline, keep_model=True, overwrite=not same)
    except AttendropError as error:
        why = f"The answer is in {folder / 'answer.md'}, but its model could not be trained and kept: {error}"
        raise AttendropError(why) from error
    on_event(Event("finished" if finished is None else "kept", wanted, place, metrics=metrics))
    # Its card has the scores of the comparison, which are those of other models: it may be trained on their rows.
    card, told = place / CARD, list[str]()
    for each in filter(None, (found, found.ood)):
        for row in (row for row in each.rows if row.label == kept):  # none without a finite score
            spread = "" if row.std is None else f" ± {score_text(row.std, row.mean)}"
            of = "one seed" if row.n == 1 else f"{row.n} seeds, mean ± standard deviation"
            told.append(f"{each.metric} {score_text(row.mean)}{spread} ({of}) on {each.scored_on}")
    if told and card.exists():
        text = (
            f"`{kept}`: {in_markdown('; '.join(told))}. These are scores of the comparison's models, which were "
            "trained without these rows, and not of this one, which was trained in the end. They decided which model "
            "is kept, so that they are slightly optimistic."
        )
        own = card.read_text(encoding="utf-8").replace(SCORED_ONCE, "")
        write_text(card, with_section(own, "In the comparison", text))
    return kept, place, metrics.get("accept")


def best_model(answer: Answer, results: Sequence[Event], config: RunConfig, folder: Path) -> RunSpec:
    """Choose the run that gives the recommended model, or without a recommendation that of plain fine-tuning.

    It is trained on all rows, but for those that the method, the protocol or ``accept`` needs held out. A linear model
    on the frozen encoder is made by a run that fine-tunes nothing, so that it is a model of transformers. Other
    baselines are models of :mod:`attendrop.runs.inference`.
    """
    found = {method_label(each.run): (each.spec, each.metrics) for each in results if each.metrics is not None}
    spec, metrics = found[answer.use or REFERENCE]
    own, baseline = spec.config, spec.baseline
    changes: dict[str, Any] = {"test_fraction": 0.0 if config.accept is None else own.test_fraction}
    changes |= {"ood": None, "ood_column": None}
    if baseline is None:
        if own.rewarded_on == "eval" or own.protocol == "paper":  # the evaluation rows are needed
            changes = {}
        # Rows held out to choose the epoch are finally trained on.
        chooses = own.patience is not None or own.selection_fraction or own.calibrate
        changes |= {"refit": None} if chooses else {"selection_fraction": 0.0, "refit": False}
        changes["options"] = metrics["options"]  # also what the data of the comparison's runs decided
    else:
        changes |= {"lora": None, "patience": None, "selection_fraction": 0.0, "refit": False, "protocol": "held-out"}
    frozen = baseline == FROZEN and resolve_run(config).task.type.one_vector and is_encoder(load_config(own.model))
    if frozen and trained_pooling(own.model) != "cls":  # no class of transformers reads that as it is
        changes |= {"max_steps": 0, "head_init": "linear-probe", "pooling": "mean"}
        baseline = None
    changes |= {"accept": config.accept, "seed": config.seed, "output_dir": str(folder / BEST)}
    return RunSpec(replace(own, **changes), baseline, keep_model=True)
