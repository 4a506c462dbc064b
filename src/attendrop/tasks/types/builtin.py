"""Label types of the heads, for what is checked before PyTorch is imported: the registry has the heads themselves."""

LABEL_TYPES = ("auto", "choice", "class", "labels", "number", "tags", "text")
# Label types of tables with columns of texts and a column of labels, by what a label is. Such files are inspected, and
# their columns guessed, before PyTorch is loaded.
ONE_CLASS, SEVERAL_CLASSES, NUMBER = ("class",), ("labels",), ("number",)
# Those of which a label has a tag for each word of a text.
OF_WORDS = ("tags",)
# Those for which the default model of runs, an encoder of text, has no class.
OF_OTHER_MODELS = ("text",)
