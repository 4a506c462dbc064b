"""Images: as models read them, what a check of a file finds, folders, and files with paths."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from helpers.tiny_images import draw, write_folder
from PIL import Image

from attendrop.errors import AttendropError
from attendrop.tasks.base import TaskData
from attendrop.tasks.custom_files import load_files, stream_file
from attendrop.tasks.heads.image_classification import ImageClassification
from attendrop.tasks.images import check_image, check_images, folder_sha256, read_image
from attendrop.tasks.splits import hold_out
from attendrop.tasks.table import BadRows, write_skipped


def load(train: Path, *, skip: bool = False, **options: Any) -> TaskData:
    columns = {"text_columns": ["image"], "label_column": "label", "label_type": "image-class"}
    return load_files(train_file=train, **columns, skip_bad_rows=skip, **options)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "train", 0, 8)


def paths(data: TaskData) -> list[str]:
    return [Path(path).name for path in data.splits["train"]["image"][:]]


def test_classes_are_the_names_of_folders_and_rows_are_paths(photos: Path) -> None:
    (photos / "left" / "winter").mkdir()
    draw(1, "left").save(photos / "left" / "winter" / "a.JPG")
    data = load(photos)
    assert data.task.kind == "image-classification" and data.task.label_names == ("left", "right")
    rows = data.splits["train"]
    labels = {path: data.task.label_names[label] for path, label in zip(rows["image"], rows["label"], strict=True)}
    assert len(labels) == 9 and all(label in path for path, label in labels.items())
    assert labels[str(photos / "left" / "winter" / "a.JPG")] == "left"
    assert rows.data.nbytes < 4000  # no pixels


def test_what_is_no_image_is_ignored_and_counted(photos: Path, caplog: pytest.LogCaptureFixture) -> None:
    known = paths(load(photos))
    (photos / ".DS_Store").write_bytes(b"x")
    (photos / "left" / "._001.jpg").write_bytes(b"x")
    (photos / "left" / "notes.txt").write_text("x")
    (photos / ".ipynb_checkpoints").mkdir()
    draw(1, "left").save(photos / ".ipynb_checkpoints" / "copy.png")
    with caplog.at_level(logging.INFO, "attendrop"):
        assert paths(load(photos)) == known
    assert caplog.messages == [f"{photos}: 8 images; ignored 2 hidden files, and 1 of other kinds."]


def test_links_are_followed_but_not_in_circles(photos: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    shutil.move(photos / "left", elsewhere)
    os.symlink(elsewhere, photos / "left")
    os.symlink(photos, photos / "right" / "above")
    assert len(paths(load(photos))) == 8


def broken(photos: Path) -> Path:
    """Add images that cannot be used, to "right"."""
    (photos / "right" / "page.jpg").write_text("<html>")
    whole = (photos / "right" / sorted(os.listdir(photos / "right"))[0]).read_bytes()
    (photos / "right" / "cut.png").write_bytes(whole[: len(whole) // 2])
    os.symlink(photos / "gone.png", photos / "right" / "gone.png")
    draw(1, "left").save(photos / "stray.png")
    draw(2, "left").save(os.fsencode(photos) + b"/right/\xff.png")
    return photos


PROBLEMS = {
    "right/cut.png": "the image cannot be read",
    "right/gone.png": "the file cannot be read (No such file or directory)",
    "right/page.jpg": "the image cannot be read (it is not an image of a known format)",
    r"right/\udcff.png": "the name of the file is not in UTF-8",
    "stray.png": "the image has no class, by a label or by its folder",
}


def test_bad_images_are_refused_by_name_or_skipped_and_listed(photos: Path, tmp_path: Path) -> None:
    known = paths(load(photos))
    broken(photos)
    with pytest.raises(AttendropError, match=r"train, right/cut.png, column 'image': the image cannot be read"):
        load(photos)
    data = load(photos, skip=True)
    assert paths(data) == known
    write_skipped(tmp_path / "skipped.jsonl", data.skipped)
    listed = [json.loads(line) for line in (tmp_path / "skipped.jsonl").read_text().splitlines()]
    assert {row["place"]: row["reason"].partition(": ")[2].startswith(PROBLEMS[row["place"]]) for row in listed} == (
        dict.fromkeys(PROBLEMS, True)
    )


def test_classes_without_images_are_refused(photos: Path) -> None:
    (photos / "up").mkdir()
    with pytest.raises(AttendropError, match=r"train/up has no image that can be read; add images of this class"):
        load(photos)


@pytest.mark.parametrize("folders", [(), ("left",), ("train", "dev")])
def test_folders_that_are_no_classes_are_refused(folders: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for name in folders:
        (tmp_path / "photos" / name).mkdir()
        draw(1, "left").save(tmp_path / "photos" / name / "1.png")
    message = {0: "photos has no image", 1: "photos has only one class, 'left'", 2: "dev, train, which are not classes"}
    with pytest.raises(AttendropError, match=message[len(folders)]):
        load(tmp_path / "photos")


def test_a_file_has_paths_beside_it_or_absolute_ones(photos: Path) -> None:
    names = sorted(str(path.relative_to(photos)) for path in photos.rglob("*.*"))
    names[0] = str(photos / names[0])
    lines = [f"{name},{'bright left' if 'left' in name else 'bright right'}" for name in names]
    (photos / "all.csv").write_text("\n".join(["path,kind", *lines]) + "\n")
    for label_type in ("image-class", "auto"):
        data = load_files(
            train_file=photos / "all.csv", text_columns=["path"], label_column="kind", label_type=label_type
        )
        assert data.task.label_names == ("bright left", "bright right")
        assert sorted(data.splits["train"]["image"]) == sorted(str(photos / name) for name in names)
    (photos / "all.csv").write_text("path,kind\nleft/none.png,a\n,b\n")
    with pytest.raises(AttendropError, match=r"all.csv, line 2, column 'path': the file cannot be read \(No such"):
        load_files(train_file=photos / "all.csv", text_columns=["path"], label_column="kind")


def test_names_of_folders_are_read_as_they_are_and_mapped(photos: Path, tmp_path: Path) -> None:
    (photos / "left").rename(photos / " left")
    (tmp_path / "map.csv").write_text("label,meaning\nright,west\n left,east\nleft,east\n")
    data = load(photos, label_map=tmp_path / "map.csv")
    assert data.task.label_names == ("east", "west") and len(paths(data)) == 8


def test_columns_that_are_kept_have_paths_as_they_stand_in_the_file(photos: Path) -> None:
    names = sorted(str(path.relative_to(photos)) for path in photos.rglob("*.png"))
    (photos / "all.csv").write_text("\n".join(["path,note", *(f"{name},x" for name in [*names, "gone.png"])]))
    head = ImageClassification(("left", "right"))
    bad = BadRows(skip=True)
    (chunk,) = stream_file(photos / "all.csv", text_columns=["path"], head=head, size=99, bad=bad)
    assert chunk.table is not None and chunk.table.rows == [[name, "x"] for name in names]
    assert chunk.columns["image"] == [str(photos / name) for name in names] and len(bad.skipped) == 1


def test_the_hash_of_a_folder_is_that_of_its_images(photos: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(photos, copy)
    (copy / "notes.txt").write_text("x")
    assert folder_sha256(photos) == folder_sha256(copy)
    draw(99, "left").save(next(iter(sorted(copy.rglob("*.png")))))
    assert folder_sha256(photos) != folder_sha256(copy)


def test_copies_of_an_image_are_on_one_side_of_a_split(photos: Path) -> None:
    for path in sorted(photos.rglob("*.*")):
        shutil.copy(path, path.with_stem("copy of " + path.stem))
    data = load(photos)
    kept, held = hold_out(data.splits["train"], data.task, 0.25, seed=0)
    assert held is not None and len(held) and not set(kept["sha256"]) & set(held["sha256"])


# Files ----------------------------------------------------------------------------------------------------------------

RED, GREY = (250, 10, 10), (128, 128, 128)


def palette_with_transparency() -> Image.Image:
    image = Image.new("RGBA", (8, 8), (*RED, 255))
    image.putpixel((0, 0), (*RED, 0))
    return image.quantize(4)


WRITTEN: dict[str, tuple[Callable[[], Image.Image], str, tuple[int, int, int]]] = {
    "grey with alpha": (lambda: Image.new("LA", (8, 8), (128, 255)), "png", GREY),
    "16 bits of grey": (lambda: Image.fromarray(np.full((8, 8), 128 * 256, np.uint16)), "png", GREY),
    "transparent": (lambda: Image.new("RGBA", (8, 8), (*RED, 100)), "png", RED),
    "transparent palette": (palette_with_transparency, "png", RED),
    "inks": (lambda: Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "jpg", (254, 0, 0)),
}


def test_the_code_of_a_card_reads_an_image_as_a_run_does(tmp_path: Path) -> None:
    """Grey of 16 bits, from a camera that was turned."""
    values = np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(values).save(tmp_path / "scan.png", exif=exif)
    names: dict[str, Any] = {"image": Image.open(tmp_path / "scan.png"), "model": Mock()}
    names["processor"] = lambda image, **_: {"pixel_values": image}
    exec(ImageClassification.example, names)
    np.testing.assert_array_equal(names["inputs"]["pixel_values"], read_image(tmp_path / "scan.png"))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", WRITTEN)
def test_every_mode_is_read_as_rgb(name: str, tmp_path: Path) -> None:
    make, extension, color = WRITTEN[name]
    path = tmp_path / f"image.{extension}"
    make().save(path)
    image = read_image(path)
    assert image.mode == "RGB" and image.size == (8, 8)
    assert np.abs(np.subtract(image.getpixel((4, 4)), color)).max() <= 6
    assert check_image(str(path)).problem is None


def test_a_photo_taken_with_a_turned_camera_is_upright(tmp_path: Path) -> None:
    image = Image.new("RGB", (16, 8), (0, 0, 0))
    image.paste((255, 255, 255), (0, 0, 8, 8))
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees: the left half is on top
    image.save(tmp_path / "turned.png", exif=exif)
    upright = read_image(tmp_path / "turned.png")
    assert upright.size == (8, 16)
    assert upright.getpixel((4, 2)) == (255, 255, 255) and upright.getpixel((4, 14)) == (0, 0, 0)


@pytest.mark.parametrize("size", [(5, 40), (40, 5)])
def test_narrow_photos_are_read(size: tuple[int, int], tmp_path: Path) -> None:
    Image.new("RGB", size).save(tmp_path / "narrow.jpg")
    assert check_image(str(tmp_path / "narrow.jpg")).problem is None


def test_what_cannot_be_decoded_is_told(tmp_path: Path) -> None:
    path = tmp_path / "image.jpg"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[:-900])
    found = check_image(str(path))
    assert found.problem is not None and found.problem.startswith("the image cannot be read (")
    with pytest.raises(AttendropError, match="the image cannot be read"):
        read_image(path)


@pytest.mark.parametrize(
    ("mode", "told"),
    [
        ("I", "its values have 32 bits or a sign, and no known range; save it with 8 or 16"),
        ("F", "its values have 32 bits or a sign, and no known range; save it with 8 or 16"),
        ("I;16", "its values of 16 bits are all below 256, which is black; save it with 8"),
    ],
)
def test_grey_values_of_unknown_range_are_refused(mode: str, told: str, tmp_path: Path) -> None:
    """Pillow clips them to 0 and 255, which leaves a white or a black image; their upper bits leave a black one."""
    path = tmp_path / "scan.tif"
    Image.new(mode, (8, 8), 200).save(path)
    assert check_image(str(path)).problem == f"the image cannot be read ({told})"
    with pytest.raises(AttendropError, match=told):
        read_image(path)


def test_a_file_is_checked_again_when_it_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "image.png"
    path.write_bytes(b"nothing yet")
    assert check_image(str(path)).problem is not None
    Image.new("RGB", (8, 8), RED).save(path)
    check_images([str(path)])
    found = check_image(str(path))
    assert found.problem is None and len(found.sha256) == 64
