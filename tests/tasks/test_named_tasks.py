"""Named tasks outside GLUE: rows of their official files and of the hub, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from datasets import ClassLabel, Dataset, Features, List, Value

from attendrop import AttendropError
from attendrop.tasks.registry import load_task, task_files

HANS = "hans/heuristics_evaluation_set.txt"
HANS_HEADER = "gold_label\tsentence1_binary_parse\tsentence1\tsentence2\tpairID\theuristic\tsubcase\ttemplate\n"
HANS_ROW = 'non-entailment\t(a b)\tThe "doctor saw the judge .\tThe judge saw .\tex0\tlexical_overlap\tln_x\ttemp1\n'
PAWSX_ROWS = [
    {"text": "a b .", "text_pair": "b a .", "label": 1, "index": 0},
    {"text": "c .", "text_pair": "d .", "label": 0, "index": 1},
]
IMDB_ROWS = [{"text": f"a {label} film<br />", "label": n, "index": n} for n, label in enumerate(("neg", "pos"))]
IMDB_LINES = "".join(f'{{"text": "a {label} film<br />", "label": "{label}"}}\n' for label in ("neg", "pos"))
SWAG = (
    ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n"
    '0,a-1,7,They look up. She,They look up.,She,gold,"smiles, then leaves.",sings.,runs.,sits.,2\n'
)
SWAG_ROW = {
    "question": "They look up.",
    "choices": ["She smiles, then leaves.", "She sings.", "She runs.", "She sits."],
    "label": 2,
    "index": 0,
}


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
    ("imdb", {"aclImdb/test.jsonl": IMDB_LINES}, "dev", IMDB_ROWS),
    ("imdb", {f"aclImdb/train/{of}/0_3.txt": f"a {of} film<br />" for of in ("neg", "pos")}, "train", IMDB_ROWS),
    ("swag", {"swag/val.csv": SWAG}, "dev", [SWAG_ROW]),
    (
        "swag", {"swag/test.csv": SWAG.replace(",label", "").replace(",2\n", "\n")}, "test",
        [{name: value for name, value in SWAG_ROW.items() if name != "label"}],
    ),
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


@pytest.fixture(autouse=True)
def _without_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ATTENDROP_DATA", raising=False)


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text.encode())
    return folder


@pytest.mark.parametrize(("name", "files", "split", "rows"), LOCAL, ids=[f"{row[0]}-{row[2]}" for row in LOCAL])
def test_official_files(
    name: str, files: dict[str, str], split: str, rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    write(tmp_path, files)
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
        (
            "swag",
            {"swag/val.csv": SWAG.replace(",2\n", ",4\n")},
            "line 2: the label '4' is none of the 4 choices, from",
        ),
        ("arc-easy", {"arc/notes.txt": ""}, r"no file of arc-easy dev, such as '\*\*/ARC-Easy-Dev.jsonl'"),
        ("conll2003", {"conll2003/eng.testa": "a I-GPE\n"}, "line 1: the tag 'B-GPE' is not among"),
        ("ud", {"UD_German-GSD/de_gsd-ud-dev.conllu": UD}, "name a folder that has one"),
    ],
)
def test_missing_and_broken_files(name: str, files: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(AttendropError, match=message):
        load_task(name, data_dir=write(tmp_path, files), splits=("dev",))


def test_a_copy_of_arc_that_lost_choices_is_read_without_those_questions(tmp_path: Path) -> None:
    write(tmp_path, {f"arc/arc_easy_{name}.csv": ARC_COPY for name in ("dev", "test")})
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
