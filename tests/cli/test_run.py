"""`gpushmem run` as a user types it."""

import re
import subprocess
import sys

import pytest

import gpushmem
from tests.conftest import cli

ECHO = "import sys; print(sys.argv[1:]); print(__name__, __file__)"


@pytest.fixture
def run_cli():
    """The command as a process from its very start, which is what is tested here."""
    return cli


@pytest.fixture
def script(tmp_path):
    """Write a script and return its path."""

    def write(text, name="script.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    return write


def test_arguments_after_the_script_are_its_own(run_cli, script):
    path = script(ECHO)
    done = run_cli("run", path, "-n", "7", "--help", "--heap-size=x", "-m", "a b", code=0)
    assert done.stdout == f"['-n', '7', '--help', '--heap-size=x', '-m', 'a b']\n__main__ {path}\n"


def test_modules_and_directories(run_cli, script, tmp_path):
    script("import sys; print('module', __package__, sys.argv[1:])", "package/__main__.py")
    script("print('name', __name__)", "single.py")
    assert (
        run_cli("run", "-m", "package", "x", cwd=tmp_path, env={}, code=0).stdout
        == "module package ['x']\n"
    )
    assert run_cli("run", "-m", "single", cwd=tmp_path, code=0).stdout == "name __main__\n"
    assert run_cli("run", tmp_path / "package", code=0).stdout == "module  []\n"


def test_the_scripts_folder_is_first_on_the_path(run_cli, script):
    script("value = 41", "beside.py")
    assert run_cli("run", script("import beside; print(beside.value + 1)"), code=0).stdout == "42\n"


def test_what_the_script_defines_can_be_pickled(run_cli, script):
    path = script("import pickle\ndef f(): return 5\nprint(pickle.loads(pickle.dumps(f))())")
    assert run_cli("run", path, code=0).stdout == "5\n"


def test_exit_handlers_run_and_output_is_flushed(run_cli, script):
    path = script("import atexit; atexit.register(print, 'at exit'); print('x' * 100000, end='')")
    assert run_cli("run", "-n", "2", path, code=0).stdout.count("at exit\n") == 2


def test_output_before_a_crash_is_not_lost(run_cli, script):
    path = script("import os\nprint('before', flush=True)\nos.kill(os.getpid(), 9)")
    assert run_cli("run", "--tag-output", path, code=137).stdout == "[0] before\n"


def test_a_timeout_that_a_pe_reports_is_told_whatever_the_number_of_pes(run_cli, script):
    """As one does that hangs in a driver: see `Device.loading`."""
    path = script(
        "import time, gpushmem as shmem\n"
        "from gpushmem.job import board, job\n"
        "with shmem.session():\n"
        "    job.current().board.claim(board.TIMEOUT, 0, 'PE 0: it has waited')\n"
        "    time.sleep(60)\n"
    )
    done = run_cli("run", "-n", "1", path, code=124)
    assert "gpushmem: PE 0: it has waited; all PEs were ended" in done.stderr


def test_tagged_lines_stay_whole(run_cli, script):
    path = script(
        "import sys, gpushmem as shmem\nshmem.init()\n"
        "for k in range(200): print(shmem.my_pe(), 'y' * 300, k)\n"
        "print('err', shmem.my_pe(), file=sys.stderr)\nsys.stdout.buffer.write(b'\\xff\\xfe last')"
    )
    done = run_cli("run", "-n", "3", "--tag-output", path, code=0)
    lines = done.stdout.splitlines()
    for pe in range(3):
        mine = [line for line in lines if line.startswith(f"[{pe}] ")]
        assert mine[:200] == [f"[{pe}] {pe} {'y' * 300} {k}" for k in range(200)]
        assert mine[200] == f"[{pe}] \udcff\udcfe last"
        assert f"[{pe}] err {pe}\n" in done.stderr
    assert len(lines) == 603


def test_lines_stay_whole_with_unbuffered_output(script):
    """As containers have it: the text and the end of a line were two writes."""
    path = script(
        "import os\nwhole = os.pipe2(os.O_DIRECT)\nos.dup2(whole[1], 1)\nprint('a line')\n"
        "os.set_blocking(whole[0], False)\nassert os.read(whole[0], 100) == b'a line\\n'\n"
        "print('part', end='')\n"
        "try: os.read(whole[0], 100)\nexcept BlockingIOError: os.write(2, b'kept')\n"
    )
    done = cli("run", "-n", "2", path, code=0, env={"PYTHONUNBUFFERED": "1"})
    assert done.stderr == "keptkept"


def test_standard_input_goes_to_pe_0(run_cli, script):
    path = script(
        "import sys, gpushmem as shmem\nshmem.init()\n"
        "text = sys.stdin.read()\nassert bool(text) == (shmem.my_pe() == 0)\n"
        "if text: print(text, end='')\nshmem.finalize()"
    )
    assert run_cli("run", "-n", "3", path, stdin="to zero\n", code=0).stdout == "to zero\n"


def test_heap_size_is_what_was_asked(run_cli, script):
    path = script(
        "import gpushmem as shmem\nshmem.init()\nshmem.empty(3 << 20, 'int8')\nshmem.finalize()"
    )
    run_cli("run", "-n", "2", "--heap-size", "4M", path, code=0)
    done = run_cli("run", "-n", "2", "--heap-size", "2M", path, code=1)
    said = "HeapExhausted: empty: symmetric heap exhausted: 3145728 bytes (3 MiB) requested"
    assert said in done.stderr


def test_children_of_a_pe_are_not_pes(run_cli, script):
    child = "import gpushmem as s; s.init(); print('child', s.my_pe(), s.n_pes())"
    path = script(
        f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}], check=True)"
    )
    assert run_cli("run", "-n", "2", path, code=0).stdout == "child 0 1\n" * 2


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["-n", "0", "x.py"], "Invalid value for '-n': 0 is not in the range 1<=x<=65536"),
        (
            ["-n", "100000", "x.py"],
            "Invalid value for '-n': 100000 is not in the range 1<=x<=65536",
        ),
        (["-n", "1" + 20 * "0", "x.py"], "is not in the range 1<=x<=65536"),
        (["-n", "1e20", "x.py"], "'1e20' is not a valid integer"),
        (["--threads-per-pe", "1" + 20 * "0", "x.py"], "is not a whole number from 1 to 65536"),
        (["--timeout", "nan", "x.py"], "'nan' is not a number of seconds above 0 and below 1e+09"),
        (["--timeout", "inf", "x.py"], "'inf' is not a number of seconds"),
        (["--timeout", "1e300", "x.py"], "'1e300' is not a number of seconds"),
        (["-n", "x", "x.py"], "'x' is not a valid integer"),
        (["nowhere.py"], "script nowhere.py does not exist"),
        ([], "give a script to run"),
        (["--heap-size", "lots", "x.py"], "'lots' is not a size"),
        (["--heap-size", "0", "x.py"], "'0' is not a size"),
        (["-m", "no_such_module"], "there is no module no_such_module"),
        (["-m", "no.such.module"], "there is no module no.such.module"),
        (["docs"], "docs is a directory without a __main__.py"),
    ],
)
def test_bad_input_names_the_value(run_cli, args, message):
    done = run_cli("run", *args, code=2)
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--chek", r"No such option:? '?--chek'?\.? \((Did you mean|Possible).*: '?--check'?,"),
        ("--wait=3", r"No such option:? '?--wait=3'?(?:\.|$)"),
    ],
)
def test_options_that_there_are_not_are_named(run_cli, option, said):
    """In click's words, which another version has changed."""
    done = run_cli("run", option, "x.py", code=2)
    assert re.search(said, " ".join(done.stderr.split()))
    assert "Traceback" not in done.stderr


def test_a_number_of_pes_behind_the_script_is_noticed(run_cli, tmp_path):
    script = tmp_path / "late.py"
    script.write_text("import sys; print(sys.argv[1:])")
    note = f"gpushmem: 1 PE; -n after {script} is an argument of it: for more PEs, put -n before it"
    for options, said in ([], f"{note}\n"), (["-n", 1], ""):
        done = run_cli("run", *options, script, "-n", 4, code=0)
        assert (done.stdout, done.stderr) == ("['-n', '4']\n", said)


def test_a_mistyped_command_is_named(run_cli):
    assert "No such command 'rnu': did you mean run?" in run_cli("rnu", code=2).stderr
    assert "did you mean summary?" in run_cli("trace", "summery", "x", code=2).stderr


def test_help_and_version_are_quick(run_cli):
    assert "run" in run_cli("--help", code=0).stdout
    assert "--tag-output" in run_cli("run", "--help", code=0).stdout
    assert run_cli("--version", code=0).stdout == f"gpushmem, version {gpushmem.__version__}\n"
    assert run_cli("fly", code=2).stderr
    check = "import sys, gpushmem.cli.run; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
