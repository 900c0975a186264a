"""`gpushmem help`: the pages of docs/errors, on the terminal."""

from __future__ import annotations

import difflib
import importlib.resources
import re

import click

__all__ = ["command"]

MISSING = "the pages are not in this installation: pip install --force-reinstall gpushmem"
INDEX = "index"
WIDEST = 100  # columns
ALSO = {
    "check": ("race", "races", "ordering", "divergence"),
    "Deadlock": ("hang", "hangs"),
}


@click.command("help", short_help="Tell what an error means, and what to do.")
@click.argument("topic", required=False)
def command(topic: str | None) -> None:
    """Print the page about TOPIC, the name of an error, or `check` for what --check finds.

    Without TOPIC, list them. Case does not matter; `race` and `hang` lead to their pages, too.
    """
    pages = _pages()
    names = {name.lower(): name for name in pages}
    names |= {word: name for name, words in ALSO.items() for word in words}
    name = names.get(INDEX if topic is None else topic.lower())
    if name is None:
        raise click.UsageError(
            f"there is no page about {topic}: try {_nearest(topic or '', names)}"
        )
    _print(_on_its_own(pages[name]))


def _pages() -> dict[str, str]:
    """The pages by name, as Markdown."""
    try:
        files = importlib.resources.files("gpushmem.help").iterdir()
        found = {
            file.name.removesuffix(".md"): file.read_text(encoding="utf-8")
            for file in files
            if file.name.endswith(".md")
        }
    except (ImportError, OSError) as error:
        raise click.ClickException(f"{MISSING} ({error})") from None
    if INDEX not in found:
        raise click.ClickException(MISSING)
    return found


def _nearest(topic: str, names: dict[str, str]) -> str:
    """What else to ask for."""
    from gpushmem.cli.commands import COMMANDS  # noqa: PLC0415  (which imports this module)

    parts = [name for name in names if topic.lower() in name]
    near = parts or difflib.get_close_matches(topic.lower(), names)
    said = [f"gpushmem {topic} --help"] if topic in COMMANDS else []
    said += [f"gpushmem help {names[name]}" for name in near if name != INDEX]
    return ", or ".join([*said, "gpushmem help for a list"])


def _on_its_own(text: str) -> str:
    """A page without comments, and with links that mean something where it is read alone."""
    text = re.sub(r"<!--.*?-->\n", "", text)
    text = re.sub(r"\[([^]]*)\]\(\w+\.md\)", r"\1", text)  # other pages are named as topics
    return text.replace("](../", "](docs/")


def _print(text: str) -> None:
    from rich.console import Console  # noqa: PLC0415  (takes a moment)
    from rich.markdown import Markdown  # noqa: PLC0415

    console = Console()
    if console.is_terminal:
        console.print(Markdown(text, hyperlinks=False), width=min(WIDEST, console.width))
    else:
        click.echo(text, nl=False)
