"""Run the first example of a README as it stands there, and look at what it prints.

It is run where only the wheel is installed: ``python scripts/first_example.py README.md``.
"""

import re
import subprocess
import sys
from pathlib import Path

import forebay

example = re.search(r"```python\n(.*?)```", Path(sys.argv[1]).read_text(), re.S)[1]
assert ".venv" not in forebay.__file__ and "src" not in Path(forebay.__file__).parts, forebay.__file__

printed = subprocess.run(  # noqa: S603 - our own README
    [sys.executable, "-c", example], stdout=subprocess.PIPE, text=True, check=True
).stdout
found = re.findall(r"^\|(\{.*?\})\|(\d) +\|.*\|(\d+) *\|$", printed, re.MULTILINE)
whole = [(window, carrier) for window, carrier, rows in found if int(rows) == 2000]  # 1,000 a second, 5 carriers, 10 s
assert whole, printed
assert len(set(found)) == len(found) and len(whole) % 5 == 0, found
print(f"forebay {forebay.__version__}: the README's first example gives {len(found)} rows")  # noqa: T201 - for a terminal
