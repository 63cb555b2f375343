"""The proxies of docs/PROXIES.md in front of a real server, with the configurations that the page shows."""

import contextlib
import os
import re
import shutil
import socket
import ssl
import subprocess
import threading
import time
import tomllib

import pytest
from websockets.exceptions import ConnectionClosed, InvalidMessage, InvalidStatus, InvalidUpgrade

from browser import AppServer, Browser, exchange, trust
from conftest import REPOSITORY, Server
from golang import program
from tls_front import make_certificate

NAME = "push.example.org"
CADDY = ("github.com/caddyserver/caddy/v2/cmd/caddy", "v2.11.9", (1, 26))
TLS_PORT, SECOND_PORT, INNER_TLS_PORT, OTHER_PORT = 8443, 8442, 8441, 8440
PATIENCE = 60
GUIDE = (REPOSITORY / "docs/PROXIES.md").read_text()
TOML_ENDS = "# murre behind a proxy that ends TLS"
TOML_PASSES = "# murre behind a proxy that passes TLS through"
NGINX, NGINX_MAIN = "# /etc/nginx/conf.d/murre.conf", "# nginx for 100,000 sessions"
NGINX_STREAM = "# nginx passes TLS through"
HAPROXY, HAPROXY_TCP = "# haproxy.cfg: TLS ends here", "# haproxy.cfg: TLS is passed through"
CADDYFILE = "# /etc/caddy/Caddyfile"


def block(title):
    """The fenced block of the guide that begins with this line."""
    found = re.findall(rf"^```\w+\n({re.escape(title)}\n.*?)^```$", GUIDE, re.DOTALL | re.MULTILINE)
    assert len(found) == 1, f"{len(found)} blocks begin with {title}"
    return found[0]


def filled(text, places):
    """A text with other addresses, ports and paths. Each of the texts that it replaces must be there."""
    for old, new in places.items():
        assert old in text, f"no {old} in:\n{text}"
        text = text.replace(old, str(new))
    return text


