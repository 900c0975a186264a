"""The documentation as a site: `sphinx-build -W docs FOLDER`; see CONTRIBUTING.md.

Pages are Markdown that GitHub shows as well. Each is also written as it is, beside its HTML, and
listed in `llms.txt`.
"""

import re
from os.path import relpath
from pathlib import Path

from docutils import nodes
from sphinx.transforms import SphinxTransform

import gpushmem

HERE = Path(__file__).parent
ROOT = HERE.parent

project, author, release = "gpushmem", "the gpushmem developers", gpushmem.__version__
extensions = ["myst_parser", "sphinx_click", "sphinx_copybutton"]
nitpicky = show_warning_types = True
smartquotes = False

myst_heading_anchors = 4
copybutton_prompt_text = r">>> |\$ "
copybutton_prompt_is_regexp = True

html_theme = "furo"
html_title = "gpushmem"
html_show_copyright = html_show_sphinx = False


# --- pages that are elsewhere in the repository: their text comes before the page's own

ELSEWHERE = {
    "index": "README.md", "contributing": "CONTRIBUTING.md", "changelog": "CHANGELOG.md",
    "examples": "examples/README.md",
}  # fmt: skip
LISTS = (
    "tutorial/index",
    "errors/index",
    "measurements/index",
)  # of pages in their folders
TOCTREE = "\n```{toctree}\n:hidden:\n:glob:\n\n*\n```\n"
PAGES = {ROOT / path: HERE / f"{name}.md" for name, path in ELSEWHERE.items()}
LINK = re.compile(r"\[([^][]*)\]\(([\w./-]+)(#[\w-]*)?\)")


def read(app, name, source):
    """Let links lead to pages; what is a folder has none."""
    page = HERE / f"{name}.md"
    if name in ELSEWHERE:
        there = ROOT / ELSEWHERE[name]
        source[0] = f"{_linked(there.read_text(), there, page)}\n{source[0]}"
    else:
        source[0] = _linked(source[0], page, page)
    if name in LISTS:
        source[0] += TOCTREE


def _linked(text, there, page):
    """A page's text, of a file that is elsewhere."""

    def link(found):
        label, target, anchor = found[1], (there.parent / found[2]).resolve(), found[3] or ""
        if target.is_dir():
            return label
        return f"[{label}]({relpath(PAGES.get(target, target), page.parent)}{anchor})"

    return LINK.sub(link, text)


# --- pictures with two modes


class Modes(SphinxTransform):
    """Pictures for GitHub's two modes, `x.svg#gh-dark-mode-only`, follow the site's theme."""

    default_priority = 400

    def apply(self, **_):
        """Change their classes."""
        for image in self.document.findall(nodes.image):
            uri, _, mode = image["uri"].partition("#gh-")
            if mode:
                image["uri"] = uri
                image["classes"].append("only-" + mode.removesuffix("-mode-only"))


# --- what a screen reader and a keyboard need, and the theme leaves out

NEEDED = {
    '<p class="caption" role="heading">': '<p class="caption" role="heading" aria-level="2">',
    '<aside class="sidebar-drawer">': '<aside class="sidebar-drawer" aria-label="All pages">',
    '<aside class="toc-drawer">': '<aside class="toc-drawer" aria-label="Parts of this page">',
    '<div class="content-icon-container">': '<div class="content-icon-container" role="navigation"'
    ' aria-label="Source and colours">',
    # code and tables that are wider than the page are scrolled by keys
    "<pre>": '<pre tabindex="0">',
    '<div class="table-wrapper': '<div tabindex="0" class="table-wrapper',
    '<th class="head"><p></p></th>': '<td class="head"></td>',  # above a column of names
}


def complete(app, error):
    """Complete the pages that are written."""
    if error is not None or app.builder.name != "html":
        return
    for path in Path(app.outdir).rglob("*.html"):
        text = path.read_text()
        for given, needed in NEEDED.items():
            text = text.replace(given, needed)
        path.write_text(text)


# --- the same pages as Markdown


def write_markdown(app, error):
    """Write the sources beside the pages, and list them in `llms.txt`."""
    if error is not None or app.builder.name != "html":
        return
    listed = [f"# gpushmem\n\n> {gpushmem.__doc__.splitlines()[0]}\n\n## Pages\n"]
    for name in sorted(app.env.found_docs):
        source = [Path(app.env.doc2path(name)).read_text()]
        read(app, name, source)
        source[0] = source[0].removesuffix(TOCTREE)
        copy = Path(app.outdir, f"{name}.md")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(source[0])
        listed.append(f"- [{app.env.titles[name].astext()}]({name}.md)")
    Path(app.outdir, "llms.txt").write_text("\n".join(listed) + "\n")


# --- the page of commands


def examples(app, ctx, lines):
    """Add a command's examples."""
    found = getattr(ctx.command, "examples", ())
    if found:
        lines += [".. code-block:: sh", "", *(f"    {line}" for line in found), ""]


def setup(app):
    """Add what is above."""
    app.connect("source-read", read)
    app.add_transform(Modes)
    app.connect("sphinx-click-process-epilog", examples)
    app.connect("build-finished", complete)
    app.connect("build-finished", write_markdown)
