"""Pages: README leads to each page of docs/ in one click, and links lead to files and headings that exist."""
import os
import re

import files

LINK = re.compile(r"\[[^\[\]]*\]\(([^()\s]+)\)")
FENCE = re.compile(r"^ *```.*?^ *```", re.M | re.S)


def prose(root, page):
    """The page without its blocks of code."""
    return FENCE.sub("", files.read(root, page))


def targets(root, page):
    """(path in the repository, heading or "") of each link of the page that leads to a file of the repository."""
    for link in LINK.findall(prose(root, page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, heading = link.partition("#")
        yield os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page, heading


def headings(root, page):
    """As GitHub names them in links."""
    found = set()
    for title in re.findall(r"^#+ +(.*)$", prose(root, page), re.M):
        found.add(re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-"))
    return found


def violations(root):
    found = []
    listed = set(files.listed(root))
    pages = sorted(p for p in listed if p.endswith(".md") and (p.startswith("docs/") or "/" not in p))
    linked = {path for path, _ in targets(root, "README.md")} if "README.md" in listed else set()
    for page in pages:
        if page.startswith("docs/") and page not in linked:
            found.append(f"README.md: no link to {page}")
        for path, heading in targets(root, page):
            if not os.path.exists(os.path.join(root, path)):
                found.append(f"{page}: links to {path}, which does not exist")
            elif heading and path.endswith(".md") and heading not in headings(root, path):
                found.append(f"{page}: links to {path}#{heading}, and there is no such heading")
    return found
