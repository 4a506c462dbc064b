"""What inspection counts, beside what `tests/cli/test_inspect.py` shows of a whole report."""

import json
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

from attendrop.errors import AttendropError
from attendrop.tasks.inspection import check_files, inspect_files


def test_rows_of_evaluation_that_are_in_training_are_counted_once_each(tmp_path: Path) -> None:
    train, dev = tmp_path / "train.csv", tmp_path / "dev.csv"
    train.write_text("text,label\nthe first text,yes\nthe second text,no\n")
    dev.write_text("text,label\nThe  first text,yes\nthe first text,no\nanother text,no\n")
    assert inspect_files(train, dev).doubts()["in_both"].startswith("2 of 3 rows of ")


def test_labels_and_doubts_are_as_a_run_reads_them(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("text,label\na,1\nb,1.0\n,1\n,2.0\nc,2\nC ,2\n")
    found = inspect_files(file)
    assert found.labels == {"1": 3, "2": 3} and set(found.doubts()) == {"without_text", "duplicates"}
    assert found.doubts()["duplicates"].startswith("1 row ")


def test_choices_may_be_fewer_than_their_columns(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("question,a,b,c,label\nwho is it,x,y,z,A\nwhat is it,x,y,,B\n")
    found = inspect_files(file, text_columns=["question", "a", "b", "c"], label_column="label", label_type="choice")
    assert "without_text" not in found.doubts()


def test_tokens_of_many_rows_are_counted_some_rows_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All tokens of 200,000 rows would take gigabytes."""
    file, sizes = tmp_path / "a.csv", list[int]()
    file.write_text("text,label\n" + "a cat sees it,yes\nno dog does so,no\n" * 2500)

    class Counting:
        no_truncation = no_padding = staticmethod(lambda: None)

        @staticmethod
        def encode_batch_fast(texts: list[str]) -> list[SimpleNamespace]:
            sizes.append(len(texts))
            return [SimpleNamespace(ids=text.split()) for text in texts]

    (tmp_path / "tokenizer.json").touch()
    monkeypatch.setattr("tokenizers.Tokenizer", SimpleNamespace(from_file=lambda file: Counting))
    unit, lengths = inspect_files(file).lengths(str(tmp_path))
    assert unit == f"tokens of {tmp_path}, in 1667 of the rows" and lengths == [4] * 1667 and max(sizes) <= 500


def test_one_number_is_doubtful_and_refused_by_a_run(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("text,score\na cat sees a dog,0.5\nthe bird sees it,0.5\n")
    assert "All rows have the same label, '0.5'." in inspect_files(file).doubts()["one_label"]
    with pytest.raises(AttendropError, match=r"has only one number, '0.5'"):
        check_files(str(file), None)


@pytest.mark.parametrize("time", ["2024/05/{:02d} 9:12:45 AM GMT+2", "5/{}/2024, 9:12:45 AM GMT+2"])
def test_the_time_of_an_answer_to_a_form_is_no_text(tmp_path: Path, time: str) -> None:
    file = tmp_path / "a.csv"
    rows = [f'"{time.format(day)}",late parcel {day},{"shop" if day % 2 else "post"}\n' for day in range(1, 12)]
    file.write_text("Timestamp,Message,Team\n" + "".join(rows))
    found = inspect_files(file)
    assert found.text_columns == ("Message",) and found.columns[0].role == "date"


@pytest.mark.parametrize("label_type", ["auto", "tags"])
def test_words_with_each_tag_are_counted(tmp_path: Path, label_type: str) -> None:
    (tmp_path / "a.conll").write_text("Anna B-PER\nsees O\nit O\n\nnobody O\n")
    found = inspect_files(tmp_path / "a.conll", label_type=label_type)
    assert found.tags == found.as_dict()["tags"] == {"O": 3, "B-PER": 1}
    (tmp_path / "a.csv").write_text("text,tags\nAnna sees,x\nnobody,y\n")
    assert inspect_files(tmp_path / "a.csv").tags == {}


def test_what_a_run_warns_of_in_labels_is_noted(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("text,label\na cat sees a dog,yes\nthe bird sees it,no\nnobody sees this,N/A\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (note,) = inspect_files(file).notes
    assert note.startswith(f"column 'label': the labels 'N/A' ({file}, line 4) are read as classes")


def test_a_title_above_the_header_is_doubtful(tmp_path: Path) -> None:
    rows = "Nr;Text;Team\n1;where is my parcel;A\n2;the bill is wrong;B\n3;no parcel yet;A\n"
    (tmp_path / "a.csv").write_text(f"Export 2025;;\n{rows}")
    assert inspect_files(tmp_path / "a.csv").doubts()["unnamed"].endswith("delete a title above it, or name them.")
    (tmp_path / "a.csv").write_text(rows.replace("Nr", ""))  # as pandas writes an index
    assert "unnamed" not in inspect_files(tmp_path / "a.csv").doubts()


def test_texts_that_are_none_are_doubtful(tmp_path: Path) -> None:
    texts = ["a cat sees", {"en": "a dog"}, 12.5, float("nan"), float("nan"), None]
    lines = [json.dumps({"text": text, "label": "xy"[n % 2]}) for n, text in enumerate(texts)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    assert inspect_files(tmp_path / "a.jsonl").doubts() == {"without_text": "5 rows without a text."}


@pytest.mark.parametrize(
    ("names", "found"), [("text2 text1", ("text1", "text2")), ("choice1 choice2 choice3", ("choice1",))]
)
def test_two_columns_are_a_pair_and_more_are_not(tmp_path: Path, names: str, found: tuple[str, ...]) -> None:
    rows = [",".join(f"{name} is {n}" for name in [*names.split(), f"{n % 2}"]) for n in range(9)]
    (tmp_path / "a.csv").write_text("\n".join([",".join([*names.split(), "label"]), *rows]))
    assert inspect_files(tmp_path / "a.csv", label_column="label").text_columns == found


@pytest.mark.parametrize(
    "texts",
    [
        ("我想取消昨天的订单第{}号", "请问怎么查看账户余额{}"),
        ("ฉันต้องการยกเลิกคำสั่งซื้อ{}", "ดูยอดเงินในบัญชีของฉัน{}"),
    ],
)
def test_texts_without_spaces_are_texts_and_no_ids(tmp_path: Path, texts: tuple[str, str]) -> None:
    file = tmp_path / "a.csv"
    rows = [f"{row},{texts[row % 2].format(row)},{('国际新闻', '体育')[row % 2]}" for row in range(12)]
    file.write_text("\n".join(["number,message,kind", *rows]), encoding="utf-8")
    found = inspect_files(file)
    assert (found.text_columns, found.label_column) == (("message",), "kind")
    assert [column.role for column in found.columns] == ["id", "text", "label"]
    unit, lengths = found.lengths("./no/such/model")
    assert unit == "words" and 4 <= min(lengths) <= max(lengths) <= 8
