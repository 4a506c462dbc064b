"""Heads of the library, by label type, in the order in which a saved model is asked for its own.

The last accepts any model. Names are imported by the registry, so that the command line lists them without PyTorch.
"""

HEADS = {
    "choice": "multiple_choice.MultipleChoice",
    "text": "translation.Translation",
    "tags": "token_classification.TokenClassification",
    "labels": "multi_label.MultiLabel",
    "number": "regression.Regression",
    "class": "classification.Classification",
}
LABEL_TYPES = ("auto", *sorted(HEADS))
# Label types of tables with columns of texts and a column of labels, by what a label is. Such files are inspected, and
# their columns guessed, before PyTorch is loaded.
ONE_CLASS, SEVERAL_CLASSES, NUMBER = ("class",), ("labels",), ("number",)
# Those of which a label has a tag for each word of a text.
OF_WORDS = ("tags",)
# Those for which the default model of runs, an encoder of text, has no class.
OF_OTHER_MODELS = ("text",)
