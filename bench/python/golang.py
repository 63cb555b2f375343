"""Programs in Go that tests need: pinned, and built once."""

import os
import shutil
import subprocess

import pytest

from conftest import REPOSITORY


def program(package, version, go_min):
    """Path of a program. Skips the test on a host whose Go is older than `go_min`, as (1, 24)."""
    built = REPOSITORY / "target/go" / version / package.rsplit("/", 1)[1]
    if not built.exists():
        run_go(["install", f"{package}@{version}"], go_min, built)
    return str(built)


def own_program(directory, go_min):
    """As `program`, of a directory in this repository that needs nothing but Go."""
    built = REPOSITORY / "target/go" / directory.name
    run_go(["build", "-C", str(directory), "-o", str(built), "."], go_min, built)
    return str(built)


def run_go(command, go_min, built):
    go = shutil.which("go")
    environment = {**os.environ, "GOBIN": str(built.parent), "GOTOOLCHAIN": "local"}
    ask = [go, "env", "GOVERSION"]
    answer = subprocess.run(ask, capture_output=True, text=True, env=environment).stdout if go else ""
    # As go1.24.5.
    numbers = answer.strip().removeprefix("go").split(".")[:2]
    if not (len(numbers) == 2 and all(part.isdigit() for part in numbers) and (*map(int, numbers),) >= go_min):
        pytest.skip(f"needs Go {go_min[0]}.{go_min[1]} or later to build {built.name}")
    subprocess.run([go, *command], env=environment, check=True)
