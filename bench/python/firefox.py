"""A real Firefox, headless, and the site that it visits.

Firefox is driven by Mozilla's own `marionette_driver`, which needs no driver program beside the browser. The page says
nothing by itself: a test calls its functions, and what its service worker hears comes back to the test as a POST to the
site.
"""

import contextlib
import http.server
import json
import os
import queue
import shutil
import threading
import time
from unittest import mock

from marionette_driver.errors import MarionetteException
from marionette_driver.marionette import Marionette

# What a wait may take at most, in seconds. Each takes well under a second, a start of Firefox a few.
WAIT = 60

PAGE = b"<!doctype html><meta charset=utf-8><title>murre</title>"

# Reports every push before it lets go of the event, so that none is lost when the worker is stopped.
WORKER = b"""
const report = (what) => fetch("/heard", {method: "POST", body: JSON.stringify({scope: registration.scope, ...what})});
addEventListener("install", () => skipWaiting());
addEventListener("push", (event) => {
  event.waitUntil(report({push: event.data === null ? null : [...new Uint8Array(event.data.arrayBuffer())]}));
});
addEventListener("pushsubscriptionchange", (event) => event.waitUntil(report({changed: true})));
"""

# arguments: scope, key. Resolves when the worker is active and subscribed.
SUBSCRIBE = """
const [scope, key] = arguments;
const registration = await navigator.serviceWorker.register("/worker.js", {scope});
const worker = registration.installing ?? registration.waiting ?? registration.active;
while (worker.state !== "activated") {
  await new Promise((done) => worker.addEventListener("statechange", done, {once: true}));
}
const subscription = await registration.pushManager.subscribe({userVisibleOnly: true, applicationServerKey: key});
return subscription.toJSON();
"""

UNSUBSCRIBE = """
const registration = await navigator.serviceWorker.getRegistration(arguments[0]);
const subscription = await registration.pushManager.getSubscription();
const was_subscribed = await subscription.unsubscribe();
return [was_subscribed, await registration.pushManager.getSubscription()];
"""


# arguments: the Base64 text of a PEM certificate.
TRUST = """
const database = Cc["@mozilla.org/security/x509certdb;1"].getService(Ci.nsIX509CertDB);
database.addCertFromBase64(arguments[0], "C,,");
"""


def preferences(push_url):
    """What makes Firefox use a push server on loopback, and come back to it soon."""
    return {
        "dom.push.serverURL": push_url,
        "dom.push.testing.allowInsecureServerURL": push_url.startswith("ws:"),
        "dom.push.connection.enabled": True,
        "dom.push.retryBaseInterval": 200,
        # Everything is on loopback, whatever proxy this machine has.
        "network.proxy.type": 0,
    }


def program():
    """Path of Firefox, or None."""
    return os.environ.get("FIREFOX_BIN") or shutil.which("firefox-esr") or shutil.which("firefox")


@contextlib.contextmanager
def awaited(what):
    """Says what did not come, when Firefox gives up or says no more."""
    try:
        yield
    except (MarionetteException, OSError) as error:
        raise AssertionError(f"{what} was awaited from Firefox: {error}") from error


class Site:
    """The origin of the page: a page, its worker, and a place where the worker reports what it heard."""

    def __init__(self):
        self.reports = queue.Queue()
        site = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                worker = self.path == "/worker.js"
                self.answer("text/javascript" if worker else "text/html", WORKER if worker else PAGE)

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                site.reports.put(json.loads(body))
                self.answer("text/plain", b"")

            def answer(self, kind, body):
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Service-Worker-Allowed", "/")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


class Firefox:
    """One browser with one tab on one site."""

    def __init__(self, push_url, site, directory):
        self.site = site
        self.heard = {}
        self.log_path = directory / "firefox.log"
        found = program()
        assert found, "there is no Firefox: apt-get install firefox-esr, or set FIREFOX_BIN"
        home = directory / "home"
        home.mkdir()
        # Firefox refuses a home of somebody else, and must leave nothing in anybody's.
        self.environment = mock.patch.dict(os.environ, {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")})
        with self.environment:
            try:
                self.marionette = Marionette(
                    app="fxdesktop",
                    bin=found,
                    port=0,
                    startup_timeout=2 * WAIT,
                    socket_timeout=2 * WAIT,
                    headless=True,
                    gecko_log=str(self.log_path),
                    workspace=str(directory),
                    prefs=preferences(push_url),
                )
            except Exception as error:
                raise AssertionError(f"{found} does not start: {error}\n{self.log()}") from error
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    def start(self):
        """Opens the site; after `quit` it starts the browser again, on the same profile."""
        with awaited("an open page"), self.environment:
            self.marionette.start_session()
            self.marionette.timeout.script = WAIT
            self.marionette.timeout.page_load = WAIT
            self.marionette.navigate(self.site.url)
            self.marionette.set_permission({"name": "notifications"}, "granted")

    def quit(self):
        """As a user closes the browser."""
        self.marionette.quit()

    def subscribe(self, name, key):
        """Registers a worker of this name and subscribes it; the result is what a page hands to its app server."""
        with awaited(f"a subscription of {name}"):
            return self.run(SUBSCRIBE, f"/{name}/", key)

    def unsubscribe(self, name):
        """What `unsubscribe()` said, and the subscription that is left."""
        with awaited(f"the end of the subscription of {name}"):
            return self.run(UNSUBSCRIBE, f"/{name}/")

    def run(self, script, *arguments):
        """Runs a script in the page; what it returns may be a promise, which the script timeout bounds."""
        return self.marionette.execute_script(f"return (async () => {{{script}}})();", script_args=arguments)

    def trust(self, authority):
        """Adds an authority of websites to the profile, from a PEM file. Nothing else on this machine trusts it."""
        lines = authority.read_text().splitlines()
        text = "".join(line for line in lines if not line.startswith("-----"))
        with self.marionette.using_context("chrome"):
            self.marionette.execute_script(TRUST, script_args=(text,))

    def set_offline(self, offline):
        """As the menu entry "Work Offline" does."""
        with self.marionette.using_context("chrome"):
            self.marionette.execute_script("Services.io.offline = arguments[0]", script_args=(offline,))

    def user_agent_id(self):
        """The UAID that Firefox keeps."""
        return self.marionette.get_pref("dom.push.userAgentID")

    def push(self, name):
        """The next payload that the worker of this name hears: its bytes, or None for a message without body."""
        report = self.report(name)
        assert "push" in report, f"a push was awaited, the worker of {name} says {report}"
        return None if report["push"] is None else bytes(report["push"])

    def report(self, name):
        """The next report of one worker; those of others wait for who asks."""
        scope = f"{self.site.url}{name}/"
        waiting = self.heard.setdefault(scope, [])
        deadline = time.monotonic() + WAIT
        while not waiting:
            try:
                report = self.site.reports.get(timeout=max(0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"the worker of {name} heard nothing for {WAIT} s\n{self.log()}") from None
            self.heard.setdefault(report["scope"], []).append(report)
        return waiting.pop(0)

    def unheard(self):
        """All reports that nobody asked for."""
        with contextlib.suppress(queue.Empty):
            while True:
                report = self.site.reports.get_nowait()
                self.heard.setdefault(report["scope"], []).append(report)
        return [report for reports in self.heard.values() for report in reports]

    def log(self):
        """The end of what Firefox printed."""
        if not self.log_path.exists():
            return "(Firefox printed nothing)"
        return self.log_path.read_text(errors="replace")[-4000:]

    def close(self):
        self.marionette.cleanup()
