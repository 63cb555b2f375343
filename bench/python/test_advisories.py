"""The step of the check that asks for advisories: it passes without a database, and says so; a finding fails it."""

import os
import shutil
import subprocess

import pytest

from conftest import REPOSITORY

# Stands in for cargo-deny, which cargo calls by this name. The first word is a global option.
DENY = """#!/bin/sh
echo "$@" >>calls
case "$3" in
fetch) exit {fetch} ;;
check) echo "error[vulnerability]: of the test" >&2; exit {check} ;;
esac
exit 90
"""


def advisories(directory, deny):
    """Runs the step on a copy of the check, which keeps its notes beside itself."""
    (directory / "bench").mkdir()
    shutil.copy(REPOSITORY / "bench/check", directory / "bench")
    tools = directory / "tools"
    tools.mkdir()
    for name in ("cargo", "timeout", "mkdir", "cat", "dirname", "bash", "env", "sh"):
        (tools / name).symlink_to(shutil.which(name))
    if deny:
        (tools / "cargo-deny").write_text(deny)
        (tools / "cargo-deny").chmod(0o755)
    command = [directory / "bench/check", "advisories"]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PATH": str(tools)})


@pytest.mark.parametrize(
    ("deny", "why"),
    [(None, "cargo-deny is missing"), (DENY.format(fetch=1, check=0), "no advisory database was reached")],
    ids=["no-tool", "no-database"],
)
def test_advisories_that_cannot_be_asked_for_are_named_at_the_end(tmp_path, deny, why):
    done = advisories(tmp_path, deny)
    assert done.returncode == 0, done.stderr
    assert f"check: advisories not checked: {why}" in done.stdout.splitlines()[-1], done.stdout
    assert why in done.stderr


def test_a_finding_fails_the_check_and_none_passes(tmp_path):
    for name, status in (("bad", 1), ("good", 0)):
        (tmp_path / name).mkdir()
        done = advisories(tmp_path / name, DENY.format(fetch=0, check=status))
        assert (done.returncode != 0) == bool(status), done.stderr
        assert "not checked" not in done.stdout + done.stderr
        calls = (tmp_path / name / "calls").read_text().splitlines()
        assert calls == ["deny --locked fetch db", "deny --locked check --disable-fetch advisories"]
