"""Ask whether locked packages have known vulnerabilities.

    python requirements/audit.py [--allow-unaudited] PIP_AUDIT FILE...

Exit codes: 0 if every package was audited and none is vulnerable; 1 if a package is vulnerable; 3
if a package was not audited, because the advisory service cannot be reached or does not know it.
With --allow-unaudited the last case is reported and ends with 0.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

VULNERABLE, NOT_AUDITED = 1, 3


def findings(report: dict[str, Any]) -> tuple[list[str], int, int]:
    """Return a line for each vulnerability, and how many packages were and were not audited."""
    found, audited, unaudited = [], 0, 0
    for package in report["dependencies"]:
        if "skip_reason" in package:
            unaudited += 1
            continue
        audited += 1
        for vulnerability in package["vulns"]:
            fixed = ", ".join(vulnerability["fix_versions"]) or "no release yet"
            name = f"{package['name']} {package['version']}"
            found.append(f"{name}: {vulnerability['id']}, fixed in {fixed}")
    return found, audited, unaudited


def audit(program: str, file: Path) -> int:
    """Print what is known of one file, and return its exit code."""
    # pip-audit leaves out packages of other Pythons; without their markers it asks about all.
    text = re.sub(r" ; .*(?= \\$)", "", file.read_text(), flags=re.MULTILINE)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as unmarked:
        unmarked.write(text)
        unmarked.flush()
        options = ["--require-hashes", "--disable-pip", "--progress-spinner", "off"]
        command = [program, *options, "--format", "json", "--requirement", unmarked.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        found, audited, unaudited = findings(json.loads(done.stdout))
    except ValueError:
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
        print(f"{file}: not audited: {reason}")
        return NOT_AUDITED
    print(f"{file}: {len(found)} found in {audited} packages, {unaudited} were not audited")
    print(*(f"  {line}" for line in found), sep="\n", end="\n" if found else "")
    if found:
        return VULNERABLE
    return NOT_AUDITED if unaudited or not audited else 0


def main() -> int:
    """Return the exit code of the worst file."""
    parser = argparse.ArgumentParser(description="Ask whether locked packages are vulnerable.")
    parser.add_argument("--allow-unaudited", action="store_true")
    parser.add_argument("program", metavar="PIP_AUDIT")
    parser.add_argument("files", metavar="FILE", nargs="+", type=Path)
    options = parser.parse_args()
    codes = {audit(options.program, file) for file in options.files}
    if VULNERABLE in codes:
        return VULNERABLE
    if NOT_AUDITED in codes and not options.allow_unaudited:
        print("Not audited. Where no advisory service can be reached: make audit UNAUDITED=1")
        return NOT_AUDITED
    return 0


if __name__ == "__main__":
    sys.exit(main())
