"""Named tasks: rows of their official files and of the hub, where files are found, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from datasets import ClassLabel, Dataset, Features, List, Value

from attendrop.errors import AttendropError
from attendrop.tasks.registry import get_task, load_task, task_files

# Files of the official formats, and their labels.
ROWS: dict[str, tuple[str, str, list[float]]] = {
    "cola": ("CoLA/train.tsv", "src\t1\t\tIt works.\nsrc\t0\t*\tIt work.\n", [1, 0]),
    "sst2": ("SST-2/train.tsv", "sentence\tlabel\nIt works. \t1\nIt fails. \t0\n", [1, 0]),
    "mrpc": (
        "MRPC/train.tsv",
        "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t5\t6\tA\tB\n0\t7\t8\tC\tD\n",
        [1, 0],
    ),
    "stsb": (
        "STS-B/train.tsv",
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
        "0\tg\tf\ty\t1\ts\ts\tA\tB\t5.000\n1\tg\tf\ty\t1\ts\ts\tC\tD\t0.25\n",
        [5.0, 0.25],
    ),
    "qqp": (
        "QQP/train.tsv",
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n8\t1\t2\tA\tB\t1\n9\t3\t4\tC\tD\t0\n",
        [1, 0],
    ),
    "mnli": (
        "MNLI/train.tsv",
        "index\tpromptID\tgenre\tsentence1\tsentence2\tlabel1\tgold_label\n"
        "0\tp\tg\tA\tB\tx\tcontradiction\n1\tp\tg\tC\tD\tx\tentailment\n",
        [2, 0],
    ),
    "rte": (
        "RTE/train.tsv",
        "index\tsentence1\tsentence2\tlabel\n0\tA\tB\tnot_entailment\n1\tC\tD\tentailment\n",
        [1, 0],
    ),
}

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


@pytest.mark.parametrize("name", ROWS)
def test_official_format(name: str, write: Callable[[str, str], Path]) -> None:
    file, text, labels = ROWS[name]
    path = write(file, text)
    data = load_task(name, data_dir=path.parents[2], splits=["train"])
    train = data.splits["train"]
    assert train["label"] == labels
    assert train["index"] == ([8, 9] if name == "qqp" else [0, 1])
    assert ("text_pair" in train.column_names) == (len(data.task.text_columns) == 2)
    assert data.source == f"local folder {path.parent}"


def test_lines_end_at_newlines_only_and_quotes_are_text(write: Callable[[str, str], Path]) -> None:
    texts = ['"An open quote', "one\u2028line\x85 \x0b \x1c of\rtext", 'a ""b"" c', "'"]
    path = write("CoLA/dev.tsv", "".join(f"src\t1\t\t{text}\r\n" for text in texts))
    assert load_task("cola", data_dir=path.parents[2], splits=["dev"]).splits["dev"]["text"] == texts


def test_mismatched_comes_with_matched(write: Callable[[str, str], Path]) -> None:
    for split, text in (("dev", ROWS["mnli"][1]), ("test", "index\tsentence1\tsentence2\n0\tA\tB\n")):
        write(f"MNLI/{split}_mismatched.tsv", text.replace("\tA\t", "\tmismatched\t"))
        root = write(f"MNLI/{split}_matched.tsv", text).parents[2]
        found = load_task("mnli", data_dir=root, splits=[split]).splits
        assert [rows["text"][0] for rows in found.values()] == ["A", "mismatched"]
        assert list(found) == [split, f"{split}_mismatched"]


def test_environment_then_hub(
    write: Callable[[str, str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_network(*args: Any, **options: Any) -> Dataset:
        raise ConnectionError("no network\nand much more")

    write(*ROWS["rte"][:2])
    monkeypatch.setattr("datasets.load_dataset", no_network)
    monkeypatch.setenv("HOME", str(tmp_path))
    for root in (str(tmp_path), "~/glue"):  # as from a file of variables, which no shell reads
        monkeypatch.setenv("ATTENDROP_DATA", root)
        assert load_task("rte", splits=["train"]).source == f"local folder {tmp_path / 'glue' / 'RTE'}"
    with pytest.raises(AttendropError, match=r"wnli is not in a local folder, .* hub failed \(ConnectionError: no net"):
        load_task("wnli", splits=["train"])


BAD_FILES = [
    (RTE_HEADER + "0\tA\tB\tentailment\n" * 19 + "19\tA\tentailment\n", "line 21: 3 fields instead of 4; 1 of 20 rows"),
    (RTE_HEADER + "0\tA\tB\tentailment\n1\tA\t \tentailment\n", "train.tsv, line 3: an empty text or label"),
    (RTE_HEADER + "0\tA\tB\tEntailment\n", "train.tsv, line 2: the label 'Entailment' is not one of entailment"),
]


@pytest.mark.parametrize(("text", "message"), BAD_FILES)
def test_bad_file(text: str, message: str, write: Callable[[str, str], Path]) -> None:
    path = write("RTE/train.tsv", text)
    with pytest.raises(AttendropError) as caught:
        load_task("rte", data_dir=path.parents[2], splits=["train"])
    assert message in str(caught.value)


def test_a_few_broken_rows_are_left_out(write: Callable[[str, str], Path]) -> None:
    rows = [f"{i}\tA\tB\tentailment\n" for i in range(2000)]
    rows[7], rows[9] = "7\tA\tB\n", "9\t\tB\tentailment\n"
    path = write("RTE/train.tsv", RTE_HEADER + "".join(rows))
    with pytest.warns(UserWarning, match="skipped 2 broken rows of 2000, the first at line 9: 3 fields instead of 4"):
        train = load_task("rte", data_dir=path.parents[2], splits=["train"]).splits["train"]
    assert len(train) == 1998 and train["index"][7] == 8
    write("RTE/test.tsv", "index\tsentence1\tsentence2\n" + "0\tA\tB\n" * 1999 + "7\tA\n")
    with pytest.raises(AttendropError, match=r"test\.tsv, line 2001: 2 fields instead of 3"):
        load_task("rte", data_dir=path.parents[2], splits=["test"])


def test_bad_request(write: Callable[[str, str], Path], tmp_path: Path) -> None:
    write(*ROWS["rte"][:2])
    for options, message in (
        ({"splits": ["tran"]}, r"rte has no split 'tran'; did you mean 'train'\?"),
        ({"splits": ["test"]}, r"has no file of rte test, such as 'test\.tsv'"),
        ({"data_dir": "nowhere"}, "the data folder 'nowhere' does not exist"),
    ):
        with pytest.raises(AttendropError, match=message):
            load_task("rte", **{"data_dir": tmp_path} | options)  # type: ignore[arg-type]


HANS = "hans/heuristics_evaluation_set.txt"
HANS_HEADER = "gold_label\tsentence1_binary_parse\tsentence1\tsentence2\tpairID\theuristic\tsubcase\ttemplate\n"
HANS_ROW = 'non-entailment\t(a b)\tThe "doctor saw the judge .\tThe judge saw .\tex0\tlexical_overlap\tln_x\ttemp1\n'
PAWSX_ROWS = [
    {"text": "a b .", "text_pair": "b a .", "label": 1, "index": 0},
    {"text": "c .", "text_pair": "d .", "label": 0, "index": 1},
]
IMDB_ROWS = [{"text": f"a {label} film<br />", "label": n, "index": n} for n, label in enumerate(("neg", "pos"))]
SWAG = (
    ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n"
    '0,a-1,7,They look up. She,They look up.,She,gold,"smiles, then leaves.",sings.,runs.,sits.,2\n'
)
SWAG_CHOICES = ["She smiles, then leaves.", "She sings.", "She runs.", "She sits."]
SWAG_ROW = {"question": "They look up.", "choices": SWAG_CHOICES, "label": 2, "index": 0}


def arc(number: int, key: str, labels: str) -> str:
    choices = [{"text": f"choice {label}", "label": label} for label in labels]
    question = {"stem": f"why {number}?", "choices": choices}
    return json.dumps({"id": str(number), "question": question, "answerKey": key}) + "\n"


# The second question numbers its choices.
ARC = arc(1, "C", "ABC") + arc(2, "2", "1234") + arc(3, "E", "ABCDE")
ARC_ROWS = [
    {"question": f"why {n}?", "choices": [f"choice {name}" for name in names], "label": label}
    for n, names, label in ((1, "ABC", 2), (2, "1234", 1), (3, "ABCDE", 4))
]
ARC_COPY = '"who, then?",a,b,c,d,B\nwhy?,a,b,c,,C\nlost?,,,,,1\nfive?,a,b,c,d,E\nlast?,a,b,c,d,2\n'


CONLL = "-DOCSTART- -X- O O\n\nEU NNP I-NP I-ORG\nJohn NNP I-NP I-PER\nSmith NNP I-NP I-PER\nAnn NNP I-NP B-PER\n"
PTB = "".join(f"# file = wsj_{number:04}\nIt\tPRP\n\n" for number in (1, 159, 160, 179, 180, 199))
UD = "1\tIt\t_\tPRON\t_\t_\t2\t_\t_\t_\n2\trains\t_\tVERB\t_\t_\t0\t_\t_\t_\n\n"
UD_ROW = {"tokens": ["It", "rains"], "label": [10, 15], "index": 0}
WMT = {"wmt16/tr-en/newsdev2016.tr": "bir\n\nüç\n", "wmt16/tr-en/newsdev2016.en": "one\ntwo\nthree\n"}
# Name of a task, files, split, and its rows.
LOCAL: list[tuple[str, dict[str, str], str, list[dict[str, Any]]]] = [
    (
        "hans", {HANS: HANS_HEADER + HANS_ROW}, "dev",
        [{"text": 'The "doctor saw the judge .', "text_pair": "The judge saw .", "heuristic": "lexical_overlap",
          "label": 1, "index": 0}],
    ),
    ("pawsx", {"pawsx/dev-en.tsv": "a b .\tb a .\t1\r\nc .\td .\t0\r\n"}, "dev", PAWSX_ROWS),
    ("imdb", {f"aclImdb/train/{of}/0_3.txt": f"a {of} film<br />" for of in ("neg", "pos")}, "train", IMDB_ROWS),
    ("swag", {"swag/val.csv": SWAG}, "dev", [SWAG_ROW]),
    (
        "arc", {f"ARC-V1-Feb2018-2/ARC-{name}/ARC-{name}-Dev.jsonl": ARC for name in ("Easy", "Challenge")}, "dev",
        [row | {"index": n} for n, row in enumerate(ARC_ROWS * 2)],
    ),
    (
        "conll2003", {"conll2003/eng.testa": CONLL}, "dev",  # IOB1, which becomes IOB2: B-ORG B-PER I-PER B-PER
        [{"tokens": ["EU", "John", "Smith", "Ann"], "label": [3, 1, 2, 1], "index": 0}],
    ),
    (
        "ptb-pos", {"ptb/ptb_nltk_pos.tsv": PTB}, "test",
        [{"tokens": ["It"], "label": [17], "index": n} for n in (0, 1)],
    ),
    ("ud", {"UD_English-EWT/en_ewt-ud-dev.conllu": UD}, "dev", [UD_ROW]),
    (
        "wmt16-tr-en", WMT, "dev",
        [{"text": "bir", "label": "one", "index": 0}, {"text": "üç", "label": "three", "index": 2}],
    ),
]  # fmt: skip


def written(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text.encode())
    return folder


@pytest.mark.parametrize(("name", "files", "split", "rows"), LOCAL, ids=[f"{row[0]}-{row[2]}" for row in LOCAL])
def test_official_files(
    name: str, files: dict[str, str], split: str, rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    written(tmp_path, files)
    assert load_task(name, data_dir=tmp_path, splits=(split,)).splits[split].to_list() == rows
    folder = tmp_path / next(iter(files)).split("/")[0]
    if name != "imdb" or split != "train":  # of which the files are folders
        own = folder / "tr-en" if name.startswith("wmt") else folder
        assert {str(file.relative_to(tmp_path)) for file in task_files(name, own)} == {*files}


@pytest.mark.parametrize(
    ("name", "files", "message"),
    [
        ("hans", {HANS: HANS_HEADER + "entailment\ta\n"}, "line 2: 2 fields instead of 8"),
        ("pawsx", {"pawsx/dev-en.tsv": "a\tb\t2\n"}, "line 1: the label '2' is not one of 0, 1"),
        ("swag", {"swag/val.csv": SWAG.replace(",2\n", ",4\n")}, "line 2: the label '4' is none of the 4 choices"),
        ("conll2003", {"conll2003/eng.testa": "a I-GPE\n"}, "line 1: the tag 'B-GPE' is not among"),
        ("ud", {"UD_German-GSD/de_gsd-ud-dev.conllu": UD}, "name a folder that has one"),
    ],
)
def test_missing_and_broken_files(name: str, files: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(AttendropError, match=message):
        load_task(name, data_dir=written(tmp_path, files), splits=("dev",))


def test_a_copy_of_arc_that_lost_choices_is_read_without_those_questions(tmp_path: Path) -> None:
    written(tmp_path, {f"arc/arc_easy_{name}.csv": ARC_COPY for name in ("dev", "test")})
    with pytest.warns(UserWarning, match="skipped 2 of 5 questions, whose choices are not in the file"):
        data = load_task("arc-easy", data_dir=tmp_path)
    assert data.splits["train"]["question"][:] == ["who, then?", "why?", "last?"]
    assert data.splits["dev"]["label"][:] == [1, 2, 1]


CHOICES = {"text": ["x", "y", "z"], "label": ["1", "2", "3"]}
SWAG_HUB = {"sent1": ["A."], "sent2": ["B"], **{f"ending{n}": [f"e{n}"] for n in range(4)}, "label": [-1]}
UPOS = {"upos": List(ClassLabel(names=["VERB", "_", "PRON"])), "head": List(Value("string"))}
WORDS = {"tokens": List(Value("string"))}
# Name of a task and split, what the hub has, the arguments with which it is asked, and the rows that are made of it.
HUB: list[tuple[str, str, Dataset, list[tuple[str, ...]], list[dict[str, Any]]]] = [
    (
        "stsb", "dev", Dataset.from_dict({"sentence1": ["A"], "sentence2": ["B"], "label": [2.5], "idx": [4]}),
        [("nyu-mll/glue", "stsb", "validation")], [{"text": "A", "text_pair": "B", "label": 2.5, "index": 4}],
    ),
    (
        "arc", "dev", Dataset.from_dict({"question": ["why?"], "choices": [CHOICES], "answerKey": ["3"]}),
        [("allenai/ai2_arc", f"ARC-{name}", "validation") for name in ("Easy", "Challenge")],
        [{"question": "why?", "choices": ["x", "y", "z"], "label": 2, "index": n} for n in range(2)],
    ),
    (
        "swag", "test", Dataset.from_dict(SWAG_HUB), [("allenai/swag", "regular", "test")],
        [{"question": "A.", "choices": ["B e0", "B e1", "B e2", "B e3"], "index": 0}],
    ),
    (
        "ud", "dev",
        Dataset.from_dict(  # sentences without words are left out
            {"tokens": [["dont", "do", "I"], []], "upos": [[1, 0, 2], []], "head": [["None", "0", "1"], []]},
            features=Features(WORDS | UPOS),
        ),
        [("universal-dependencies/universal_dependencies", "en_ewt", "validation", "refs/convert/parquet")],
        [{"tokens": ["do", "I"], "label": [15, 10], "index": 0}],
    ),
    (
        "wmt16-en-ro", "dev",
        Dataset.from_dict({"translation": [{"ro": "un", "en": "one"}, {"ro": " ", "en": "two"}]}),
        [("wmt/wmt16", "ro-en", "validation")], [{"text": "one", "label": "un", "index": 0}],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "split", "raw", "asked", "rows"), HUB, ids=[row[0] for row in HUB])
def test_hub(
    name: str, split: str, raw: Dataset, asked: list[Any], rows: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Any] = []

    def load_dataset(*names: str, split: str, revision: str | None = None) -> Dataset:
        found.append((*names, split, *([] if revision is None else [revision])))
        return raw

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    data = load_task(name, splits=(split,))
    assert found == asked and data.splits[split].to_list() == rows
    assert data.source == f"Hugging Face hub {asked[0][0]}"


def test_mismatched_rows_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(*names: str, split: str) -> Dataset:
        features = Features({"premise": Value("string"), "hypothesis": Value("string"), "idx": Value("int32")})
        labels = {"label": ClassLabel(names=get_task("mnli").label_names)}
        rows = {"premise": [split], "hypothesis": ["B"], "idx": [4], "label": [-1 if "test" in split else 2]}
        return Dataset.from_dict(rows, features=Features(features | labels))

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    splits = load_task("mnli", splits=["dev", "test"]).splits
    found = {name: rows["text"][0].replace("validation", "dev") for name, rows in splits.items()}
    mismatched = {name: name for name in ("dev_mismatched", "test_mismatched")}
    assert found == {"dev": "dev_matched", "test": "test_matched"} | mismatched
    assert splits["dev"]["label"] == [2] and "label" not in splits["test_mismatched"].column_names
