"""A server that was built without Cargo features: what it refuses and what it does all the same.

Needs target/features/debug/murre, which the step `features` of bench/check makes.
"""

import pathlib
import subprocess

import pytest

BINARY = pathlib.Path(__file__).parents[2] / "target/features/debug/murre"
# EX_CONFIG.
CONFIG = 78

REFUSED = [
    ("acme", ["--domain", "push.example.org", "--acme-agree"]),
    ("bridges", ["--set", "bridge.fcm.credentials=/nowhere.json", "--set", "bridge.auth_keys=0123456789abcdef"]),
    ("hibernate", ["--set", "hibernate.after=60"]),
    ("scylla", ["--set", "store.kind=scylla", "--set", "store.scylla.nodes=127.0.0.1:9"]),
]


def run(*words, cwd):
    assert BINARY.exists(), "bench/check features builds it"
    return subprocess.run([BINARY, *words], cwd=cwd, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("feature, words", REFUSED, ids=[feature for feature, _ in REFUSED])
def test_a_setting_without_its_feature_is_refused(tmp_path, feature, words):
    ended = run("serve", "--data-dir", str(tmp_path / "data"), *words, cwd=tmp_path)
    assert ended.returncode == CONFIG, ended.stderr
    assert f'the feature "{feature}"' in ended.stderr
    assert not (tmp_path / "data").exists()


def test_the_tables_of_a_shared_store_are_printed_without_its_driver(tmp_path):
    printed = run("schema", "print", "--for", "cassandra", cwd=tmp_path)
    assert printed.returncode == 0, printed.stderr
    assert "CREATE KEYSPACE" in printed.stdout


def test_a_database_is_not_reached_without_its_driver(tmp_path):
    ended = run("schema", "create", "--set", "store.scylla.nodes=127.0.0.1:9", cwd=tmp_path)
    assert ended.returncode == 1, ended.stderr
    assert 'feature "scylla"' in ended.stderr
