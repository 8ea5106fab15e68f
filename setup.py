"""What pyproject.toml cannot say: the README as an index of packages shows it.

The address of the repository is written once, as `Source` in `project.urls`.  As long as there is none, names of files
stay names.
"""

import re
import tomllib
from pathlib import Path

from setuptools import setup


def linked(readme: str, urls: dict[str, str]) -> str:
    """The README, in which "`docs/steps.md`" is a link to that file, if the address of the repository is known."""
    if "Source" not in urls:
        return readme
    files = urls["Source"].rstrip("/") + "/blob/HEAD"
    return re.sub(r"(?<!\[)`((?:docs|examples)/\w+\.\w+)`", rf"[`\1`]({files}/\1)", readme)


if __name__ == "__main__":
    here = Path(__file__).parent
    project = tomllib.loads((here / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    setup(
        long_description=linked((here / "README.md").read_text(encoding="utf-8"), project.get("urls", {})),
        long_description_content_type="text/markdown",
    )
