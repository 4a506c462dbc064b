"""Size of the project, as a table in Markdown: ``python tools/house.py``, or ``make house``.

Lines are all lines of Python files and templates. Names are functions, methods and classes. Import lines are those of
import statements. Words are those of pages that people write: without generated pages and the log of experiments.
"""

import ast
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
GENERATED = ("methods.md", "models.md", "options.md", "paper_tables.md", "paper_twins.md", "experiments.md")


class Size(NamedTuple):
    """Size of some files."""

    lines: int
    names: int
    files: int
    import_share: float  # of lines
    median_function: float  # lines


def size_of(files: Iterable[Path]) -> Size:
    """Count lines, names, files and import lines of Python files and templates."""
    lines = imports = names = 0
    functions: list[int] = []
    files = list(files)
    for file in files:
        text = file.read_text(encoding="utf-8")
        lines += len(text.splitlines())
        for node in ast.walk(ast.parse(text)) if file.suffix == ".py" else ():
            match node:
                case ast.Import() | ast.ImportFrom():
                    imports += (node.end_lineno or node.lineno) - node.lineno + 1
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    functions.append((node.end_lineno or node.lineno) - node.lineno + 1)
                    names += 1
                case ast.ClassDef():
                    names += 1
    return Size(lines, names, len(files), imports / max(lines, 1), statistics.median(functions or [0]))


def code_below(folder: Path) -> list[Path]:
    """List the Python files and templates below a folder."""
    return sorted(
        file
        for file in folder.rglob("*")
        if file.is_file() and file.suffix in (".py", ".html", ".js", ".css", ".j2") and "__pycache__" not in file.parts
    )


def main() -> None:
    """Print the table."""
    print("| | lines | functions + classes | files | imports | median function |\n|---|---:|---:|---:|---:|---:|")

    def row(name: str, files: Iterable[Path]) -> None:
        size = size_of(files)
        print(
            f"| {name} | {size.lines:,} | {size.names:,} | {size.files:,} | {size.import_share:.1%} | "
            f"{size.median_function:.0f} |"
        )

    for package in sorted((ROOT / "src").iterdir()):
        if not package.is_dir() or package.name.endswith(".egg-info"):
            continue
        files = code_below(package)
        row(f"`src/{package.name}`", files)
        for part in sorted({file.relative_to(package).parts[0] for file in files if file.parent != package}):
            row(f"&nbsp;&nbsp;{part}", code_below(package / part))
        row("&nbsp;&nbsp;*beside these*", [file for file in files if file.parent == package])
    row("tests", code_below(ROOT / "tests"))
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    words = sum(
        len(page.read_text(encoding="utf-8").split())
        for page in pages
        if page.name not in GENERATED and not any(part.startswith("_") for part in page.relative_to(ROOT).parts)
    )
    print(f"\nWords of README and docs: {words:,}; of CONTRIBUTING: ", end="")
    print(f"{len((ROOT / 'CONTRIBUTING.md').read_text(encoding='utf-8').split()):,}.")


if __name__ == "__main__":
    main()
