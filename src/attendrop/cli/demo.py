"""`attendrop demo`."""

from __future__ import annotations

import logging
import shlex
from pathlib import Path
from typing import Annotated

import typer

from attendrop.cli.app import Json, Quiet, Workers, app
from attendrop.cli.run_options import run_option
from attendrop.runs.config import checked
from attendrop.studies.comparison import Comparison

SETTINGS = shlex.split("--methods finetune,ad-drop --epochs 10 --label-names none")
logger = logging.getLogger(__name__)


@app.command()
def demo(
    output_dir: Annotated[
        str, typer.Option(help="Folder of the data and the answer; finished runs are not repeated.")
    ] = "attendrop-demo",
    model: Annotated[str, run_option("model")] = "minilm",
    seeds: Annotated[int, run_option("seeds", of=Comparison)] = 4,
    workers: Workers = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run `attendrop compare` with AD-DROP on generated customer messages: minutes on two cores."""
    seeds = checked(Comparison, "seeds", seeds)

    import torch

    from attendrop.cli.console import messages
    from attendrop.cli.demo_messages import write_messages

    train, test = write_messages(Path(output_dir))
    command = ["compare", str(train), "--eval-file", str(test), "--model", model, *SETTINGS, "--seeds", str(seeds)]
    command += ["--output-dir", str(Path(output_dir) / "answer")]
    # Matrix units for bfloat16; by AVX-512 alone it takes longer than float32.
    command += ["--bf16"] * bool(torch.cpu.get_capabilities().get("amx_bf16"))
    command += [] if workers is None else ["--workers", str(workers)]
    command += ["--quiet"] * quiet + ["--json"] * as_json
    with messages(quiet=quiet):
        logger.info("attendrop %s", shlex.join(command))
    app(command, standalone_mode=False)