def flat(table, prefix=""):
    """Settings of a TOML table, as `--set` takes them."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}={value}"


class Guided(Server):
    """A server with a configuration of the guide. Clients reach it through a proxy, by its name."""

    def __init__(self, directory, monkeypatch, title, settings):
        super().__init__(directory)
        self.certificate, self.key = directory / "certificate.pem", directory / "key.pem"
        make_certificate(NAME, self.certificate, self.key)
        trust(monkeypatch, self.certificate)
        self.passes_tls = title == TOML_PASSES
        places = {"127.0.0.1:8080": f"{self.host}:8080"}
        if self.passes_tls:
            places = {"127.0.0.1:8443": f"{self.host}:{INNER_TLS_PORT}"}
            places |= {"/etc/murre/chain.pem": self.certificate, "/etc/murre/key.pem": self.key}
        self.settings += [*flat(tomllib.loads(filled(block(title), places))), *settings]
        resolve = socket.getaddrinfo

        def resolve_here(host, port, *rest, **named):
            """Leads the name to the proxy."""
            at = (self.host, {443: TLS_PORT}[port]) if host == NAME else (host, port)
            return resolve(*at, *rest, **named)

        monkeypatch.setattr(socket, "getaddrinfo", resolve_here)

    def url(self, port):
        return f"wss://{NAME}/" if port == "websocket" else super().url(port)

    def wait_for(self, number):
        """The guide moves two listeners."""
        moved = {8080: INNER_TLS_PORT, 8082: INNER_TLS_PORT} if self.passes_tls else {8082: 8080}
        super().wait_for(moved.get(number, number))


class Proxy:
    """A proxy with a configuration of the guide in front of a server. `changes` are further replacements."""

    def __init__(self, kind, server, changes):
        self.kind, self.server, self.changes = kind, server, changes
        self.directory = server.directory / "proxy"
        self.directory.mkdir()
        self.process = None
        self.command = getattr(self, kind)()

    def write(self, name, text):
        path = self.directory / name
        path.write_text(text)
        return path

    def guided(self, name, title, places):
        """Writes a block of the guide with the places of this test."""
        return self.write(name, filled(block(title), {**places, **self.changes}))

    def ports(self, listen):
        """The addresses of the guide, as its keys write them, and those of this test."""
        own = {f"{listen}443": f"{listen}{self.server.host}:{TLS_PORT}"}
        return {f"{listen}[::]:443": f"{listen}{self.server.host}:{SECOND_PORT}", **own}

    def nginx(self):
        host, directory = self.server.host, self.directory
        places = {**self.ports("listen "), "127.0.0.1:8080": f"{host}:8080"}
        places |= {"/etc/ssl/push/chain.pem": self.server.certificate, "/etc/ssl/push/key.pem": self.server.key}
        guided = self.guided("murre.conf", NGINX, places)
        temporary = "".join(
            f"{kind}_temp_path {directory}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        return self.nginx_command(f"http {{\naccess_log off;\n{temporary}include {guided};\n}}\n")

    def nginx_stream(self):
        host = self.server.host
        inner = {"127.0.0.1:8443": f"{host}:{INNER_TLS_PORT}", "127.0.0.1:8444": f"{host}:{OTHER_PORT}"}
        guided = self.guided("stream.conf", NGINX_STREAM, {**self.ports("listen "), **inner})
        return self.nginx_command(f"include {guided};\n")

    def nginx_command(self, text):
        self.write("main.conf", filled(block(NGINX_MAIN), {"210000": 2000, "205000": 1000}))
        # Debian loads it in the same way.
        module = "load_module /usr/lib/nginx/modules/ngx_stream_module.so;\n"
        user = "user root;\n" if os.geteuid() == 0 else ""
        head = f"{user}pid {self.directory}/pid;\nworker_processes 1;\ninclude {self.directory}/main.conf;\n"
        log = self.directory / "log"
        config = self.write("nginx.conf", f"{module}{head}error_log {log};\n{text}")
        return [needed("nginx"), "-e", log, "-p", self.directory, "-c", config, "-g", "daemon off;"]

    def haproxy(self):
        both = self.server.certificate.read_text() + self.server.key.read_text()
        places = {"/etc/ssl/push/all.pem": self.write("all.pem", both)}
        return self.haproxy_command(HAPROXY, {**places, "127.0.0.1:8080": f"{self.server.host}:8080"})

    def haproxy_tcp(self):
        host = self.server.host
        places = {"127.0.0.1:8443": f"{host}:{INNER_TLS_PORT}", "127.0.0.1:8444": f"{host}:{OTHER_PORT}"}
        return self.haproxy_command(HAPROXY_TCP, places)

    def haproxy_command(self, title, places):
        host = self.server.host
        bind = {"bind :443,:::443 v6only": f"bind {host}:{TLS_PORT},{host}:{SECOND_PORT}"}
        config = self.guided("haproxy.cfg", title, {**bind, **places, "maxconn 100000": "maxconn 1000"})
        return [needed("haproxy"), "-db", "-f", config]

    def caddy(self):
        places = {"127.0.0.1:8080": f"{self.server.host}:8080"}
        places |= {"/etc/ssl/push/chain.pem": self.server.certificate, "/etc/ssl/push/key.pem": self.server.key}
        guided = self.guided("site.caddy", CADDYFILE, places)
        options = ["admin off", "persist_config off", "auto_https disable_redirects", f"https_port {TLS_PORT}"]
        options += [f"default_bind {self.server.host}", f"storage file_system {self.directory}/caddy"]
        config = self.write("Caddyfile", "{\n" + "\n".join(options) + f"\n}}\nimport {guided}\n")
        return [program(*CADDY), "run", "--config", config, "--adapter", "caddyfile"]

    def start(self):
        environment = {**os.environ, "HOME": str(self.directory)}
        with open(self.directory / "out", "ab") as out:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment
            )
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return socket.create_connection((self.server.host, TLS_PORT), timeout=1).close()
            except OSError:
                assert self.process.poll() is None and time.monotonic() < deadline, self.text()
                time.sleep(0.01)

    def text(self):
        files = [path for path in (self.directory / "out", self.directory / "log") if path.exists()]
        return "".join(path.read_text(errors="replace") for path in files)

    def stop(self):
        if self.process:
            # nginx ends its workers on SIGTERM only.
            self.process.terminate()
            try:
                self.process.wait(timeout=PATIENCE)
            finally:
                self.process.kill()


def needed(name):
    """Path of a program of a Debian package, some of which are in directories of root."""
    path = shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin")
    assert path, f"apt-get install {name}"
    return path


@pytest.fixture
def proxied(tmp_path, monkeypatch):
    """Starts servers, each behind a proxy, and ends them."""
    started = []

    def start(kind, *settings, changes=None):
        title = TOML_PASSES if kind in PASSING else TOML_ENDS
        server = Guided(tmp_path, monkeypatch, title, settings)
        proxy = Proxy(kind, server, changes or {})
        started.extend([server.kill, proxy.stop])
        server.start()
        proxy.start()
        return server

    yield start
    for stop in reversed(started):
        stop()


ENDING, PASSING = ["nginx", "haproxy", "caddy"], ["nginx_stream", "haproxy_tcp"]


def curl(server, path, *options):
    """Status and body, as the version of HTTP and the body are told by curl."""
    command = ["curl", "--silent", "--show-error", "--cacert", server.certificate, "--http2"]
    command += ["--max-time", str(PATIENCE)]
    command += ["--connect-to", f"{NAME}:443:{server.host}:{TLS_PORT}", "--write-out", "\n%{http_version} %{http_code}"]
    url = path if path.startswith("https://") else f"https://{NAME}{path}"
    answer = subprocess.run([*command, *options, url], capture_output=True, text=True)
    assert answer.returncode == 0, answer
    body, _, told = answer.stdout.rpartition("\n")
    return told, body


@pytest.mark.parametrize("kind", ENDING + PASSING)
def test_a_message_goes_through(proxied, kind):
    server = proxied(kind)
    browser = Browser(server)
    exchange(browser, AppServer())
    endpoint = browser.subscribe()["endpoint"]
    assert endpoint.startswith(f"https://{NAME}/wpush/")
    assert browser.hears_nothing()


@pytest.mark.parametrize("kind", ENDING)
def test_http_2_ends_at_the_proxy(proxied, kind):
    server = proxied(kind)
    told, body = curl(server, "/")
    assert told == "2 200" and f"set dom.push.serverURL to wss://{NAME}/" in body
    browser = Browser(server)
    endpoint = browser.subscribe()["endpoint"]
    told, _ = curl(server, endpoint, "-H", "TTL: 60", "-H", "Content-Encoding: aes128gcm", "--data-binary", "x")
    assert told == "2 201"
    browser.ack(browser.notification())
    # An upgrade that fails: the response must not carry what HTTP/2 forbids.
    told, body = curl(server, "/", "-H", "Sec-WebSocket-Version: 12", "-H", "Sec-WebSocket-Key: x")
    assert told == "2 400", body


def test_nginx_without_the_upgrade_field_opens_no_websocket(proxied):
    """The guide warns of it."""
    line = "proxy_http_version 1.1;"
    server = proxied("nginx", changes={line: f"{line}\nproxy_hide_header Upgrade;"})
    with pytest.raises((InvalidUpgrade, InvalidMessage, InvalidStatus)):
        Browser(server)


# For each timeout of a session that the guide sets, the line and the same with another time.
SESSION_TIMEOUTS = {
    "nginx": ["proxy_read_timeout {};", "proxy_send_timeout {};"],
    "haproxy": ["timeout tunnel {}"],
    "nginx_stream": ["proxy_timeout {};"],
    "haproxy_tcp": ["timeout client {}", "timeout server {}"],
}


def timeouts(kind, seconds):
    return {line.format("15m"): line.format(f"{seconds}s") for line in SESSION_TIMEOUTS[kind]}


@pytest.mark.parametrize("kind", SESSION_TIMEOUTS)
def test_the_timeouts_of_the_guide_are_those_that_cut_a_session(proxied, kind):
    """Fifteen minutes would be long for a test, so they are set to a second here, and no ping comes before."""
    server = proxied(kind, changes=timeouts(kind, 1))
    browser = Browser(server)
    with pytest.raises(ConnectionClosed):
        browser.receive()


@pytest.mark.parametrize("kind", [*SESSION_TIMEOUTS, "caddy"])
def test_pings_of_the_server_keep_a_silent_session(proxied, kind):
    """Silence for longer than the timeouts, which are set to seconds here, with several pings in each."""
    pings = ["websocket.auto_ping_interval=1", "websocket.auto_ping_timeout=0.9"]
    server = proxied(kind, *pings, changes=timeouts(kind, 3) if kind in SESSION_TIMEOUTS else {})
    browser = patient_browser(server, seconds=3)
    assert browser.hears_nothing(seconds=4)
    exchange(browser, AppServer())


def patient_browser(server, seconds):
    """A browser behind a proxy with timeouts of `seconds`, which cut the handshake on a host that stands still for
    longer. An end that comes sooner is the server's."""
    for _ in range(5):
        began = time.monotonic()
        try:
            return Browser(server)
        except (OSError, EOFError, ConnectionClosed):
            if time.monotonic() - began < seconds:
                raise
    raise AssertionError("five handshakes took longer than the timeouts of the proxy")


