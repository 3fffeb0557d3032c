"""How large an install is and how long it takes: a fresh environment for each set of extras, from this folder, with the pinned versions.

    python benchmarks/install_size.py [--extras "" torch,ray all] [--cpu FOLDER]

Prints a table and writes it to benchmarks/results/install_size.md. `--cpu` adds a row for each set that has torch, with torch's CPU build, whose
wheel lies in that folder. pip takes from its cache what it has already; `--no-cache` downloads everything.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
FIRST_RUN = "import raypid\nwith raypid.PPO(env='CartPole-v1') as agent: agent.train()"


def measure(extras: str, more: list[str]) -> str:
    """Install with these extras, and train one iteration; returns the row of the table."""
    with tempfile.TemporaryDirectory(prefix="raypid-size-") as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        python, what = str(Path(folder, "bin", "python")), f"{ROOT}[{extras}]" if extras else str(ROOT)
        before, start = _megabytes(folder), time.perf_counter()
        pip = [python, "-m", "pip", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "-q", *more, "-c", str(ROOT / "constraints.txt"), what], check=True)
        seconds = time.perf_counter() - start
        size = _megabytes(folder) - before
        text = subprocess.run([*pip, "list", "--format", "json"], check=True, capture_output=True, text=True).stdout
        packages = {one["name"]: one["version"] for one in json.loads(text)}
        subprocess.run([python, "-c", FIRST_RUN], check=True, cwd=folder)
        command = f'pip install ".[{extras}]"' if extras else "pip install ."
        torch = packages.get("torch", "–") + (" with CUDA" if any(n.startswith("nvidia-") for n in packages) else "")
        return f"| `{command}` | {torch} | {size:,.0f} MB | {len(packages) - 1} | {seconds:.0f} s |"


def _megabytes(folder: str) -> float:
    """What the files in a folder take on the disk, without links."""
    return sum(p.lstat().st_blocks * 512 for p in Path(folder).rglob("*") if not p.is_symlink()) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--extras", nargs="*", default=["", "torch,ray"], help="sets of extras, each with commas")
    parser.add_argument("--cpu", metavar="FOLDER", help="where the wheel of torch's CPU build is")
    parser.add_argument("--no-cache", action="store_true", help="download everything, as on a fresh machine")
    options = parser.parse_args()
    rows = [
        f"Linux, Python {platform.python_version()}, the versions of constraints.txt. Size: what pip wrote, with what it compiled. Time: pip's own.",
        "",
        "| | torch | size | packages | time |",
        "|---|---|---|---|---|",
    ]
    cache = ["--no-cache-dir"] if options.no_cache else []
    cpu = [(extras, ["--find-links", options.cpu]) for extras in options.extras if options.cpu and extras]
    print("\n".join(rows), flush=True)
    for extras, links in [*((extras, []) for extras in options.extras), *cpu]:
        rows.append(measure(extras, [*cache, *links]))
        print(rows[-1], flush=True)
    (ROOT / "benchmarks" / "results" / "install_size.md").write_text(
        "\n".join(["# Size of an install", "", *rows]) + "\n"
    )


if __name__ == "__main__":
    main()
