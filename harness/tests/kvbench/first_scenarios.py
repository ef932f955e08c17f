"""What a person does by hand to a file that `kvbench init` wrote."""

from __future__ import annotations

import re
from pathlib import Path


def declare_geometry(file: Path) -> None:
    """Take the `# ` away from the geometry that the file proposes."""
    text = file.read_text()
    found = re.search(r"^  # geometry:\n(?:  #   .*\n)+", text, re.MULTILINE)
    assert found is not None
    file.write_text(text.replace(found[0], found[0].replace("  # ", "  ")))
