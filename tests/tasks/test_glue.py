"""GLUE: the official files, the hub, and broken files."""

from collections.abc import Callable
from pathlib import Path

import pytest
from datasets import ClassLabel, Dataset, Features, Value

from attendrop.errors import AttendropError
from attendrop.tasks.registry import GLUE, get_task, load_task

ROWS = {
    "cola": ("CoLA/train.tsv", "src\t1\t\tIt works.\nsrc\t0\t*\tIt work.\n"),
    "sst2": ("SST-2/train.tsv", "sentence\tlabel\nIt works. \t1\nIt fails. \t0\n"),
    "mrpc": ("MRPC/train.tsv", "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t5\t6\tA\tB\n0\t7\t8\tC\tD\n"),
    "stsb": (
        "STS-B/train.tsv",
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
        "0\tg\tf\ty\t1\ts\ts\tA\tB\t5.000\n1\tg\tf\ty\t1\ts\ts\tC\tD\t0.25\n",
    ),
    "qqp": (
        "QQP/train.tsv",
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n8\t1\t2\tA\tB\t1\n9\t3\t4\tC\tD\t0\n",
    ),
    "mnli": (
        "MNLI/train.tsv",
        "index\tpromptID\tgenre\tsentence1\tsentence2\tlabel1\tgold_label\n"
        "0\tp\tg\tA\tB\tx\tcontradiction\n1\tp\tg\tC\tD\tx\tentailment\n",
    ),
    "qnli": ("QNLI/train.tsv", "index\tquestion\tsentence\tlabel\n0\tA\tB\tnot_entailment\n1\tC\tD\tentailment\n"),
    "rte": ("RTE/train.tsv", "index\tsentence1\tsentence2\tlabel\n0\tA\tB\tnot_entailment\n1\tC\tD\tentailment\n"),
    "wnli": ("WNLI/train.tsv", "index\tsentence1\tsentence2\tlabel\n0\tA\tB\t1\n1\tC\tD\t0\n"),
}
LABELS = {"cola": [1, 0], "sst2": [1, 0], "mrpc": [1, 0], "stsb": [5.0, 0.25], "qqp": [1, 0], "mnli": [2, 0]}

RTE_HEADER = "index\tsentence1\tsentence2\tlabel\n"


@pytest.fixture(autouse=True)
def _without_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ATTENDROP_DATA", raising=False)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    def write_file(name: str, text: str) -> Path:
        path = tmp_path / "glue" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
        return path

    return write_file


@pytest.mark.parametrize("name", GLUE)
def test_official_format(name: str, write: Callable[[str, str], Path]) -> None:
    path = write(*ROWS[name])
    data = load_task(name, data_dir=path.parents[2], splits=["train"])
    train = data.splits["train"]
    assert train["label"] == LABELS.get(name, [1, 0])
    assert train["index"] == ([8, 9] if name == "qqp" else [0, 1])
    assert ("text_pair" in train.column_names) == (len(data.task.text_columns) == 2)
    assert data.source == f"local folder {path.parent}"


@pytest.mark.parametrize(
    ("name", "file", "text"),
    [
        ("cola", "CoLA/test.tsv", "index\tsentence\n0\tA\n1\tB\n"),
        ("mnli", "MNLI/test_matched.tsv", "index\tgenre\tsentence1\tsentence2\n0\tg\tA\tC\n1\tg\tB\tD\n"),
        ("rte", "RTE/test.tsv", "index\tsentence1\tsentence2\tlabel\n0\tA\tC\tentailment\n1\tB\tD\tentailment\n"),
    ],
)
def test_test_files_have_no_labels(name: str, file: str, text: str, write: Callable[[str, str], Path]) -> None:
    test = load_task(name, data_dir=write(file, text).parents[2], splits=["test"]).splits["test"]
    assert "label" not in test.column_names and test["text"] == ["A", "B"] and test["index"] == [0, 1]


def test_lines_end_at_newlines_only_and_quotes_are_text(write: Callable[[str, str], Path]) -> None:
    texts = ['"An open quote', "one\u2028line\x85 \x0b \x1c of\rtext", 'a ""b"" c', "'"]
    path = write("CoLA/dev.tsv", "".join(f"src\t1\t\t{text}\r\n" for text in texts))
    assert load_task("cola", data_dir=path.parents[2], splits=["dev"]).splits["dev"]["text"] == texts


def test_mismatched_comes_with_matched(write: Callable[[str, str], Path]) -> None:
    text = ROWS["mnli"][1]
    write("MNLI/dev_mismatched.tsv", text.replace("\tA\t", "\tmismatched\t"))
    root = write("MNLI/dev_matched.tsv", text).parents[2]
    found = load_task("mnli", data_dir=root, splits=["dev"]).splits
    assert [rows["text"][0] for rows in found.values()] == ["A", "mismatched"]
    assert list(found) == ["dev", "dev_mismatched"]


