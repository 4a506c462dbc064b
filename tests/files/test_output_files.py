"""Files that are written: what a full disk is reported as, and what is never replaced."""

import errno
import resource
from pathlib import Path

import pytest
from safetensors import SafetensorError

from attendrop.errors import AttendropError
from attendrop.files.output_files import check_output, disk_errors, write_text


def test_a_full_disk_is_told_whichever_library_meets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    monkeypatch.setattr(resource, "getrlimit", lambda _: (2**20, 2**20))  # PyTorch does not say which of them it was
    with pytest.raises(OSError, match=str(tmp_path)) as caught, disk_errors(tmp_path):
        raise RuntimeError("PytorchStreamWriter failed writing file")
    assert caught.value.errno == errno.EFBIG
    with pytest.raises(RuntimeError, match="something else"), disk_errors(tmp_path):
        raise RuntimeError("something else")


def test_a_file_is_replaced_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.txt"
    write_text(file, "old")
    monkeypatch.setattr("os.replace", lambda *names: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write_text(file, "new")
    assert file.read_text() == "old" and [each.name for each in tmp_path.iterdir()] == ["a.txt"]


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
