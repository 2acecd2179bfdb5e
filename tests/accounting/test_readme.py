"""The example of the README runs as it stands there."""

import re
from pathlib import Path

import numpy as np

README = Path(__file__).parents[2] / "README.md"


def test_the_example_of_the_library_runs_and_its_bounds_are_ordered() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    (example,) = [block for block in blocks if "from accounting import" in block]
    names: dict[str, object] = {}
    exec(example, names)
    lower, estimate, upper = names["epsilon"].bounds
    assert np.all((lower <= estimate) & (estimate <= upper))
    assert np.all(upper < 2.0)  # no user lost more than the noise was chosen for
    assert names["admitted"].all()
