"""Image classification: one of several classes for an image."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from datasets import Dataset
from torch import Tensor
from transformers import AutoImageProcessor, BatchEncoding, PreTrainedConfig, PreTrainedModel

from attendrop.errors import AttendropError
from attendrop.tasks.file_formats import IMAGE
from attendrop.tasks.heads.base import Columns, Tokenizer
from attendrop.tasks.heads.classification import Classification
from attendrop.tasks.images import check_image, check_images, class_folders, is_image, read_image
from attendrop.tasks.long_texts import HEAD
from attendrop.tasks.table import Table
from attendrop.tasks.values import text_problem, value_problem

PIXELS = "pixel_values"
# Names of folders that are parts of a data set rather than classes.
_SPLITS = frozenset({"train", "training", "dev", "val", "valid", "validation", "test", "eval"})


class ImageClassification(Classification):
    """Head that predicts the class of an image. Labels and targets are class ids, outputs logits ``(rows, classes)``.

    Rows hold the path of an image and the hash of its file. Encoded rows hold the same, the path under the name of the
    model's input: the collator reads the images of a batch, so that no others are in memory. Nothing is random in it.
    """

    kind = "image-classification"
    label_type = "image-class"
    inputs = ("image", "sha256")
    input_name = "image"
    most_inputs = 1
    auto_class = "AutoModelForImageClassification"
    peft_task_type = None
    pipeline_tag = "image-classification"
    example = """\
from PIL import ImageOps

image = ImageOps.exif_transpose(image)
if image.mode.startswith("I;16"):  # grey of 16 bits, which Pillow converts to white
    image = image.point(lambda value: value / 256).convert("L")
