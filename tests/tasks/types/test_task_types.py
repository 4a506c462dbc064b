"""Facts of each kind of task; its labels survive files, models and predictions; rows that it cannot read."""

import copy
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sacrebleu
import torch
import transformers
import transformers as hf
from helpers import tiny_translators, zoo
from torch.nn import functional
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    BertConfig,
    MarianConfig,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)

from attendrop import ADDrop, regularize
from attendrop.errors import AttendropError
from attendrop.runs.inference import predict_outputs
from attendrop.runs.model_card import usage_of
from attendrop.studies.answer import span_of
from attendrop.tasks.base import TASK_TYPES, Task, encode_columns, task_type_of_model
from attendrop.tasks.custom_files import load_files, stream_file
from attendrop.tasks.table import LABEL_TYPES, BadRows, label_names
from attendrop.tasks.types.base import TaskType, row_array
from attendrop.tasks.types.classification import Classification, MultiLabel, MultipleChoice, Regression
from attendrop.tasks.types.linear_models import fit_logistic_regressions
from attendrop.tasks.types.model_classes import choice_class
from attendrop.tasks.types.token_classification import EntitySpans, TokenClassification
from attendrop.tasks.types.translation import Translation, WrittenText

YES_NO = Classification(("no", "yes"))
EXAMPLES = {
    "classification": YES_NO,
    "multi-label-classification": MultiLabel(("art", "sport")),
    "regression": Regression(),
    "entity-spans": EntitySpans(("O", "B-PER", "I-PER")),
    "token-classification": TokenClassification(("O", "B-PER")),
    "multiple-choice": MultipleChoice(("A", "B")),
    "translation": Translation(),
}
# Configurations of models of each kind, where BERT has none.
CONFIGS: dict[str, type[PreTrainedConfig]] = {"translation": MarianConfig}


@pytest.mark.parametrize("kind", TASK_TYPES, ids=lambda kind: kind.kind)
def test_every_head_is_complete(kind: type[TaskType]) -> None:
    task_type = EXAMPLES[kind.kind]
    assert type(task_type) is kind and kind(task_type.label_names) == task_type
    assert kind.label_type in LABEL_TYPES
    assert set(task_type.default_metrics) <= set(task_type.metrics)
    assert task_type.metrics[task_type.default_metrics[0]].selects
    assert set(task_type.metric_aliases.values()) <= set(task_type.metrics)
    spans = {name: metric.span for name, metric in task_type.metrics.items() if metric.selects}
    assert {name: span_of(name) for name in spans} == spans  # answers know a metric by its name
    assert task_type.fitted_at is None or task_type.fitted_at[0] in task_type.metrics
    auto, config = getattr(transformers, task_type.auto_class), CONFIGS.get(kind.kind, BertConfig)()
    own = task_type.model_class(config)
    assert own is auto or issubclass(own, auto._model_mapping[type(config)])
    assert kind.least_inputs <= kind.most_inputs and set(kind.inputs_of(kind.most_inputs)) <= set(kind.inputs)
    compile(usage_of(task_type, 2, 128), "card", "exec")


@pytest.mark.parametrize("task_type", EXAMPLES.values(), ids=EXAMPLES)
def test_a_saved_model_tells_its_head(task_type: TaskType, tmp_path: Path) -> None:
    config = CONFIGS.get(task_type.kind, BertConfig)()
    task_type.configure(config)
    config.save_pretrained(tmp_path)
    saved = type(config).from_pretrained(tmp_path)
    assert task_type_of_model(saved) == task_type
    assert saved.problem_type == task_type.problem_type
    assert task_type.generates or saved.num_labels == len(task_type.label_names or task_type.output_names)


