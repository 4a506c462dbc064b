"""Image files as models read them, and what a check of a file finds."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from attendrop.errors import AttendropError
from attendrop.tasks.images import check_image, check_images, read_image

RED, GREY = (250, 10, 10), (128, 128, 128)


def palette_with_transparency() -> Image.Image:
    image = Image.new("RGBA", (8, 8), (*RED, 255))
    image.putpixel((0, 0), (*RED, 0))
    return image.quantize(4)


WRITTEN: dict[str, tuple[Callable[[], Image.Image], str, tuple[int, int, int]]] = {
    "grey": (lambda: Image.new("L", (8, 8), 128), "png", GREY),
    "grey with alpha": (lambda: Image.new("LA", (8, 8), (128, 255)), "png", GREY),
    "16 bits of grey": (lambda: Image.fromarray(np.full((8, 8), 128 * 256, np.uint16)), "png", GREY),
    "transparent": (lambda: Image.new("RGBA", (8, 8), (*RED, 100)), "png", RED),
    "palette": (lambda: Image.new("RGB", (8, 8), RED).quantize(4), "png", RED),
    "transparent palette": (palette_with_transparency, "png", RED),
    "inks": (lambda: Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "jpg", (254, 0, 0)),
    "gif": (lambda: Image.new("RGB", (8, 8), RED), "gif", RED),
    "webp": (lambda: Image.new("RGB", (8, 8), RED), "webp", RED),
}


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


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "it is no image of a known format"),
        (b"<html>404</html>", "it is no image of a known format"),
        (None, "truncated"),
    ],
    ids=["empty", "a page", "cut off"],
)
@pytest.mark.parametrize("extension", ["jpg", "png"])
def test_what_cannot_be_decoded_is_told(content: bytes | None, problem: str, extension: str, tmp_path: Path) -> None:
    path = tmp_path / f"image.{extension}"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[:-900] if content is None else content)
    found = check_image(str(path))
    assert found.problem is not None and found.problem.startswith("the image cannot be read (")
    if content is not None:
        assert problem in found.problem
    with pytest.raises(AttendropError, match="the image cannot be read"):
        read_image(path)


def test_a_file_is_checked_again_when_it_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "image.png"
    path.write_bytes(b"nothing yet")
    assert check_image(str(path)).problem is not None
    Image.new("RGB", (8, 8), RED).save(path)
    check_images([str(path)])
    found = check_image(str(path))
    assert found.problem is None and len(found.sha256) == 64
    copy = tmp_path / "copy.png"
    copy.write_bytes(path.read_bytes())
    assert check_image(str(copy)).sha256 == found.sha256


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    os.symlink(tmp_path / "away.png", tmp_path / "link.png")
    for name in ("none.png", "link.png"):
        assert check_image(str(tmp_path / name)).problem == "the file cannot be read (No such file or directory)"


def test_pillow_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(AttendropError, match=r"Images need Pillow; run `pip install attendrop\[images\]`\."):
        check_image(str(tmp_path / "any.png"))
