"""Translation tasks of WMT16: Romanian and Turkish, to and from English."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from datasets import Dataset

from attendrop.errors import AttendropError
from attendrop.tasks.base import Task, TaskData
from attendrop.tasks.file_formats import SOURCE, TARGET
from attendrop.tasks.heads.translation import Translation
from attendrop.tasks.sources import check_splits, find_folder, load_from_hub
from attendrop.tasks.table_files import read_table

# Names of the files of each split before the code of the language; the first that there is counts.
_FILES: Mapping[str, tuple[str, ...]] = {
    "train": ("train",),
    "dev": ("newsdev2016", "dev"),
    "test": ("newstest2016", "test"),
}
_HUB = "wmt/wmt16"
_HUB_SPLITS = {"dev": "validation"}
_LANGUAGES = {"en": "English", "ro": "Romanian", "tr": "Turkish"}


@dataclass(frozen=True)
class ParallelCorpus:
    """Files of a translation task and its data set on the hub.

    Attributes:
        source: Code of the language of the texts.
        target: Code of the language of their translations.
    """

    source: str
    target: str

    @property
    def task(self) -> Task:
        """The task."""
        metric, *others = Translation.default_metrics
        title = f"translation, {_LANGUAGES[self.source]} to {_LANGUAGES[self.target]}, WMT16"
        columns = (self.source,)
        return Task(f"wmt16-{self.source}-{self.target}", Translation.kind, columns, (), metric, title, tuple(others))

    def load(self, data_dir: str | Path | None, splits: Sequence[str]) -> TaskData:
        """Load splits, from the places listed in :func:`attendrop.tasks.registry.load_task`."""
        check_splits(self.task, splits, _FILES)
        folder = self._folder(data_dir)
        if folder is None:
            found = {split: self._from_hub(split) for split in splits}
            return TaskData(self.task, found, f"Hugging Face hub {_HUB}")
        found = {split: self._from_files(folder, split) for split in splits}
        return TaskData(self.task, found, f"local folder {folder}")

    def files(self, data_dir: str | Path | None) -> list[Path]:
        """Return the local files; none if the task is loaded from the hub."""
        folder = self._folder(data_dir)
        return [] if folder is None else [file for split in _FILES for file in self._files(folder, split)]

    def _folder(self, data_dir: str | Path | None) -> Path | None:
        languages = (self.target, self.source), (self.source, self.target)
        names = ["".join(pair) for pair in languages]
        patterns = [f"{name}.{self.source}" for every in _FILES.values() for name in every]
        return find_folder(data_dir, names, within="wmt16", files=patterns)

    def _files(self, folder: Path, split: str) -> tuple[Path, ...]:
        """Return the file of each language; none if one is missing."""
        pairs = [tuple(folder / f"{name}.{of}" for of in (self.source, self.target)) for name in _FILES[split]]
        return next((pair for pair in pairs if all(file.is_file() for file in pair)), ())

    def _from_files(self, folder: Path, split: str) -> Dataset:
        files = self._files(folder, split)
        if not files:
            names = " or ".join(f"{name}.{self.source} and {name}.{self.target}" for name in _FILES[split])
            raise AttendropError(f"the folder {str(folder)!r} has no files of {self.task.name} {split}: {names}.")
        table = read_table(",".join(map(str, files)))
        return _rows(table.column(SOURCE), table.column(TARGET))

    def _from_hub(self, split: str) -> Dataset:
        pair = "-".join(sorted((self.source, self.target), key=lambda code: code == "en"))
        raw = load_from_hub(self.task, _HUB, pair, split=_HUB_SPLITS.get(split, split))
        texts = raw["translation"][:]
        return _rows([each[self.source] for each in texts], [each[self.target] for each in texts])


def _rows(texts: Sequence[str], translations: Sequence[str]) -> Dataset:
    """Make a data set of the pairs with both texts; the index counts all pairs."""
    both = enumerate(zip(texts, translations, strict=True))
    kept = [(index, *pair) for index, pair in both if all(text.strip() for text in pair)]
    index, source, target = map(list, zip(*kept, strict=True))
    return Dataset.from_dict({"text": source, "label": target, "index": index})


PARALLEL_CORPORA = tuple(ParallelCorpus(*pair) for other in ("ro", "tr") for pair in (("en", other), (other, "en")))
