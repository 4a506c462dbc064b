"""Files that are written: what a full disk is reported as, and what is never replaced."""

import errno
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors import SafetensorError

from attendrop.errors import AttendropError
from attendrop.support.files import (
    PARTIAL,
    check_output,
    disk_errors,
    new_file,
    share_permissions,
    write_bytes,
    write_json,
    write_text,
)
from attendrop.tasks.custom_files import files_task
from attendrop.tasks.prediction_files import PredictionWriter
from attendrop.tasks.table import SkippedRow, write_skipped
from attendrop.tasks.types.classification import Classification


def test_a_full_disk_is_told_whichever_library_meets_it(tmp_path: Path) -> None:
    for error in (RuntimeError("PytorchStreamWriter failed writing file"), OSError(errno.ENOSPC, "full")):
        with pytest.raises(OSError, match=str(tmp_path)) as caught, disk_errors(tmp_path):
            raise error
        assert caught.value.errno == errno.ENOSPC
    with pytest.raises(OSError, match=str(tmp_path)), disk_errors(tmp_path):
        try:
            raise OSError(errno.EDQUOT, "quota")
        except OSError as error:
            raise RuntimeError("cannot save") from error
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        with pytest.raises(OSError, match=str(tmp_path)) as caught, disk_errors(tmp_path):
            raise SafetensorError(f"Error while serializing: I/O error: ... (os error {number})")
        assert caught.value.errno == number
    with pytest.raises(RuntimeError, match="something else"), disk_errors(tmp_path):
        raise RuntimeError("something else")


def test_a_file_is_replaced_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.txt"
    write_text(file, "old")
    monkeypatch.setattr("os.replace", lambda *names: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write_text(file, "new")
    assert file.read_text() == "old" and [each.name for each in tmp_path.iterdir()] == ["a.txt"]


def test_names_that_are_not_utf_8_are_escaped(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "the file 'gr\udcfcn.csv'")
    assert (tmp_path / "a.txt").read_text() == r"the file 'gr\udcfcn.csv'"


def test_permissions_that_are_right_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For only its owner may change those of a file."""
    for name, mode in (("right", 0o666), ("restricted", 0o600)):
        (tmp_path / name).touch(mode=mode)
    changed, change = list[str](), Path.chmod
    monkeypatch.setattr(Path, "chmod", lambda path, mode: changed.append(path.name) or change(path, mode))
    share_permissions(tmp_path)
    assert changed == ["restricted"]
    assert (tmp_path / "restricted").stat().st_mode == (tmp_path / "right").stat().st_mode


def _predict(path: Path) -> None:
    task = files_task(["text"], Classification(("no", "yes")))
    with PredictionWriter(path, task) as writer:
        writer.write({"index": [0]}, np.array([[0.0, 1.0]]))


WRITERS = {
    "bytes": lambda path: write_bytes(path, b"new"),
    "text": lambda path: write_text(path, "new"),
    "json": lambda path: write_json(path, ["new"]),
    "skipped rows": lambda path: write_skipped(path, [SkippedRow("a.csv", "line 2", "empty", {})]),
    "predictions": _predict,
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_a_new_file_is_never_written_into_what_a_link_points_to(tmp_path: Path, write: Callable[[Path], None]) -> None:
    """Neither by the name of the file, nor by one that could be guessed while it is written."""
    precious, file = tmp_path / "precious", tmp_path / "new.csv"
    precious.write_text("the only copy")
    for name in (file.name, f".{file.name}.partial"):
        (tmp_path / name).symlink_to(precious)
    write(file)
    assert precious.read_text() == "the only copy"
    assert file.is_file() and not file.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == [f".{file.name}.partial", "new.csv", "precious"]


def test_a_file_that_is_being_written_is_nobody_elses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with new_file(tmp_path / "a.csv") as first, new_file(tmp_path / "a.csv") as second:
        assert first.name != second.name
        assert all(PARTIAL.fullmatch(Path(file.name).name) for file in (first, second))
    (tmp_path / "precious").write_text("the only copy")
    monkeypatch.setattr("secrets.token_hex", lambda _: "0a1b2c3d")  # as if it had been guessed
    (tmp_path / ".a.csv.0a1b2c3d.partial").symlink_to(tmp_path / "precious")
    with pytest.raises(FileExistsError):
        write_text(tmp_path / "a.csv", "new")
    assert (tmp_path / "precious").read_text() == "the only copy"


def test_the_permissions_of_what_a_link_points_to_stay(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "precious").touch(mode=0o600)
    changed = (tmp_path / "precious").stat()
    for name in (".probe", "link"):
        (tmp_path / "folder" / name).symlink_to(tmp_path / "precious")
    share_permissions(tmp_path / "folder")
    assert (tmp_path / "precious").stat() == changed


def test_inputs_folders_and_links_to_nothing_are_never_replaced(tmp_path: Path) -> None:
    source, link = tmp_path / "a.csv", tmp_path / "link.csv"
    source.write_text("rows")
    link.symlink_to(source)
    for output, message in ((link, "which is read"), (tmp_path, "is a folder"), ("/dev/null", "a device or a pipe")):
        with pytest.raises(AttendropError, match=message):
            check_output(output, [source], overwrite=True)
    with pytest.raises(AttendropError, match=f"since '{source}' is a file; name another"):
        check_output(source / "new/out.csv", [], overwrite=True)
    source.unlink()
    with pytest.raises(AttendropError, match="which does not exist"):
        check_output(link, [], overwrite=False)
