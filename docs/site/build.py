"""Builds the site from the Markdown of the repository: build.py FOLDER. See build.sh."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from pages import LANGUAGES, LINK, ROOT, anchors_of, links_of, read_order, target_of, title_of, without_code


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def address_in_site(page, link):
    """Returns what a link becomes: folders and source files are pages of the site."""
    path, anchor = target_of(page, link)
    if path is None:
        return link
    anchor = anchor and "#" + anchors_of(path)[anchor]
    if path == page:
        return anchor
    if Path(path).suffix in LANGUAGES:
        path += ".md"
    return os.path.relpath(path, os.path.dirname(page) or ".") + anchor


def with_links(page, text):
    """Returns the text of a page with its links changed."""
    parts, end = [], 0
    for match in LINK.finditer(without_code(text)):
        parts += [text[end : match.start(1)], address_in_site(page, match[1])]
        end = match.end(1)
    return "".join(parts) + text[end:]


def front_page(text):
    """Returns the README with its first script beside the picture and the ways to install."""
    head, script, rest = re.split(r"(^```lua$.*?^```$)", text, maxsplit=1, flags=re.DOTALL | re.MULTILINE)
    beside, rest = rest.split("\n## ", 2)[:2], "\n## " + rest.split("\n## ", 2)[2]
    return (
        f'---\nhide: [navigation, toc]\n---\n{head}<div class="first" markdown>\n<div markdown>\n\n{script}\n\n</div>\n<div markdown>\n'
        + "\n## ".join(beside)
        + f"\n\n</div>\n</div>\n{rest}"
    )


def stage_target(path, folder):
    """Copies a file that a page leads to and that is no page; source files become pages."""
    source = ROOT / path
    if source.suffix in LANGUAGES:
        code = source.read_text()
        write(folder / f"{path}.md", f"# {path}\n\n````{LANGUAGES[source.suffix]}\n{code}````\n")
    elif source.suffix == ".md":
        write(folder / path, with_links(path, source.read_text()))
    elif source.is_file():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, folder / path)


def main(folder):
    sections = read_order()
    pages = [page for section in sections.values() for page in section]
    staged = folder / "pages"
    shutil.rmtree(folder, ignore_errors=True)
    navigation = "nav:\n"
    for section, section_pages in sections.items():
        navigation += f'  - "{section}":\n'
        for page in section_pages:
            text = (ROOT / page).read_text()
            for _, _, path, _ in links_of(page, text):
                if path not in pages:
                    stage_target(path, staged)
            if page == "README.md":
                text = front_page(text)
            write(staged / page, with_links(page, text))
            navigation += f'    - "{title_of(text)}": {page}\n'
    here = Path(__file__).parent
    for name in ("site.css", "iframe-worker.js"):
        shutil.copy(here / name, staged)
    configuration = folder / "mkdocs.yml"
    write(configuration, (here / "mkdocs.yml").read_text() + navigation)
    subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", configuration],
        check=True,
    )
    print(f"made {folder}/html/index.html")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