def test_environment_then_hub(
    write: Callable[[str, str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(*ROWS["rte"])
    monkeypatch.setenv("ATTENDROP_DATA", str(tmp_path))
    monkeypatch.setattr("datasets.load_dataset", hub_without("wnli"))
    assert load_task("rte", splits=["train"]).source == f"local folder {tmp_path / 'glue' / 'RTE'}"
    assert load_task("cola", splits=["train"]).source == "Hugging Face hub nyu-mll/glue"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ATTENDROP_DATA", "~/glue")  # as from a file of variables, which no shell reads
    assert load_task("rte", splits=["train"]).source == f"local folder {tmp_path / 'glue' / 'RTE'}"
    with pytest.raises(
        AttendropError, match=r"wnli is not in a local folder, .* hub failed \(ConnectionError: no network"
    ):
        load_task("wnli", splits=["train"])


def hub_columns(name: str) -> tuple[str, ...]:
    return GLUE[name].of_hub.args[0]


def hub_without(missing: str) -> Callable[..., Dataset]:
    def load_dataset(repo: str, name: str, *, split: str) -> Dataset:
        assert repo == "nyu-mll/glue"
        if name == missing:
            raise ConnectionError("no network\nand much more")
        labels = Value("float32") if name == "stsb" else ClassLabel(names=get_task(name).label_names)
        columns = hub_columns(name)
        features = Features({column: Value("string") for column in columns} | {"label": labels, "idx": Value("int32")})
        label = [-1, -1] if split.startswith("test") else [1, 0]
        rows = {column: [f"{split} {column}", "B"] for column in columns} | {"label": label, "idx": [4, 5]}
        return Dataset.from_dict(rows, features=features)

    return load_dataset


@pytest.mark.parametrize("name", ["stsb", "mnli"])
def test_hub(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.load_dataset", hub_without("none"))
    splits = load_task(name, splits=["dev", "test"]).splits
    matched = "_matched" if name == "mnli" else ""
    assert splits["dev"]["text"] == [f"validation{matched} {hub_columns(name)[0]}", "B"]
    assert splits["dev"]["label"] == [1, 0] and splits["dev"]["index"] == [4, 5]
    assert splits["test"]["text"][0].startswith(f"test{matched} ") and "label" not in splits["test"].column_names
    if name == "mnli":
        assert list(splits) == ["dev", "test", "dev_mismatched", "test_mismatched"]
        assert splits["dev_mismatched"]["text"][0] == "validation_mismatched premise"
        assert splits["test_mismatched"]["text"][0] == "test_mismatched premise"
        assert "label" not in splits["test_mismatched"].column_names


BAD_FILES = [
    (RTE_HEADER + "0\tA\tB\tentailment\n" * 19 + "19\tA\tentailment\n", "line 21: 3 fields instead of 4; 1 of 20 rows"),
    (RTE_HEADER + "0\tA\tB\tentailment\n1\tA\t \tentailment\n", "train.tsv, line 3: an empty text or label"),
    (RTE_HEADER + "0\tA\tB\tEntailment\n", "train.tsv, line 2: the label 'Entailment' is not one of entailment"),
    (RTE_HEADER, "train.tsv has no rows."),
    ("index\tsentence1\tsentence2\n0\tA\tB\n", "train.tsv has no column 'label'; its header is 'index', 'sent"),
]


@pytest.mark.parametrize(("text", "message"), BAD_FILES)
def test_bad_file(text: str, message: str, write: Callable[[str, str], Path]) -> None:
    path = write("RTE/train.tsv", text)
    with pytest.raises(AttendropError) as caught:
        load_task("rte", data_dir=path.parents[2], splits=["train"])
    assert message in str(caught.value)


@pytest.mark.parametrize("score", ["high", "5.1"])
def test_bad_score(score: str, write: Callable[[str, str], Path]) -> None:
    path = write("STS-B/train.tsv", ROWS["stsb"][1].replace("0.25", score))
    with pytest.raises(AttendropError, match=f"line 3: the score '{score}' is not a number from 0 to 5"):
        load_task("stsb", data_dir=path.parents[2], splits=["train"])


def test_a_few_broken_rows_are_left_out(write: Callable[[str, str], Path]) -> None:
    rows = [f"{i}\tA\tB\tentailment\n" for i in range(2000)]
    rows[7], rows[9] = "7\tA\tB\n", "9\t\tB\tentailment\n"
    path = write("RTE/train.tsv", RTE_HEADER + "".join(rows))
    with pytest.warns(UserWarning, match="skipped 2 broken rows of 2000, the first at line 9: 3 fields instead of 4"):
        train = load_task("rte", data_dir=path.parents[2], splits=["train"]).splits["train"]
    assert len(train) == 1998 and train["index"][7] == 8
    write(
        "RTE/test.tsv",
        "index\tsentence1\tsentence2\n" + "".join(rows).replace("\tentailment", "").replace("7\tA\tB", "7\tA", 1),
    )
    with pytest.raises(AttendropError, match=r"test\.tsv, line 9: 2 fields instead of 3"):
        load_task("rte", data_dir=path.parents[2], splits=["test"])


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("rtee", {}, "there is no task 'rtee'; did you mean 'rte'?"),
        ("rte", {"splits": ["tran"]}, "rte has no split 'tran'; did you mean 'train'?"),
        ("rte", {"splits": ["test"]}, "has no file of rte test, such as 'test.tsv'."),
        ("sst2", {}, "holds neither 'glue/SST-2' nor 'SST-2', nor a file such as 'train.tsv'; name"),
        ("rte", {"data_dir": "nowhere"}, "the data folder 'nowhere' does not exist; name"),
    ],
)
def test_bad_request(
    name: str, options: dict[str, object], message: str, write: Callable[[str, str], Path], tmp_path: Path
) -> None:
    write(*ROWS["rte"])
    with pytest.raises(AttendropError) as caught:
        load_task(name, **{"data_dir": tmp_path} | options)  # type: ignore[arg-type]
    assert message in str(caught.value)
