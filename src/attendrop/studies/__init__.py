"""Studies and comparisons: many runs, their statistics, and the resulting recommendation.

- A :class:`~attendrop.studies.executor.RunSpec` is one requested run, which a
  :class:`~attendrop.studies.executor.Runner` performs; the last ``Event`` of it has its ``metrics.json`` or error.
- A :class:`~attendrop.studies.answer.MethodRow` is a method in a table: its scores, and how it compares.
- A :class:`~attendrop.studies.answer.Verdict` is the recommendation that follows from rows, in numbers and in words.
- An :class:`~attendrop.studies.answer.Answer` is the result for one setting: the rows, the verdict and its limits.
- A :class:`~attendrop.studies.results.Results` has the answers of all settings of a study, and methods over them.
- A :class:`~attendrop.studies.screening.Screening` says which encoder to compare methods on, and a
  :class:`~attendrop.studies.learning_curve.LearningCurve` what more rows would bring.
- A :class:`~attendrop.studies.comparison.Comparison` has the options of ``attendrop compare``, and an
  :class:`~attendrop.studies.compare.Outcome` has the answer of a comparison, the trials, and the model it keeps.
"""

# Names of the baselines, the cheapest first.
MAJORITY, TFIDF, FROZEN, SETFIT = BASELINES = ("majority", "tfidf", "frozen", "setfit")
# Those that cost little compared with fine-tuning.
CHEAP = (MAJORITY, TFIDF, FROZEN)
