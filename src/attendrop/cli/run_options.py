"""Options of runs that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

from attendrop.tasks.heads.builtin import LABEL_TYPES

TaskName = Annotated[
    str | None,
    typer.Option(help="Name of a task, or of a kind of task with --train-file; `attendrop tasks` lists them."),
]
TrainFile = Annotated[
    str | None,
    typer.Option(
        help="Training data: a .csv, .tsv, .jsonl, .parquet, .conll, .conllu or .txt file, A.txt,B.txt, or a folder of "
        "images."
    ),
]
LabelType = Annotated[
    str | None,
    typer.Option(
        help=f"Kind of task, by its labels: {', '.join(LABEL_TYPES[:-1])} or {LABEL_TYPES[-1]}.", show_default="auto"
    ),
]
TaskSet = Annotated[
    list[str] | None,
    typer.Option("--task-set", metavar="NAME=VALUE", help="Option of the kind of task: num_beams=4, pack=true."),
]
SkipBadRowsOfFiles = Annotated[bool | None, typer.Option(help="Skip invalid rows of your files, and list them.")]
UnknownLabels = Annotated[
    str | None,
    typer.Option(help="Labels of the eval file that training lacks: error, or count as wrong.", show_default="error"),
]
Model = Annotated[str | None, typer.Option(help="minilm, a folder, or a hub id.", show_default="minilm")]
Pooling = Annotated[
    str | None,
    typer.Option(help="What the classifier reads: cls, mean (of all tokens) or auto.", show_default="auto"),
]
HeadStart = Annotated[
    str | None,
    typer.Option(
        help="Start of a new head: random, frozen (a linear model), contrastive (after SetFit's stage) or auto.",
        show_default="auto",
    ),
]
Lora = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="Train a LoRA adapter: r=8, alpha=16, dropout=0.05, targets=all-linear."),
]
Epochs = Annotated[int | None, typer.Option(help="Number of epochs, instead of steps.")]
MaxSteps = Annotated[
    int | None,
    typer.Option(help="Number of training steps; overrides --epochs.", show_default="by the number of rows"),
]
BatchSize = Annotated[int | None, typer.Option(help="Rows per process.", show_default="16")]
LearningRate = Annotated[float | None, typer.Option(show_default="by the size of the model")]
GradientAccumulation = Annotated[int | None, typer.Option(help="Batches per step.", show_default="1")]
WeightDecay = Annotated[float | None, typer.Option(show_default="0.01")]
Schedule = Annotated[str | None, typer.Option(help="linear, constant or cosine.", show_default="linear")]
Warmup = Annotated[float | None, typer.Option(help="Fraction of all steps.", show_default="0.1")]
MaxLength = Annotated[int | None, typer.Option(help="In tokens.", show_default="128")]
LongTexts = Annotated[
    str | None,
    typer.Option(help="Texts over --max-length: head, head+tail, or windows with one score.", show_default="head"),
]
MaxTrainSamples = Annotated[int | None, typer.Option(help="Number of training rows to use.")]
Shift = Annotated[
    bool | None,
    typer.Option("--shift", help="Also score on rows unlike the training rows: whole groups of like texts, held out."),
]
ShiftColumn = Annotated[
    str | None, typer.Option(help="With --shift: hold out the last whole values of this column, such as months.")
]
Shots = Annotated[int | None, typer.Option(help="Number of training rows per class to use.")]
ClassWeights = Annotated[
    str | None, typer.Option(help="balanced: classes have equal weight in the loss.", show_default="none")
]
MetricName = Annotated[
    str | None,
    typer.Option(help="Metric for model selection: f1_macro, balanced_accuracy ...", show_default="the task's"),
]
Bf16 = Annotated[bool | None, typer.Option(help="bfloat16 mixed precision.")]
Fp16 = Annotated[bool | None, typer.Option(help="float16 mixed precision; needs a GPU.")]
EvalBatchSize = Annotated[int | None, typer.Option(show_default="64")]