# Labels as they are written in files, and the outputs of a model that predicts them.
PERFECT: dict[str, tuple[list[Any], list[Any]]] = {
    "classification": (["yes", "no", "yes"], [[0, 1], [1, 0], [0, 1]]),
    "multi-label-classification": ([["art"], [], ["art", "sport"]], [[1, -1], [-1, -1], [1, 1]]),
    "regression": (["1.5", "-2", "0"], [[1.5], [-2], [0]]),
    "entity-spans": (
        [[{"start": 0, "end": 4, "label": "PER", "text": "Anna"}], []],
        [np.eye(3)[[1, 0]], np.eye(3)[[0]]],
    ),
    "token-classification": ([["B-PER", "O"], ["O"]], [np.eye(2)[[1, 0]], np.eye(2)[[0]]]),
    "multiple-choice": (["B", "A", "C"], [np.eye(2)[1], np.eye(2)[0], np.eye(3)[2]]),
    "translation": (["un doi trei mare", "si un caine"], [WrittenText("un doi trei mare"), WrittenText("si un caine")]),
}

# Kinds whose outputs for a row are no fixed number of numbers.
OBJECTS = ("entity-spans", "token-classification", "multiple-choice", "translation")


def outputs_of(task_type: TaskType) -> np.ndarray[Any, Any]:
    perfect = PERFECT[task_type.kind][1]
    return row_array(perfect) if task_type.kind in OBJECTS else np.array(perfect, dtype=float)


@pytest.mark.parametrize("task_type", EXAMPLES.values(), ids=EXAMPLES)
def test_labels_survive_a_perfect_model(task_type: TaskType) -> None:
    written, _ = PERFECT[task_type.kind]
    texts = ["Anna left", "left"] if task_type.kind == "entity-spans" else [""] * len(written)
    labels = [task_type.read_label(value, [text] if text else None) for text, value in zip(texts, written, strict=True)]
    outputs = outputs_of(task_type)
    assert task_type.decode(task_type.checked(outputs)) == labels
    rows = task_type.prediction_rows(outputs, {"text": texts}, probabilities=False)
    assert [next(iter(row)) for row in rows] == [task_type.answer_column] * len(written)
    assert str(rows[0][task_type.answer_column]) in str(written[0])
    best = 0 if task_type.default_metrics[0].startswith("neg_") else 1
    metric, references = task_type.metrics[task_type.default_metrics[0]], task_type.references({"labels": labels})
    assert metric.score(references, outputs) == pytest.approx(best)


DIVERGED: dict[str, Any] = {
    "entity-spans": np.array([[np.nan, 0, 0]]),
    "token-classification": np.array([[np.nan, 0]]),
    "multiple-choice": np.array([np.nan, 0.0]),
    "translation": WrittenText("a", math.nan, 1),
}


@pytest.mark.parametrize("task_type", EXAMPLES.values(), ids=EXAMPLES)
def test_outputs_of_a_diverged_model_are_refused(task_type: TaskType) -> None:
    outputs = outputs_of(task_type)
    outputs[0] = DIVERGED.get(task_type.kind, np.nan)
    with pytest.raises(AttendropError, match=f"NaN or infinite for 1 of {len(outputs)} rows: training diverged"):
        task_type.checked(outputs)


def test_translators_are_recognized_but_shown_as_classifiers() -> None:
    config = MarianConfig(architectures=["MarianMTModel"])
    assert task_type_of_model(config) == Translation()
    assert task_type_of_model(config, command="attend").kind == "classification"


Record = dict[str, Any]
LABELS: tuple[Record, list[Record]] = (
    {"label_type": "labels", "text_columns": ["x"]},
    [{"x": "a", "label": ["art"]}, {"x": "a", "label": ["music"]}],
)
TAGS = {"label_type": "tags", "text_columns": ["x"]}, [{"x": ["a", "cat"], "label": ["O", "B-X"]}]
CHOICES = (
    {"label_type": "choice", "text_columns": ["q", "a", "b", "c"]},
    [{"q": "how?", "a": "x", "b": "y", "c": "z", "label": "A"}],
)
TRANSLATIONS = {"label_type": "text", "text_columns": ["x"]}, [{"x": "a", "label": "b"}]


def question(a: Any, b: Any, c: Any, label: Any, q: Any = "why?") -> Record:
    return {"q": q, "a": a, "b": b, "c": c, "label": label}


