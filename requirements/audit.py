"""Asks whether what is locked has vulnerabilities that somebody has published.

    python requirements/audit.py PIP_AUDIT FILE...

Exit code 1: there are some, named with the release that mends them. Where the service that knows
them cannot be reached, or knows none of the packages, that is said, and is no failure: the locked
files were then only compared with their hashes by whoever installed from them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any


def findings(report: dict[str, Any]) -> tuple[list[str], int, int]:
    """What was found, a line each; how many packages were asked about, and how many not."""
    found, asked, skipped = [], 0, 0
    for package in report["dependencies"]:
        if "skip_reason" in package:
            skipped += 1
            continue
        asked += 1
        for vulnerability in package["vulns"]:
            mended = ", ".join(vulnerability["fix_versions"]) or "no release yet"
            name = f"{package['name']} {package['version']}"
            found.append(f"{name}: {vulnerability['id']}, mended in {mended}")
    return found, asked, skipped


def main(program: str, files: list[str]) -> int:
    """1 if something was found."""
    failed = False
    for file in files:
        command = [program, "--require-hashes", "--disable-pip", "--format", "json"]
        done = subprocess.run(
            [*command, "--progress-spinner", "off", "--requirement", file],
            capture_output=True,
            text=True,
            check=False,
        )
        try:
            found, asked, skipped = findings(json.loads(done.stdout))
        except ValueError:
            reason = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            print(f"{file}: NOT audited, the service cannot be reached: {reason}")
            continue
        if not asked:
            print(f"{file}: NOT audited, the service knows none of its {skipped} packages")
            continue
        print(f"{file}: {len(found)} found in {asked} packages, {skipped} were not audited")
        print(*(f"  {line}" for line in found), sep="\n", end="\n" if found else "")
        failed = failed or bool(found)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
