"""Write docs/models.md from docs/models.json; ``--run`` runs the families that follow, or all; ``--check`` compares."""

import json
import re
import sys
from pathlib import Path
from typing import Any

from generated import write_or_check

DOCS = Path(__file__).parents[1] / "docs"
PAGE, DATA = DOCS / "models.md", DOCS / "models.json"

_HEAD = """\
# Models

Every family of transformers {transformers} that has a head for text, images or sound, made tiny with random weights and
run (`make families`). In each, a step of AD-DROP and one of vanilla dropout (p = q = 0.5) must change the gradients,
vanilla dropout must drop in each attention layer, padding must keep the weight 0, and evaluation afterwards must equal
the stock model's bit for bit. `attendrop doctor MODEL` tests a model of your own.

**{works} families work**, {partly} in part, {refused} are refused with the reason, {unbuilt} could not be tried.

## Work

*Inputs*: what was tried. A vision-language model that was tried with text alone may be refused when images come.
A tower that attends within each image or sound by itself (`cu_seqlens`, as in Qwen2-VL) is left alone, with a warning.
*Attention*: the layers that were found in a tiny model.

| family | tried with | inputs | attention |
|---|---|---|---|
"""
_PARTLY = """
## Work in part

| family | tried with | works with | refused otherwise |
|---|---|---|---|
"""
_REFUSED = "\n## Refused\n\nIn the library's words, with … for the class and the layer.\n"
_UNBUILT = """
## Could not be tried

No tiny model could be made and trained here from the configuration alone, or it needs a package that is not installed:

"""


def page(found: dict[str, Any]) -> str:
    """The page as it should be, from the data."""
    unbuilt = [row for row in found["rows"] if "unbuilt" in row]
    tried = [row for row in found["rows"] if "unbuilt" not in row]
    works = [row for row in tried if row["refused"] is None]
    partly = [row for row in tried if "works" in row]
    refused = [row for row in tried if row["refused"] is not None and "works" not in row]
    counts = {"works": len(works), "partly": len(partly), "refused": len(refused), "unbuilt": len(unbuilt)}
    text = _HEAD.format(transformers=found["transformers"], **counts)
    for row in works:
        layers = ", ".join(f"{count} {kind}" for kind, count in row["attention"].items())
        inputs = " and ".join(row["inputs"])
        text += f"| {row['family']} | `{row['model']}` | {inputs} | {layers} |\n"
    text += _PARTLY
    for row in partly:
        text += f"| {row['family']} | `{row['model']}` | {row['works']} | {row['refused']} |\n"
    text += _REFUSED
    for reason, rows in _by_reason(refused):
        text += f"\n> {reason}\n\n" + ", ".join(f"{row['family']} (`{row['model']}`)" for row in rows) + "\n"
    return text + _UNBUILT + ", ".join(row["family"] for row in unbuilt) + "\n"


def _by_reason(rows: list[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    """The refused families under what is said of them, the most frequent first."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        reason = re.sub(r" \([\w.]+\.[\w.]+(, in [^)]*)?\)", "", row["refused"])
        reason = re.sub(rf"{row['model']}|\b[A-Z]\w+(Attention\w*|Model)\b", "…", reason)
        reason = re.sub(r"[\w.]+ \([\w…]+\)( and \d+ more)?", "some of its layers", reason)
        groups.setdefault(reason, []).append(row)
    return sorted(groups.items(), key=lambda group: -len(group[1]))


def run(names: list[str]) -> None:
    """Run the families that are named, or all, which takes minutes, and keep what was found.

    Raises:
        SystemExit: The library is wrong about some, which then keep what was known of them.
    """
    sys.path.insert(0, str(DOCS.parent / "tests"))
    import transformers
    from helpers.families import families, row

    known = {row["family"]: row for row in json.loads(DATA.read_text(encoding="utf-8"))["rows"]} if names else {}
    wrong = []
    for name in names or sorted(families()):
        try:
            known[name] = row(name)
            print(json.dumps(known[name], ensure_ascii=False), flush=True)
        except Exception as error:  # whatever the library does wrong, the others are to be run
            wrong.append(f"{name}: {type(error).__name__}: {error}")
            print(wrong[-1], flush=True)
    lines = [json.dumps(known[name], ensure_ascii=False) for name in sorted(known)]
    DATA.write_text(
        f'{{"transformers": "{transformers.__version__}", "rows": [\n' + ",\n".join(lines) + "\n]}\n", encoding="utf-8"
    )
    if wrong:
        sys.exit("The library is wrong about:\n" + "\n".join(wrong))


if __name__ == "__main__":
    if "--run" in sys.argv:
        run(sys.argv[sys.argv.index("--run") + 1 :])
    write_or_check({PAGE: page(json.loads(DATA.read_text(encoding="utf-8")))})
