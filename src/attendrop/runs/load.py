"""``attendrop.load``: the model in a folder, which predicts texts."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attendrop.errors import AttendropError
from attendrop.pruning.pruned_model import PrunedModel, load_model
from attendrop.runs.run_folder import check_whole
from attendrop.support.files import BASELINE_CONFIG, first_line
from attendrop.support.models import compute_device

if TYPE_CHECKING:
    from attendrop.runs.inference import RunModel

_FIRST = threading.Lock()  # of several threads, one prepares the model


def load(folder: str | Path) -> Any:
    """Load a model that was saved: of a run, pruned, as an adapter, or an ordinary one.

    Args:
        folder: A folder written by ``attendrop train``, ``attendrop prune``, ``attendrop compare`` (its ``best``),
            :meth:`PrunedModel.save_pretrained` or transformers.

    Returns:
        A model of transformers or a :class:`PrunedModel`, in evaluation mode, on the CPU; its ``predict`` is a
        :class:`TextPredictor`. An adapter is merged into its model. A base model that was saved without a pooler has
        none. A baseline that a comparison kept has ``predict`` alone: it is that :class:`TextPredictor`.

    Raises:
        AttendropError: The folder holds no model, an incomplete one, or one that is not as its run wrote it.
    """
    folder = Path(folder)
    check_whole(folder)
    place = folder.absolute()  # the first prediction may be in another working folder
    if (folder / BASELINE_CONFIG).is_file():
        return TextPredictor(place)
    try:
        model = load_model(folder)
    except AttendropError:
        raise
    except Exception as error:  # safetensors, transformers and PEFT share no base class
        raise AttendropError(f"The model in '{folder}' cannot be loaded ({first_line(error)}).") from error
    model.predict = TextPredictor(place, model)
    return model


@dataclass(eq=False)
class TextPredictor:
    """Prediction of texts with the model in a folder, as ``attendrop predict`` does, with the settings of its run.

    Threads may call it at the same time, such as those of a server, while the model is in evaluation mode.

    ``model`` is the loaded one, moved to a GPU by the first call if there is one; None for a baseline.
    """

    folder: Path
    model: Any = None
    run: RunModel | None = None

    def predict(self, texts: Iterable[Any], *, probabilities: bool = False) -> list[Any]:
        """Predict texts.

        Args:
            texts: A text each; where the model reads two or more together, such as pairs, a tuple of them each. Words
                to be tagged are a list, or a text with spaces between them. Other columns (``--with-columns``) stand in
                front of the text, as in training: ``channel: mail | ...``.
            probabilities: Return a dict each, with the columns that ``attendrop predict --probabilities`` writes: for
                classes ``label``, its ``probability`` and ``probability_CLASS`` of each class; and, if the model was
                trained with ``accept``, its ``confidence`` and whether it is ``accepted``.

        Returns:
            The name of the class of each text; for other kinds of tasks, what is in the column of answers of
            ``attendrop predict``, such as a list of labels or tags, or a number.

        Raises:
            AttendropError: A text is empty, or there are more or fewer than the model reads together; or the model has
                no probabilities.
        """
        if self.run is None:
            try:
                from attendrop.runs.inference import load_run
            except ModuleNotFoundError as error:
                raise AttendropError(f"predict needs {error.name}; run `pip install 'attendrop[cli]'`.") from None
            with _FIRST:
                inner = self.model.model if isinstance(self.model, PrunedModel) else self.model
                if self.run is None:
                    run = load_run(str(self.folder), model=inner)
                    if inner is not None:
                        inner.to(compute_device("auto"))
                    self.run = run
        return self.run.predict_texts(texts, probabilities=probabilities)

    __call__ = predict
