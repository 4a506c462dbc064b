"""Heads of the library, in the order in which a saved model is asked for its own; the last accepts any model."""

# ruff: noqa: I001
from attendrop.tasks.heads.image_classification import ImageClassification as ImageClassification
from attendrop.tasks.heads.question_answering import QuestionAnswering as QuestionAnswering
from attendrop.tasks.heads.multiple_choice import MultipleChoice as MultipleChoice
from attendrop.tasks.heads.translation import Translation as Translation
from attendrop.tasks.heads.text_generation import TextGeneration as TextGeneration
from attendrop.tasks.heads.masked_language_modeling import MaskedLanguageModeling as MaskedLanguageModeling
from attendrop.tasks.heads.token_classification import TokenClassification as TokenClassification
from attendrop.tasks.heads.multi_label import MultiLabel as MultiLabel
from attendrop.tasks.heads.regression import Regression as Regression
from attendrop.tasks.heads.classification import Classification as Classification