inputs = processor(image.convert("RGB"), return_tensors="pt")
logits = model(**inputs).logits"""
    preprocessor = ("processor", "AutoImageProcessor", ', backend="pil"')
    has_pooling = False
    long_texts = (HEAD,)
    baselines = ("majority", "frozen")
    refused: ClassVar = {"attend": "it shows the tokens of texts"}

    @classmethod
    def recognizes(cls, config: PreTrainedConfig) -> bool:
        """Accept classes of image classifiers, also a second one that a family has."""
        # Such as DeiT's "ForImageClassificationWithTeacher".
        names = (name.removesuffix("WithTeacher") for name in config.architectures or ())
        return any(name.endswith("ForImageClassification") for name in names)

    def model_class(self, config: PreTrainedConfig) -> Any:
        """Return the class of transformers; raise AttendropError if the family of models has none."""
        if self._class_name(config) is None:
            raise AttendropError(
                f"Models of the family {config.model_type} have no class for images; give another, such as "
                "google/vit-base-patch16-224-in21k."
            )
        return super().model_class(config)

    def load_preprocessor(self, place: str) -> Any:
        """Load the image processor that computes with Pillow: pixels are the same with and without torchvision."""
        check_images([])
        loader: Any = AutoImageProcessor
        return loader.from_pretrained(place, backend="pil", trust_remote_code=False)

    def fit_preprocessor(self, name: str, model: PreTrainedModel, tokenizer: Any) -> None:
        """Refuse a processor that makes images of a size, or a number of channels, that the model cannot read."""
        from PIL import Image

        size = getattr(model.config, "image_size", 224)  # a processor that changes no sizes fits images of this one
        height, width = (size, size) if isinstance(size, int) else size
        pixels = tokenizer(Image.new("RGB", (width, height)), return_tensors="pt")[PIXELS]
        try:
            with torch.no_grad():
                model(pixel_values=pixels.to(model.device))
        except (ValueError, RuntimeError) as error:
            raise AttendropError(
                f"The image processor of {name!r} makes images of {' x '.join(map(str, pixels.shape[1:]))}, which its "
                f"model does not read ({str(error).splitlines()[0]})"
            ) from None

    @classmethod
    def may_read(cls, texts: Sequence[Any]) -> bool:
        return len(texts) == 1 and isinstance(texts[0], str) and is_image(texts[0])

    @classmethod
    def inputs_of(cls, text_columns: int) -> tuple[str, ...]:
        return cls.inputs

    @classmethod
    def located(cls, table: Table, columns: Sequence[str]) -> Table:
        """Resolve paths, which are relative to the file's folder, against the working directory; check the images."""
        listed = table.path.is_dir()  # then names are exact
        folder = table.path if listed else table.path.parent
        table = table.mapped(
            columns[0], lambda name: name if text_problem(name) else str(folder / (name if listed else name.strip()))
        )
        check_images([path for path in table.column(columns[0]) if cls._name_problem(path) is None])
        return table

    @classmethod
    def text_problem(cls, value: Any, column: int = 0) -> str | None:
        """Refuse a file that is missing, or no image that can be decoded."""
        return cls._name_problem(value) or check_image(value).problem

    @staticmethod
    def _name_problem(value: Any) -> str | None:
        if text_problem(value) is not None:
            return "there is no path of an image"
        try:
            value.encode()
        except UnicodeEncodeError:
            return "the name of the file is not in UTF-8"
        return None

    @classmethod
    def read_texts(cls, texts: Sequence[Any]) -> list[Any]:
        return [texts[0], check_image(texts[0]).sha256]

    @staticmethod
    def value_problem(value: Any) -> str | None:
        """Refuse images without a label, such as those beside the folders of classes."""
        return "the image has no class, by a label or by its folder" if value is None else value_problem(value)

    @classmethod
    def from_labels(cls, tables: Mapping[str, Table], column: str, *, asked: bool = True) -> Self:
        """Make the head whose classes are those of "train": the names of its folders, or its labels.

        Raises:
            AttendropError: As for classes of texts; the folder of a class has no image; or folders are parts of a data
                set.
        """
        source = tables["train"]
        if source.path.is_dir():
            paths = [Path(path).relative_to(source.path) for path in source.column(IMAGE)]
            folders, found = class_folders(source.path), {path.parts[0] for path in paths}
            if found <= _SPLITS and len(found) > 1:
                raise AttendropError(
                    f"{source.path} has the folders {', '.join(folders)}, which are not classes; give them one by one, "
                    f"such as --train-file {source.path}/{folders[-1]}."
                )
            empty = [name for name in folders if name not in found]
            if empty:
                raise AttendropError(
                    f"{source.path}/{empty[0]} has no image that can be read; add images of this class, or move the "
                    "folder away."
                )
        return super().from_labels(tables, column, asked=True)

    def tokenize(self, columns: Columns, tokenizer: Tokenizer, max_length: int | None) -> BatchEncoding:
        return BatchEncoding({PIXELS: columns["image"], "sha256": columns["sha256"]})

    def length_limit(self, tokenizer: Any, max_length: int, columns: Any) -> int:
        return max_length

    def lengths(self, encoded: Mapping[str, Any]) -> list[int]:
        return [1] * len(encoded[PIXELS])  # all images have the same number of patches

    def input_report(self, rows: Dataset, encoded: Mapping[str, Any], tokenizer: Any, limit: int) -> dict[str, int]:
        return {}

    def unknown_rows(self, encoded: Mapping[str, Any], tokenizer: Any) -> int:
        return 0

    def collator(self, tokenizer: Any) -> Callable[[list[Any]], Any]:
        """Return a function that reads the images of a batch, and makes pixels ``(rows, channels, height, width)``."""

        def pixels(row: Mapping[str, Any]) -> Tensor:
            found: Tensor = tokenizer(read_image(row[PIXELS]), return_tensors="pt")[PIXELS][0]
            return found

        def collate(rows: list[Any]) -> dict[str, Tensor]:
            with ThreadPoolExecutor(os.cpu_count()) as pool:  # as many whole images are in memory at a time
                images = list(pool.map(pixels, rows))
            sizes = {tuple(image.shape) for image in images}
            if len(sizes) > 1:
                raise AttendropError(
                    f"The model's image processor makes images of different sizes, such as {sorted(sizes)[:2]}; set "
                    "its size in preprocessor_config.json."
                )
            batch = {PIXELS: torch.stack(images)}
            if "labels" in rows[0]:
                batch["labels"] = torch.tensor([row["labels"] for row in rows])
            return batch

        return self.without_unknown(collate)

    def texts(self, rows: Dataset) -> list[tuple[str, ...]]:
        """Return the hashes of the files, by which equal images are found."""
        return [(found,) for found in rows["sha256"][:]]

    def titles(self, rows: Dataset) -> list[tuple[str, ...]]:
        """Return the names of the files, each with its folder."""
        return [("/".join(Path(path).parts[-2:]),) for path in rows["image"][:]]

    def row_ids(self, columns: Columns) -> tuple[str, Sequence[Any]]:
        return "file", columns["image"][:]
