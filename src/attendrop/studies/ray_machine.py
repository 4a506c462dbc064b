"""What a machine of a Ray cluster does: it runs one unit after another in a process that stays warm."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from attendrop.output_files import write_bytes
from attendrop.runs.run_folder import METRICS
from attendrop.studies.worker_process import forward_warnings, perform

# What shows that a run is finished, and how it was run.
_RECORDS = (".json", ".yaml")


class RayProcess:
    """Process on a machine of the cluster: Ray starts it, and carries out the calls of its methods there."""

    def __init__(self) -> None:
        self._warnings: list[str] = []

    def prepare(self, environment: Mapping[str, str], folder: str) -> str:
        """Prepare for runs, before PyTorch is imported; return the name of the machine.

        Args:
            environment: Variables to set.
            folder: Current folder of the study, for relative paths; ignored where it does not exist.
        """
        os.environ.update(environment)
        with suppress(OSError):
            os.chdir(folder)
        forward_warnings(lambda message: self._warnings.append(message["text"]))
        from attendrop.runs.shared_results import share_results  # brings PyTorch

        share_results()
        return socket.gethostname()

    def run(self, job: dict[str, Any]) -> dict[str, Any]:
        """Run a job, see :func:`run_on_machine`; the message has its ``warnings``, too."""
        self._warnings.clear()
        message = run_on_machine(job)
        return message | {"warnings": list(self._warnings)}


def run_on_machine(job: dict[str, Any]) -> dict[str, Any]:
    """Run a job in this process, and return the message about its end, with the ``files`` of a finished run.

    If this machine has not the folder of the study, the run takes place in a temporary one, and all its files are sent.
    """
    folder = Path(job["folder"])
    shared = folder.parent.exists()
    if not shared:
        name = hashlib.sha256(job["folder"].encode()).hexdigest()[:16]
        folder = Path(tempfile.gettempdir()) / f"attendrop-{name}" / folder.name
    message = perform(job | {"folder": str(folder)}, lambda report: None)
    if message["kind"] == "finished":
        message["files"] = {
            str(path.relative_to(folder)): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file() and (not shared or path.suffix in _RECORDS)
        }
        if not shared:
            shutil.rmtree(folder.parent, ignore_errors=True)
    return message


def write_missing(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write the files of a run that are not here, ``metrics.json`` last: then it is finished."""
    for name in sorted(files, key=lambda name: name == METRICS):
        path = folder / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(path, files[name])
