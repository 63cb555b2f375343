"""The metrics of a running server as others read them: promtool, and a parser of OpenMetrics.

promtool reads the text format only. Of OpenMetrics it takes `# EOF` for a comment and a family of counters for a name
without samples, so a parser of OpenMetrics that refuses what the standard forbids reads that format.
"""

import subprocess
import time
import urllib.request

from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from conftest import binary

OPENMETRICS = "application/openmetrics-text;version=1.0.0"
PROCESS = {
    "process_resident_memory_bytes": "gauge",
    "process_cpu_seconds": "counter",
    "process_open_fds": "gauge",
    "process_max_fds": "gauge",
    "process_threads": "gauge",
    "process_start_time_seconds": "gauge",
}


def probe(server):
    """One message all the way, so that the histograms have something in them."""
    command = [binary(), "probe", "--ws", server.url("websocket") + "/", "--timeout", "60"]
    probed = subprocess.run(command, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    assert probed.returncode == 0, probed.stdout + probed.stderr


def metrics(server, accept=None):
    """Media type and body of /metrics."""
    request = urllib.request.Request(server.url("admin") + "/metrics")
    if accept:
        request.add_header("Accept", accept)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def counted(text, name):
    """Durations that a histogram counted, of all labels."""
    families = {family.name: family for family in openmetrics.text_string_to_metric_families(text)}
    return sum(sample.value for sample in families[name].samples if sample.name == f"{name}_count")


def promtool(text):
    """Exit status and complaints of `promtool check metrics`."""
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
    return checked.returncode, checked.stdout + checked.stderr


def test_promtool_accepts_the_text_format(server):
    probe(server)
    kind, text = metrics(server)
    assert kind == "text/plain; version=0.0.4; charset=utf-8"
    assert promtool(text) == (0, ""), promtool(text)


def test_promtool_complains_about_a_bad_metric():
    assert promtool("# HELP a_microseconds x.\n# TYPE a_microseconds counter\na_microseconds 1\n")[0] == 3
    assert promtool("a{ 1\n")[0] == 1


def test_a_parser_accepts_openmetrics(server):
    probe(server)
    kind, text = metrics(server, OPENMETRICS + ";q=0.75,text/plain;version=0.0.4;q=0.25")
    assert kind == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    families = {family.name: family for family in openmetrics.text_string_to_metric_families(text)}
    for name, wanted in PROCESS.items():
        assert families[name].type == wanted, name
    assert families["process_start_time_seconds"].samples[0].value > 1e9
    build = families["murre_build_info"].samples[0]
    assert build.value == 1 and {"version", "commit"} == set(build.labels), build
    assert all(family.documentation for family in families.values())
    for name in ["murre_delivery_duration_seconds", "murre_post_duration_seconds"]:
        assert families[name].type == "histogram"
        # Shards show their numbers once a second.
        deadline = time.monotonic() + 60
        while counted(metrics(server, OPENMETRICS)[1], name) < 1:
            assert time.monotonic() < deadline, f"{name} counts nothing"
            time.sleep(0.05)


def test_both_formats_show_the_same_families(server):
    text = {family.name: family.type for family in text_string_to_metric_families(metrics(server)[1])}
    parsed = openmetrics.text_string_to_metric_families(metrics(server, OPENMETRICS)[1])
    assert text == {family.name: family.type for family in parsed}
