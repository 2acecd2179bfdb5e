"""What `import accounting` brings with it, and that every name can be had from it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import accounting

ROOT = Path(__file__).parents[3]


def test_whoever_admits_and_charges_waits_for_no_report_and_no_special_function() -> None:
    code = (
        "import sys; from accounting import MEASURES, GdpFilter, ZcdpFilter, advance_units\n"
        "MEASURES['gdp'].filter_of([2**44])\n"
        "print({'accounting.reports', 'scipy.special', 'scipy.optimize'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "set()"


def test_names_of_reports_are_listed_and_others_are_refused() -> None:
    assert set(accounting.__all__) <= set(dir(accounting))
    assert not hasattr(accounting, "no_such_name")
