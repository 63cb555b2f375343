//! Page of `/` for people, on the ports of user agents: what this is, and how to use it.

use super::exchange::{BodyAction, method_refused};
use super::reply::Reply;
use super::response::{self, Context, HttpDate};
use protocol::wire::http1::Head;
use protocol::wire::url::Origin;

/// The page, written once in both forms.
pub(super) struct Front {
    html: String,
    /// One line.
    text: String,
}

/// Scripts and outside resources are refused, also if a browser finds some in the page.
const POLICY: &[u8] = b"default-src 'none'; style-src 'unsafe-inline'";

impl Front {
    /// Creates the page of a server that user agents reach at `url`. `registration` is a sentence without markup.
    pub(super) fn new(url: &Origin, registration: &str) -> Front {
        let insecure = ", and dom.push.testing.allowInsecureServerURL to true";
        let insecure = if url.https { "" } else { insecure };
        let url = url.to_string();
        let socket = format!("{}/", url.replacen("http", "ws", 1));
        let text = format!(
            "murre, a push server. Firefox: in about:config set dom.push.serverURL to {socket}{insecure}. \
             UnifiedPush distributors: {url}/ is the URL of the push server. {registration}\n"
        );
        let (url, socket) = (escaped(&url), escaped(&socket));
        let html = format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width\">\n<title>Push server</title>\n\
             <style>body{{max-width:40em;margin:2em auto;padding:0 1em;font-family:sans-serif}}\
             code{{overflow-wrap:anywhere}}</style>\n\
             <h1>Push server</h1>\n\
             <p>This is murre, a WebPush server. It brings the notifications of web sites and apps to browsers and \
             phones, and cannot read them.</p>\n\
             <h2>Firefox</h2>\n\
             <p>In <code>about:config</code> set <code>dom.push.serverURL</code> to <code>{socket}</code>{insecure}, \
             and start Firefox again.</p>\n\
             <h2>UnifiedPush</h2>\n\
             <p>URL of the push server for distributors: <code>{url}/</code></p>\n\
             <p>{registration}</p>\n"
        );
        Front { html, text }
    }

    /// Plans the answer to a request for `/` that is no upgrade.
    pub(super) fn plan(head: &Head<'_, '_>) -> BodyAction {
        let names_html = |value: &[u8]| value.windows(9).any(|part| part.eq_ignore_ascii_case(b"text/html"));
        match head.method {
            "GET" | "HEAD" => BodyAction::Reply(Reply::Front(head.every("accept").any(names_html))),
            _ => method_refused(head, "GET, HEAD, OPTIONS"),
        }
    }

    /// Writes the page.
    pub(super) fn write(&self, date: &HttpDate, context: &Context, is_html: bool, out: &mut Vec<u8>) {
        let (body, content_type) = match is_html {
            true => (&self.html, "text/html; charset=utf-8"),
            false => (&self.text, "text/plain; charset=utf-8"),
        };
        response::start(date, context, 200, out)
            .header("Content-Type", content_type.as_bytes())
            .header("Content-Security-Policy", POLICY)
            .header("Vary", b"Accept")
            .body(body.as_bytes(), context.to_head);
    }
}

/// Returns a text as content of an HTML element.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
