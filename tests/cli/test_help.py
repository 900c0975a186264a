"""`gpushmem --help`: everything is there, in groups; and what a shell completes."""

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from gpushmem.cli.commands import COMMANDS, group
from tests.docs.test_site import check
from tests.terminal import on_a_terminal

COMMAND = Path(sys.executable).with_name("gpushmem")


def commands():
    """All commands, by what is typed."""
    context = click.Context(group)
    for name in COMMANDS:
        command = group.get_command(context, name)
        yield name, command
        for inner, each in getattr(command, "commands", {}).items():
            yield f"{name} {inner}", each


@pytest.mark.parametrize(("name", "command"), [*commands()])
def test_help_has_every_option_once_and_examples_that_exist(name, command):
    text = command.get_help(click.Context(command, info_name=name))
    for param in command.params:
        if isinstance(param, click.Option):
            shown = param.get_help_record(click.Context(command))[0]
            row = rf"^  (\x1b\[36m)?{re.escape(shown)}(\x1b\[0m|  |$)"
            assert len(re.findall(row, text, re.MULTILINE)) == 1, shown
    for example in getattr(command, "examples", ()):
        for typed in example.split("gpushmem ")[1:]:
            check(typed.split(" #")[0].split(" &&")[0].split(" >")[0].strip(' )"'))


def test_every_command_is_in_the_help():
    text = group.get_help(click.Context(group, info_name="gpushmem"))
    for name in COMMANDS:
        assert text.count(f"\n  {click.style(name, fg='cyan')}") == 1


def test_colour_is_for_terminals():
    piped = subprocess.run([COMMAND, "run", "--help"], capture_output=True, text=True, check=True)
    assert "\nFind what is wrong:\n" in piped.stdout
    assert "\x1b" not in piped.stdout
    with on_a_terminal("-m", "gpushmem", "run", "--help", raw=True) as (process, printed):
        process.wait(60)
        assert "\x1b[1mFind what is wrong\x1b[0m:" in printed()


@pytest.mark.parametrize(
    ("words", "completed"),
    [("ru", "run"), ("run --check-r", "--check-runs"), ("trace su", "summary")],
)
def test_bash_completes(words, completed):
    words = ["gpushmem", *words.split()]
    script = f"""
        eval "$(gpushmem completion bash)"
        COMP_WORDS=({" ".join(words)}) COMP_CWORD={len(words) - 1}
        _gpushmem_completion gpushmem
        echo "${{COMPREPLY[@]}}"
    """
    path = f"{COMMAND.parent}:/usr/bin:/bin"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=True, env={"PATH": path}
    )
    assert done.stdout.split() == [completed]
