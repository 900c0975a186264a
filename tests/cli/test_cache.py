"""`gpushmem cache`: what is kept, and clearing it."""

from gpushmem import code_store


def test_it_is_shown_and_cleared(run_cli, tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("GPUSHMEM_CACHE_DIR", str(folder))
    monkeypatch.setattr(code_store, "_objects", {})
    env = {"GPUSHMEM_CACHE_DIR": str(folder), "GPUSHMEM_CACHE_SIZE": "3M"}
    shown = f"folder   {folder}\nentries  0\nbytes    0 (0 bytes)\nlimit    3145728 (3 MiB)\n"
    assert run_cli("cache", env=env, code=0).stdout == shown
    for k in range(2):
        code_store.get_or_build(code_store.key(k), lambda: bytes(1000), bytes, bytes)
    (folder / "mine.txt").write_text("not ours")
    nbytes = 2 * (1000 + 43)
    lines = run_cli("cache", env=env, code=0).stdout.splitlines()
    assert lines[1:3] == ["entries  2", f"bytes    {nbytes} (2.037 KiB)"]
    done = run_cli("cache", "clear", env=env, code=0)
    assert done.stdout == f"deleted 2 entries, 2.037 KiB, from {folder}\n"
    assert {file.name for file in folder.iterdir()} <= {"mine.txt", "pruned"}
    assert run_cli("cache", env=env, code=0).stdout == shown


def test_a_folder_that_is_not_used_is_an_error(run_cli, tmp_path):
    tmp_path.chmod(0o777)
    for command in (("cache",), ("cache", "clear")):
        done = run_cli(*command, env={"GPUSHMEM_CACHE_DIR": str(tmp_path)}, code=1)
        assert "other users may write to" in done.stderr
        assert "Traceback" not in done.stderr
