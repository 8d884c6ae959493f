# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The site's own steps: links to files outside `docs` lead to the repository, and the C reference is made of the headers."""

import pathlib
import re

ROOT = pathlib.Path(__file__).parents[1]
LINK = re.compile(r"(\]\()((?:\.\./)+)([^)#\s]+)")


def _outward(markdown: str, page: str, repository: str) -> str:
    """Links that leave `docs` (README, sources) are files of the repository."""
    depth = page.count("/")

    def target(match: re.Match[str]) -> str:
        start, up, rest = match.groups()
        if up.count("../") <= depth:
            return match[0]
        return f"{start}{repository}/blob/main/{rest}"

    return LINK.sub(target, markdown)


def _headers() -> str:
    """Returns each header as it is: its comments say what every function takes and gives."""
    parts = ["# C", "", "`cc app.c $(pkg-config --cflags --libs memlift)` after `make install`. Each header is whole by itself.", ""]
    for header in sorted((ROOT / "bindings/c/include").glob("*.h")):
        parts += [f"## {header.name}", "", "```c", header.read_text().rstrip(), "```", ""]
    return "\n".join(parts)


def on_page_markdown(markdown, page, config, files):
    if page.file.src_uri == "reference/c.md":
        markdown = _headers()
    return _outward(markdown, page.file.src_uri, config.extra["repository"])