BAD: list[tuple[tuple[Record, list[Record]], Record, str]] = [
    (LABELS, {"x": "a", "label": None}, "column 'label': the labels are missing; write an empty list"),
    (LABELS, {"x": "a", "label": 0.5}, "0.5 is not a list of labels"),
    (TAGS, {"x": ["a"], "label": ["O", "O"]}, ": 1 words, but 2 tags; give one for each word"),
    (TAGS, {"x": ["a", " "], "label": ["O", "O"]}, ", column 'x': word 2 of 2 is empty"),
    (CHOICES, question("x", "", "z", "A"), ": choice 2 of 3 is empty."),
    (CHOICES, question("x", "y", "", "C"), ": the label 'C' is none of the 2 choices, from A to B."),
    (CHOICES, question("x", "y", "z", -1), "the label '-1' is neither the letter of a choice nor its number, from 0."),
    (CHOICES, question("x", "y", "z", 1), "the label '1' is not written as those of training, with letters."),
    (TRANSLATIONS, {"x": "a", "label": " "}, "column 'label': the text is empty"),
    (TRANSLATIONS, {"x": "a\ud800", "label": "b"}, "column 'x': it has a NUL character, or half of a surrogate pair"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "record", "message"), BAD)
def test_a_bad_row_is_named_or_skipped(
    kind: tuple[Record, list[Record]], record: Record, message: str, tmp_path: Path
) -> None:
    options, good = kind
    given = options | {"label_column": "label"}
    file = tmp_path / "own.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in (*good, record)))
    with pytest.raises(AttendropError) as refused:
        load_files(train_file=file, **given)
    assert f"own.jsonl, line {len(good) + 1}" in str(refused.value) and message in str(refused.value)
    data = load_files(train_file=file, **given, skip_bad_rows=True)
    assert len(data.splits["train"]) == len(good) and len(data.skipped) == 1


LABEL_HEAD = MultiLabel(("art", "music", "sport"))


EXPECTED = [[1, 0, 1], [0, 1, 0], [0, 0, 0], [1, 1, 1]]


def test_names_have_separators_in_text(tmp_path: Path) -> None:
    labels = ["['sport', 'art']", "music", "", "art, music,sport"]
    assert [label_names(each) for each in ("a;b, c;", "a|b", "a\nb", "a、b", "a, b")] == [
        ["a", "b, c"], *[["a", "b"]] * 4
    ]  # fmt: skip
    rows = ["text,topics", *(f'text {number},"{label}"' for number, label in enumerate(labels))]
    (tmp_path / "a.csv").write_text("\n".join(rows))
    given: dict[str, Any] = {"text_columns": ("text",), "label_column": "topics", "label_type": "labels"}
    found = load_files(train_file=tmp_path / "a.csv", **given)
    assert found.task.label_names == LABEL_HEAD.label_names
    assert found.splits["train"]["label"][:] == EXPECTED


COLUMNS = "text,sport,music,art\nfirst,1,0,1.0\nsecond,no,YES,No\nthird,0,0,0\nfourth,true,1,1\n"


