"""What pyproject.toml cannot say: the README as an index of packages shows it.

The address of the repository is written once, as `Source` in `project.urls`.  As long as there is none, links to files
become plain text, and pictures are left out.
"""

import re
import tomllib
from pathlib import Path

from setuptools import setup


def linked(readme: str, urls: dict[str, str]) -> str:
    """Return the README with absolute links to pictures and files, or without them if the repository has no address."""
    picture = r"!\[([^]]*)\]\((docs/\w+\.svg)\)"
    link = r"\[([^]]*)\]\(((?:docs|examples)/\w+\.\w+)\)"
    if "Source" not in urls:
        return re.sub(link, r"\1", re.sub(rf"{picture}\n\n", "", readme))
    source = urls["Source"].rstrip("/")
    readme = re.sub(picture, rf"![\1]({source}/raw/HEAD/\2)", readme)
    return re.sub(link, rf"[\1]({source}/blob/HEAD/\2)", readme)


if __name__ == "__main__":
    here = Path(__file__).parent
    project = tomllib.loads((here / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    setup(
        long_description=linked((here / "README.md").read_text(encoding="utf-8"), project.get("urls", {})),
        long_description_content_type="text/markdown",
    )
