"""Studies and comparisons: many runs, their statistics, and the resulting recommendation.

- A :class:`~attendrop.studies.units.Unit` is one requested run, and a ``Result`` its ``metrics.json`` or error.
- A :class:`~attendrop.studies.method_rows.MethodRow` is a method in a table: its scores, and how it compares.
- A :class:`~attendrop.studies.verdict.Verdict` is the recommendation that follows from rows;
  :mod:`~attendrop.studies.words` words it.
- An :class:`~attendrop.studies.answer.Answer` is the result for one setting: the rows, the verdict and its limits.
- A :class:`~attendrop.studies.study.StudyReport` has the answers of all settings of a study, and methods over them.
- A :class:`~attendrop.studies.comparison.Comparison` has the options of ``attendrop compare``, and an
  :class:`~attendrop.studies.compare.Outcome` has the answer of a comparison, the trials, and the model it keeps.
- :class:`~attendrop.reports.results.Results` are the answers of a folder with its finished runs, by setting, as they
  are read back, and a :class:`~attendrop.reports.report.Report` the tables, figures and page that are made of them.
"""