def test_labels_have_a_column_each(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(COLUMNS)
    (tmp_path / "map.csv").write_text("label,meaning\nart,arts\n")
    given: dict[str, Any] = {"text_columns": ("text",), "label_column": "sport, music,art"}
    found = load_files(train_file=tmp_path / "a.csv", **given)
    assert found.task.type.kind == "multi-label-classification" and found.task.label_names == LABEL_HEAD.label_names
    assert found.splits["train"]["label"][:] == EXPECTED
    mapped = load_files(train_file=tmp_path / "a.csv", label_map=tmp_path / "map.csv", **given)
    assert mapped.task.label_names == ("arts", "music", "sport")
    (chunk,) = stream_file(tmp_path / "a.csv", task_type=LABEL_HEAD, size=9, bad=BadRows(), **given)
    assert chunk.columns["label"] == EXPECTED


def test_a_column_of_a_label_says_yes_or_no(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(COLUMNS + "fifth,1,,0\n")
    given: dict[str, Any] = {"train_file": tmp_path / "a.csv", "text_columns": ("text",)}
    with pytest.raises(AttendropError, match=r"line 6, column 'music': '' does not say .*; write 0 or 1"):
        load_files(label_column="sport,music,art", **given)
    found = load_files(label_column="sport,music,art", skip_bad_rows=True, **given)
    assert found.splits["train"]["label"][:] == EXPECTED and [row.place for row in found.skipped] == ["line 6"]
    with pytest.raises(AttendropError, match=r"no column 'arts'; did you mean 'art'"):
        load_files(label_column="sport,music,arts", **given)


def test_a_linear_model_of_each_label() -> None:
    draw = np.random.default_rng(0)
    features = draw.normal(size=(60, 4))
    targets = np.stack([features[:, 0] > 0, features[:, 1] > 0.5, np.zeros(60), np.ones(60)], axis=1).astype(float)
    fit = fit_logistic_regressions(features, targets, 4)
    assert fit is not None and fit.score[1] > 0.95
    outputs = fit.outputs(features)
    assert ((outputs[:, :2] > 0) == targets[:, :2]).mean() > 0.9
    assert outputs[0, 2] == pytest.approx(math.log(0.5 / 60.5)) and outputs[0, 3] == pytest.approx(math.log(60.5 / 0.5))
    assert fit_logistic_regressions(features, targets[:, 2:], 2) is None


CHOICE_HEAD = MultipleChoice(("A", "B", "C"))
CHOICE_TASK = Task("files", CHOICE_HEAD, ("question", "choices"), "accuracy", "a test")
QUESTIONS = ["the cat sees", "a dog hears the red bird", "the bird"]
CHOICE_TEXTS = [["a dog", "not a bird", "the"], ["cat", "the good red cat", "a", "near and far"], ["bad", "good"]]


@pytest.fixture
def model() -> Any:
    return zoo.from_class("BertForMultipleChoice", zoo.ZOO["bert"].options | {"vocab_size": 60}, "sdpa")


def hiding(model: Any) -> Any:
    model.__class__ = choice_class(type(model).__name__)
    return model.train()


def batches(tokenizer: PreTrainedTokenizerBase) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """All rows as one batch, and each as a batch of its own, without padded choices."""
    columns = {"question": QUESTIONS, "choices": CHOICE_TEXTS, "label": [2, 1, 0]}
    encoded = encode_columns(columns, CHOICE_TASK, tokenizer, 32)
    rows = [{name: encoded[name][row] for name in (*tokenizer.model_input_names, "labels")} for row in range(3)]
    collate = CHOICE_HEAD.collator(tokenizer)
    return dict(collate(rows)), [dict(collate([row])) for row in rows]


def test_padded_choices_never_win_and_do_not_enter_the_loss(model: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    whole, single = batches(tokenizer)
    assert whole["input_ids"].shape[:2] == (3, 4)
    expected = [model(**row).logits[0] for row in single]  # of the class of transformers
    hiding(model)
    outputs = model(**whole)
    for logits, row in zip(outputs.logits, expected, strict=True):
        torch.testing.assert_close(logits[: len(row)], row)
        assert (logits.softmax(-1)[len(row) :] == 0).all()
    losses = [functional.cross_entropy(row, label) for row, label in zip(expected, whole["labels"], strict=True)]
    torch.testing.assert_close(outputs.loss, torch.stack(losses).mean())
    outputs.loss.backward()
    found = zoo.gradients(model)
    assert all(gradient.isfinite().all() for gradient in found.values())
    (sum(model(**row).loss for row in single) / 3).backward()
    zoo.assert_same(found, zoo.gradients(model), 1e-4)


def test_what_is_dropped_of_a_row_does_not_depend_on_the_choices_of_others(
    model: Any, tokenizer: PreTrainedTokenizerBase
) -> None:
    """A step over the rows one after the other equals one over all at once."""
    method = ADDrop(p=0.5, q=0.5, layers="all")
    hiding(model).double()
    whole, single = batches(tokenizer)
    found = []
    for micro_batches in ([whole], single):
        with regularize(model, method) as reg:
            reg.set_epoch(0)
            reg.accumulation_steps = len(micro_batches)
            for batch in micro_batches:
                (reg.loss(batch) / len(micro_batches)).backward()
        found.append(zoo.gradients(model))
    zoo.assert_same(*found, 1e-7)


def test_outputs_have_the_choices_of_their_rows(tokenizer: PreTrainedTokenizerBase) -> None:
    raw = CHOICE_HEAD.concatenate([np.array([[1.0, 2.0, 0.0]]), np.array([[0.0, 1.0, 2.0, 3.0], [3.0, 4.0, 9.0, 9.0]])])
    encoded = {"input_ids": [[[1]] * 3, [[1]] * 4, [[1]] * 2]}
    outputs = CHOICE_HEAD.checked(CHOICE_HEAD.row_outputs(raw, encoded, tokenizer))
    assert CHOICE_HEAD.decode(outputs) == [1, 3, 1]
    rows = CHOICE_HEAD.prediction_rows(outputs, probabilities=True)
    assert [row["label"] for row in rows] == ["B", "D", "B"]  # one more than training had
    assert rows[2]["probabilities"] == pytest.approx([0.268941, 0.731059])


def load_choices(path: Path, columns: str, *rows: str) -> Any:
    path.write_text("\n".join([*rows, ""]))
    given: dict[str, Any] = {"text_columns": columns.split(","), "label_column": "label", "label_type": "choice"}
    return load_files(train_file=path, **given)


def test_choices_in_a_list_with_numbers_as_labels(tmp_path: Path) -> None:
    rows = ["q,all,label", 'why?,"[""x"", 5, ""z""]",1.0', 'how?,"[""x"", ""y""]",0']
    data = load_choices(tmp_path / "own.csv", "q,all", *rows)
    assert data.splits["train"]["choices"][:] == [["x", "5", "z"], ["x", "y"]]
    assert data.splits["train"]["label"][:] == [1, 0] and data.task.label_names == ("0", "1")
    records = [{"q": "why?", "all": ["x", "y"], "label": "B"}, {"q": "how?", "all": ["x", "y", "z"], "label": "A"}]
    data = load_choices(tmp_path / "own.jsonl", "q,all", *map(json.dumps, records))
    assert data.splits["train"]["label"][:] == [1, 0]
    with pytest.raises(AttendropError, match="no label is 0, and choices count from 0"):
        load_choices(tmp_path / "own.csv", "q,a,b,c", "q,a,b,c,label", "why?,x,y,z,1", "how?,x,y,z,2")


# Translation ----------------------------------------------------------------------------------------------------------


TASK = Task("files", Translation(max_new_tokens=6), ("text",), "bleu", "", ("chrf", "neg_log_loss"))
PAIRS = [tiny_translators.pair(number) for number in range(5)]


@pytest.fixture(scope="module", params=["marian", "t5"])
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    folder = tmp_path_factory.mktemp(request.param)
    getattr(tiny_translators, f"save_tiny_{request.param}")(folder)
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    TASK.type.prepare(model, tokenizer)
    return model.eval(), tokenizer


def encoded(tokenizer: Any, max_length: int = 32) -> dict[str, list[Any]]:
    texts, labels = map(list, zip(*PAIRS, strict=True))
    return encode_columns({"text": texts, "label": labels}, TASK, tokenizer, max_length)


def test_outputs_are_those_of_each_row_alone(loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    found = predict_outputs(model, tokenizer, TASK.type, encoded(tokenizer), 3, "cpu")
    for (text, label), output in zip(PAIRS, found, strict=True):
        batch = tokenizer(text, text_target=label, return_tensors="pt")
        labels = batch["labels"]
        with torch.no_grad():
            loss = model(**batch).loss
            ids = model.generate(batch["input_ids"], max_new_tokens=6)[0]
        assert output.log_likelihood == pytest.approx(-float(loss) * labels.numel(), rel=1e-4)
        assert output.tokens == labels.numel()
        assert output.text == tokenizer.decode(ids, skip_special_tokens=True)


def test_scores_are_those_of_sacrebleu_and_of_the_loss() -> None:
    written = ["un caine mare si un doi", "trei un mare pisica si doi", ""]
    references = ["un caine mare si doi", "trei un mare pisica si doi trei", "un"]
    outputs = row_array([WrittenText(text, -3.0 * n, n) for n, text in enumerate(written, 1)])
    scores = {name: metric.score(row_array(references), outputs) for name, metric in TASK.type.metrics.items()}
    assert scores["bleu"] == pytest.approx(sacrebleu.corpus_bleu(written, [references]).score / 100)
    assert scores["chrf"] == pytest.approx(sacrebleu.corpus_chrf(written, [references]).score / 100)
    assert 0.3 < scores["bleu"] < scores["chrf"] < 1
    assert scores["neg_log_loss"] == pytest.approx(-3)
    assert scores["perplexity"] == pytest.approx(np.exp(3))


def test_a_prefix_comes_before_each_text(loaded: tuple[Any, Any]) -> None:
    tokenizer = loaded[1]
    task_type = Translation(source_prefix="one two ")
    assert task_type.tokenize({"text": ["cat"]}, tokenizer, 32)["input_ids"] == tokenizer(["one two cat"])["input_ids"]
    assert "'one two ' + text" in usage_of(task_type, 1, 32)
    assert "generate(**inputs, max_new_tokens=128)" in usage_of(task_type, 1, 32, stock=False)


def multilingual(kind: str) -> tuple[Any, Any]:
    """A model and a tokenizer of the first mBART, whose labels end with the language, or of mBART-50."""
    letters: list[Any] = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -1.0), ("a", -2.0)]
    tokenizer = getattr(hf, kind)(vocab=letters, src_lang="en_XX", tgt_lang="ro_RO")
    config = hf.MBartConfig(
        vocab_size=len(tokenizer), d_model=8, encoder_layers=1, decoder_layers=1, encoder_attention_heads=1,
        decoder_attention_heads=1, encoder_ffn_dim=8, decoder_ffn_dim=8,
    )  # fmt: skip
    return hf.MBartForConditionalGeneration(config), tokenizer


@pytest.mark.parametrize(
    ("kind", "token"), [("MBartTokenizer", "decoder_start_token_id"), ("MBart50Tokenizer", "forced_bos_token_id")]
)
def test_generation_begins_with_the_target_language(kind: str, token: str, tmp_path: Path) -> None:
    model, tokenizer = multilingual(kind)
    task_type = Translation(source_lang="tr_TR", target_lang="en_XX", max_new_tokens=4)
    task_type.prepare(model, tokenizer)
    turkish, english = tokenizer.convert_tokens_to_ids(["tr_TR", "en_XX"])
    assert getattr(model.generation_config, token) == english
    encoded = task_type.tokenize({"text": ["a"], "label": ["a"]}, tokenizer, 16)
    assert turkish in encoded["input_ids"][0] and english in encoded["target_ids"][0]
    generated = model.generate(**tokenizer("a", return_tensors="pt"))[0].tolist()
    assert english in generated[:2]
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert (again.src_lang, again("a")["input_ids"]) == ("tr_TR", tokenizer("a")["input_ids"])


def test_a_multilingual_model_without_a_target_is_refused() -> None:
    """Labels began with the language of the texts, and translations with another."""
    for kind in ("MBartTokenizer", "MBart50Tokenizer"):
        model, tokenizer = multilingual(kind)
        tokenizer.tgt_lang = None
        Translation().prepare(model, tokenizer)
        assert Translation().tokenize({"text": ["a"]}, tokenizer, 16)  # it predicts as its files say
        with pytest.raises(AttendropError, match="has language codes, and its files name no target; set target_lang"):
            Translation().tokenize({"text": ["a"], "label": ["a"]}, tokenizer, 16)
    fsmt: Any = type("FSMTTokenizer", (), {"__call__": lambda *_, **__: {}})()
    with pytest.raises(AttendropError, match="makes no inputs of labels, and can only predict"):
        Translation().tokenize({"text": ["a"], "label": ["a"]}, fsmt, 16)


def test_the_tokens_of_languages_may_be_other_than_their_codes(tmp_path: Path) -> None:
    """Those of M2M100 are ``__en__``, also where there is a word ``en``."""
    sentencepiece = pytest.importorskip("sentencepiece")
    (tmp_path / "text.txt").write_text("the cat sat\na dog en tr\n" * 20)
    how = {"vocab_size": 40, "model_type": "unigram", "hard_vocab_limit": False, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(input=f"{tmp_path}/text.txt", model_prefix=f"{tmp_path}/m", **how)
    pieces = sentencepiece.SentencePieceProcessor(f"{tmp_path}/m.model")
    names = ["<s>", "<pad>", "</s>", "<unk>", *(pieces.id_to_piece(n) for n in range(3, len(pieces))), "en", "tr"]
    (tmp_path / "vocab.json").write_text(json.dumps({name: number for number, name in enumerate(dict.fromkeys(names))}))
    tokenizer = hf.M2M100Tokenizer(f"{tmp_path}/vocab.json", f"{tmp_path}/m.model")
    model = multilingual("MBartTokenizer")[0]
    Translation(source_lang="tr", target_lang="en").prepare(model, tokenizer)
    turkish, english = tokenizer.convert_tokens_to_ids(["__tr__", "__en__"])
    assert model.generation_config.forced_bos_token_id == english
    encoded = Translation(target_lang="en").tokenize({"text": ["a"], "label": ["a"]}, tokenizer, 16)
    assert (encoded["input_ids"][0][0], encoded["target_ids"][0][0]) == (turkish, english)
    with pytest.raises(AttendropError, match="has no language code '__en__'; it has af, am, "):
        Translation(target_lang="__en__").prepare(model, tokenizer)


@pytest.mark.parametrize("kind", [Classification(("no", "yes")), MultiLabel(("a", "b")), Regression()])
def test_the_end_of_a_text_that_is_written_in_it_is_text(kind: TaskType, loaded: tuple[Any, Any]) -> None:
    """Classifiers with a decoder ended training at </s> of HTML: all rows need as many ends."""
    tokenizer = copy.deepcopy(loaded[1])
    end = tokenizer.eos_token_id
    kind.prepare(loaded[0], tokenizer)
    found = kind.tokenize({"text": [f"the cat {tokenizer.eos_token} dog", "the cat"]}, tokenizer, 16)["input_ids"]
    assert [row.count(end) for row in found] == [1, 1]


def test_nothing_is_sampled_and_generation_ends_at_the_last_position(tmp_path: Path) -> None:
    sizes = {"d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8}
    config = hf.BartConfig(vocab_size=50, max_position_embeddings=16, **sizes)
    config.encoder_attention_heads = config.decoder_attention_heads = 2
    model = hf.BartForConditionalGeneration(config).eval()
    model.generation_config = hf.GenerationConfig(do_sample=True, temperature=0.7, top_p=0.9, min_p=0.1)
    Translation().prepare(model, None)  # type: ignore[arg-type]
    assert (model.generation_config.do_sample, model.generation_config.max_new_tokens) == (False, 8)
    model.save_pretrained(tmp_path)  # transformers refuses options that have no effect
    with pytest.raises(AttendropError, match="max_new_tokens=16 is too much: BartForConditionalGeneration has 16 pos"):
        Translation(max_new_tokens=16).prepare(model, None)  # type: ignore[arg-type]


def test_batches_of_shorter_texts_are_padded_with_no_token() -> None:
    found = TASK.type.concatenate([np.array([[-1.0, 2, 5, 6]]), np.array([[-2.0, 1, 5]])])
    assert found[1].tolist() == [-2, 1, 5, -100]
