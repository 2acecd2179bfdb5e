"""Runs the cells of a notebook, and stores or compares their outputs.

    python -m tests.notebooks NOTEBOOK.ipynb            runs it, and fails if a stored text differs
    python -m tests.notebooks NOTEBOOK.ipynb --store    runs it, and stores the outputs in the file

A notebook without outputs is only run. Cells with the tag ``noisy`` print something else each time,
so their texts are not compared. Pictures are compared by their number.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import os
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt

DOTS_PER_INCH = 90


def outputs_of(source: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    """Run one cell; return its text and its pictures, as a notebook stores them."""
    said = io.StringIO()
    with redirect_stdout(said):
        exec(compile(source, "cell", "exec"), names)
    outputs: list[dict[str, Any]] = []
    if said.getvalue():
        lines = said.getvalue().splitlines(keepends=True)
        outputs.append({"name": "stdout", "output_type": "stream", "text": lines})
    for number in plt.get_fignums():
        picture = io.BytesIO()
        plt.figure(number).savefig(picture, format="png", dpi=DOTS_PER_INCH)
        png = base64.b64encode(picture.getvalue()).decode()
        data = {"image/png": png, "text/plain": ["<Figure>"]}
        outputs.append({"data": data, "metadata": {}, "output_type": "display_data"})
    plt.close("all")
    return outputs


def comparable(cell: dict[str, Any]) -> tuple[str, int]:
    """Return the text of a cell's outputs, empty if it is noisy, and the number of pictures."""
    outputs = cell["outputs"]
    pictures = sum(output["output_type"] == "display_data" for output in outputs)
    if "noisy" in cell["metadata"].get("tags", []):
        return "", pictures
    return "".join("".join(output.get("text", [])) for output in outputs), pictures


def main() -> int:
    """Run a notebook in its own folder."""
    parser = argparse.ArgumentParser()
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--store", action="store_true")
    options = parser.parse_args()
    path = options.notebook.resolve()
    notebook = json.loads(path.read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    has_outputs = any(cell["outputs"] for cell in cells)
    os.chdir(path.parent)
    matplotlib.use("Agg")
    names: dict[str, Any] = {"__name__": "__main__"}
    code = 0
    for number, cell in enumerate(cells, 1):
        outputs = outputs_of("".join(cell["source"]), names)
        for output in outputs:
            print("".join(output.get("text", [])), end="")
        before = comparable(cell)
        after = comparable({**cell, "outputs": outputs})
        if options.store:
            cell["outputs"], cell["execution_count"] = outputs, number
        elif has_outputs and before != after:
            print(f"cell {number} has other outputs than stored:\n{before}", file=sys.stderr)
            code = 1
    if options.store:
        text = json.dumps(notebook, indent=1, ensure_ascii=False)
        path.write_text(f"{text}\n", encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main())
