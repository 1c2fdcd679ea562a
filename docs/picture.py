"""Draw docs/demo.svg from what `refdraft demo` prints on a terminal.

script -qec '.venv/bin/refdraft demo' /tmp/demo.txt && .venv/bin/python docs/picture.py /tmp/demo.txt
"""

import re
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

WIDTH = 110  # columns
TASKS = 3  # of the demo; the rest looks the same


def main() -> None:
    """Keep the first tasks and the summary, and draw them."""
    text = Path(sys.argv[1]).read_text(encoding="utf-8").replace("\r", "")
    lines = [line for line in text.splitlines() if not line.startswith("Script ")]
    start = next(i for i, line in enumerate(lines) if "[1/" in line)
    cut = next(i for i, line in enumerate(lines) if f"[{TASKS + 1}/" in line)
    summary = next(i for i, line in enumerate(lines) if line.startswith("task "))
    with Path("/dev/null").open("w") as nowhere:
        console = Console(width=WIDTH, record=True, file=nowhere, force_terminal=True)
        console.print("$ refdraft demo", style="bold")
        console.print(Text.from_ansi("\n".join(lines[start:cut] + lines[summary:])))
        svg = re.sub(r"@font-face \{.*?\}", "", console.export_svg(title="refdraft demo"), flags=re.DOTALL)
    Path(__file__).with_name("demo.svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
