"""What pyproject.toml cannot say: the README as an index of packages shows it.

The address of the repository is written once, as `Source` in `project.urls`.  As long as there is none, names of files
stay names, and pictures are left out.
"""

import re
import tomllib
from pathlib import Path

from setuptools import setup


def linked(readme: str, urls: dict[str, str]) -> str:
    """The README with its pictures and, for "`docs/steps.md`", links, if the address of the repository is known."""
    picture = r"!\[([^]]*)\]\((docs/\w+\.svg)\)"
    if "Source" not in urls:
        return re.sub(rf"{picture}\n\n", "", readme)
    source = urls["Source"].rstrip("/")
    readme = re.sub(picture, rf"![\1]({source}/raw/HEAD/\2)", readme)
    return re.sub(r"(?<!\[)`((?:docs|examples)/\w+\.\w+)`", rf"[`\1`]({source}/blob/HEAD/\1)", readme)


if __name__ == "__main__":
    here = Path(__file__).parent
    project = tomllib.loads((here / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    setup(
        long_description=linked((here / "README.md").read_text(encoding="utf-8"), project.get("urls", {})),
        long_description_content_type="text/markdown",
    )
