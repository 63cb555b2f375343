//! The app server of the probe: one POST over one connection (RFC 8030 section 5).

use std::io::{Read, Write};

use super::Failure;
use super::tls::Wire;
use protocol::wire::url::HttpUrl;

/// What of an answer is read at most.
const HEAD_BYTES_MAX: usize = 16 * 1024;
const HEADERS_MAX: usize = 64;
/// Seconds the server may keep the message for a probe that died.
const TTL: u32 = 60;

/// Reads an http or https URL.
///
/// # Errors
/// The text is no such URL.
pub fn url(text: &str) -> Result<HttpUrl, Failure> {
    HttpUrl::parse(text).ok_or_else(|| Failure::new(format!("{text} is not like http://HOST:PORT/PATH")))
}

/// POSTs to the path of `url` over `stream`; the message id from `Location`.
pub fn post(mut stream: Wire, url: &HttpUrl, authorization: &str, body: &[u8]) -> Result<String, Failure> {
    let head = format!(
        "POST {} HTTP/1.1\r\nHost: {}\r\nTTL: {TTL}\r\nUrgency: high\r\nContent-Encoding: aes128gcm\r\n\
         Content-Type: application/octet-stream\r\nAuthorization: {authorization}\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        url.target(),
        url.origin().authority(),
        body.len()
    );
    stream.write_all(&[head.as_bytes(), body].concat())?;
    let mut answer = Vec::new();
    loop {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut response = httparse::Response::new(&mut headers);
        let parsed = response.parse(&answer).map_err(|e| Failure::new(format!("the answer is not HTTP: {e}")))?;
        if let httparse::Status::Complete(end) = parsed {
            return judge(&response, answer.get(end..).unwrap_or_default());
        }
        let mut chunk = [0; 2048];
        let read = stream.read(&mut chunk)?;
        if read == 0 || answer.len() > HEAD_BYTES_MAX {
            return Err(Failure::new("the answer has no complete head"));
        }
        answer.extend_from_slice(&chunk[..read]);
    }
}

/// 201 with a Location, or why not.
fn judge(response: &httparse::Response<'_, '_>, body: &[u8]) -> Result<String, Failure> {
    let header = |name: &str| {
        let found = response.headers.iter().find(|h| h.name.eq_ignore_ascii_case(name));
        found.map(|h| String::from_utf8_lossy(h.value).into_owned())
    };
    let code = response.code.unwrap_or_default();
    if code != 201 {
        let why: String = String::from_utf8_lossy(body).chars().filter(|c| !c.is_control()).take(300).collect();
        return Err(Failure::new(format!("POST was answered with {code} {why}")));
    }
    let location = header("location").ok_or_else(|| Failure::new("201 without Location"))?;
    if header("ttl").is_none() {
        return Err(Failure::new("201 without TTL"));
    }
    match location.rsplit_once("/m/") {
        Some((_, id)) if !id.is_empty() => Ok(id.to_string()),
        _ => Err(Failure::new("Location names no message")),
    }
}
