"""Binaries do not name the home directory of the machine that builds: .cargo/rustc, on a crate of a few lines."""

import os
import pathlib
import shutil
import subprocess

import pytest

from conftest import REPOSITORY

MANIFEST = '[package]\nname = "{name}"\nversion = "0.1.0"\nedition = "2024"\n'


def package(directory, source, text, dependencies=""):
    """Writes a package with one source."""
    (directory / source).parent.mkdir(parents=True)
    (directory / source).write_text(text)
    (directory / "Cargo.toml").write_text(MANIFEST.format(name=directory.name) + dependencies)


@pytest.fixture
def project(tmp_path):
    """A program with a library where cargo keeps those of a registry, both below a home directory of the test."""
    library, program = tmp_path / "home/.cargo/registry/src/index/library", tmp_path / "home/program"
    # Inlined into the program or not, its panic names the file.
    package(library, "src/lib.rs", 'pub fn fail() { assert!(std::env::args().count() > 9, "few") }\n')
    dependencies = f'[dependencies]\nlibrary = {{ path = "{library}" }}\n'
    # Cargo names variables after binaries, which may have a hyphen; not every shell passes them on.
    text = 'fn main() { println!(env!("OF_CARGO-ITSELF")); library::fail() }\n'
    package(program, "src/main.rs", text, dependencies)
    shutil.copytree(REPOSITORY / ".cargo", program / ".cargo")
    return program


def build(program, *words, **changes):
    home = program.parent
    rustup = os.environ.get("RUSTUP_HOME", str(pathlib.Path.home() / ".rustup"))
    own = {"HOME": str(home), "CARGO_HOME": str(home / ".cargo"), "RUSTUP_HOME": rustup, "OF_CARGO-ITSELF": "1"}
    command = ["cargo", "build", "--offline", *words]
    done = subprocess.run(command, cwd=program, env={**os.environ, **own, **changes}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize("profile", ["debug", "release"])
def test_a_binary_does_not_name_the_home_of_its_builder(project, profile):
    flags = ["--release"] if profile == "release" else []
    home = str(project.parent).encode()
    binary = project / "target" / profile / "program"
    build(project, *flags, RUSTC_WRAPPER="")
    assert home in binary.read_bytes(), "without the wrapper there is nothing to see"
    # What is there is not compiled again because of the wrapper.
    assert "Compiling" not in build(project, *flags)
    shutil.rmtree(project / "target")
    build(project, *flags)
    found = binary.read_bytes()
    assert home not in found and b"/cargo/registry/src/index/library/src/lib.rs" in found
