"""The pages of the site: their order, their links, and the form in which Zensical reads them."""

import re
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from posixpath import dirname, join, normpath

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
CODE = re.compile(BLOCK.pattern + r"|`[^`\n]*`", BLOCK.flags)
LINK = re.compile(r"\]\(([^()\s]+)\)")
LANGUAGES = {".lua": "lua", ".h": "cpp", ".cpp": "cpp", ".sbatch": "sh", ".toml": "toml"}


def found(pattern):
    """Returns the paths of files in the repository, sorted."""
    return sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern))


def read_order():
    """Returns the sections of pages.txt: {title: [path of a page in the repository]}."""
    sections = {}
    for line in Path(__file__).with_name("pages.txt").read_text().splitlines():
        if line.startswith("["):
            pages = sections.setdefault(line.strip("[]"), [])
        elif line and not line.startswith("#"):
            paths = found(line)
            if not paths:
                raise SystemExit(f"docs/site/pages.txt: there is no {line}")
            pages += [path for path in paths if path not in pages]
    return sections


def without_code(text):
    """Returns the text with blanks in place of code, so that offsets stay."""
    return CODE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def title_of(text):
    return re.search(r"^# (.+)$", text, re.MULTILINE)[1].replace("`", "")


@cache
def anchors_of(page):
    """Returns the anchors of a page's headings: {GitHub's: that of the site}."""
    anchors, n_of = {}, Counter()
    for heading in re.findall(r"^#+ (.+)$", BLOCK.sub("", (ROOT / page).read_text()), re.MULTILINE):
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        n = n_of[name]
        n_of[name] += 1
        anchors[f"{name}-{n}" if n else name] = f"{name}_{n}" if n else name
    return anchors


def target_of(page, link):
    """Returns the file that a link of a page leads to, and its anchor: "" or None if outside."""
    path, _, anchor = link.partition("#")
    if "://" in link or link.startswith("mailto:"):
        return None, ""
    path = normpath(join(dirname(page), path)) if path else page
    if (ROOT / path / "README.md").is_file():
        path = join(path, "README.md")
    return path, anchor


def links_of(page, text):
    """Yields the line, the text and the target of each link of a page."""
    plain = without_code(text)
    for match in LINK.finditer(plain):
        path, anchor = target_of(page, match[1])
        if path is not None:
            yield plain.count("\n", 0, match.start()) + 1, match[1], path, anchor


def faults_of(pages):
    """Returns a line for each link that leads nowhere."""
    faults = []
    for page in pages:
        for line, link, path, anchor in links_of(page, (ROOT / page).read_text()):
            if not (ROOT / path).exists():
                faults.append(f"{page}:{line}: no such file: {link}")
            elif anchor and path.endswith(".md") and anchor not in anchors_of(path):
                faults.append(f"{page}:{line}: no such heading: {link}")
    return faults


def missing_pages(pages):
    """Returns the documents of users that pages.txt lacks."""
    return sorted(set(found("docs/*.md") + found("examples/*/README.md")) - set(pages))


def main():
    folders = ("docs", "examples", "fuzz", "tests")
    documents = sum((found(f"{folder}/**/*.md") for folder in folders), found("*.md"))
    pages = [page for section in read_order().values() for page in section]
    faults = faults_of(documents) + [
        f"{page}: docs/site/pages.txt lacks this page" for page in missing_pages(pages)
    ]
    print("\n".join(faults) or f"{len(documents)} documents: every link leads somewhere")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