def test_the_timeouts_of_the_guide_are_longer_than_the_silence_between_pings():
    settings = (REPOSITORY / "docs/OPERATIONS.md").read_text()
    interval, answer = (
        int(re.search(rf"^\| `websocket\.{key}`[^|]*\|[^|]*\| `(\d+)` \|", settings, re.MULTILINE)[1])
        for key in ("auto_ping_interval", "auto_ping_timeout")
    )
    assert interval + answer < 15 * 60


class Other:
    """The server of all other names. Behind nginx it takes a line of the PROXY header before TLS."""

    def __init__(self, host, kind, directory):
        self.certificate = directory / "other.pem"
        make_certificate(host, self.certificate, directory / "other-key.pem")
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.context.load_cert_chain(self.certificate, directory / "other-key.pem")
        self.takes_line = kind == "nginx_stream"
        self.listener = socket.create_server((host, OTHER_PORT))
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            try:
                stream = self.listener.accept()[0]
            except OSError:
                return
            # A client may be gone before the last bytes of its handshake.
            with contextlib.suppress(OSError):
                while self.takes_line and stream.recv(1) != b"\n":
                    pass
                self.context.wrap_socket(stream, server_side=True).close()


@pytest.mark.parametrize("kind", PASSING)
def test_names_lead_to_their_servers(proxied, kind, tmp_path):
    server = proxied(kind)
    other = Other(server.host, kind, tmp_path)
    with other.listener:
        for name, certificate in [(NAME, server.certificate), ("other.example", other.certificate)]:
            for port in (TLS_PORT, SECOND_PORT):
                context = ssl.create_default_context()
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                with socket.create_connection((server.host, port), timeout=PATIENCE) as stream:
                    with context.wrap_socket(stream, server_hostname=name) as tls:
                        shown = ssl.DER_cert_to_PEM_cert(tls.getpeercert(binary_form=True))
                assert shown.split() == certificate.read_text().split(), name
