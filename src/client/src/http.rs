//! HTTP/1.1 of an app server: requests as bytes, responses with a Content-Length.

use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;

use super::stream::{Stream, repeat};
use protocol::wire::url::HttpUrl;

/// Bytes of a response that is read at most.
const RESPONSE_BYTES_MAX: usize = 64 << 20;
/// Bytes of a response before its body.
const HEAD_BYTES_MAX: usize = 64 << 10;
const HEADERS_MAX: usize = 64;

/// A response as read.
#[derive(Debug, Default, Clone)]
pub struct Response {
    pub status: u16,
    /// Header names (lower case) and values.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Response {
    /// Returns the value of a header by its lower-case name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Returns the `errno` of a JSON error body (PROTOCOL.md 2.11).
    pub fn errno(&self) -> Option<u64> {
        serde_json::from_slice::<serde_json::Value>(&self.body).ok()?.get("errno")?.as_u64()
    }

    /// Returns the message id that `Location` names.
    pub fn message_id(&self) -> Option<&str> {
        self.header("location")?.rsplit_once("/m/").map(|(_, id)| id).filter(|id| !id.is_empty())
    }
}

/// Returns the response at the front of `bytes` and its length; `None` when it is not whole.
///
/// # Errors
/// The bytes are no response, or announce too long a one.
pub fn parse(bytes: &[u8]) -> Result<Option<(Response, usize)>, String> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut head = httparse::Response::new(&mut headers);
    let start = match head.parse(bytes) {
        Ok(httparse::Status::Complete(start)) => start,
        Ok(httparse::Status::Partial) if bytes.len() < HEAD_BYTES_MAX => return Ok(None),
        Ok(httparse::Status::Partial) => return Err(format!("a head of more than {HEAD_BYTES_MAX} bytes")),
        Err(error) => return Err(format!("not a response: {error}")),
    };
    let mut response = Response { status: head.code.unwrap_or(0), ..Response::default() };
    for header in head.headers.iter() {
        let value = String::from_utf8_lossy(header.value).into_owned();
        response.headers.push((header.name.to_ascii_lowercase(), value));
    }
    let length = match response.header("content-length") {
        Some(text) => text.parse().ok().filter(|length| *length <= RESPONSE_BYTES_MAX),
        None => Some(0),
    };
    let end = start + length.ok_or_else(|| format!("Content-Length: {:?}", response.header("content-length")))?;
    let Some(body) = bytes.get(start..end) else { return Ok(None) };
    response.body = body.to_vec();
    Ok(Some((response, end)))
}

/// A request under construction.
#[derive(Debug, Clone)]
pub struct Request {
    method: String,
    target: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Request {
    /// A request without headers and without a body.
    pub fn new(method: &str, target: &str) -> Request {
        Request { method: method.into(), target: target.into(), headers: Vec::new(), body: Vec::new() }
    }

    /// A POST to an endpoint URL.
    ///
    /// # Errors
    /// The text is no URL.
    pub fn post(url: &str, ttl: u32) -> io::Result<Request> {
        let url = HttpUrl::parse(url).ok_or_else(|| io::Error::other(format!("not an endpoint URL: {url}")))?;
        let request = Request::new("POST", url.target());
        Ok(request.header("Host", &url.origin().authority()).header("TTL", &ttl.to_string()))
    }

    /// Sets a header, in the place of one of the same name.
    #[must_use]
    pub fn header(self, name: &str, value: &str) -> Request {
        let mut request = self.without(name);
        request.headers.push((name.into(), value.into()));
        request
    }

    /// Removes a header.
    #[must_use]
    pub fn without(mut self, name: &str) -> Request {
        self.headers.retain(|(key, _)| !key.eq_ignore_ascii_case(name));
        self
    }

    #[must_use]
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Request {
        self.body = body.into();
        self
    }

    /// Sets the body, and says that it is aes128gcm unless it is empty or a header names another encoding.
    #[must_use]
    pub fn encrypted(self, body: impl Into<Vec<u8>>) -> Request {
        let request = self.body(body);
        let named = request.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("Content-Encoding"));
        if request.body.is_empty() || named { request } else { request.header("Content-Encoding", "aes128gcm") }
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = format!("{} {} HTTP/1.1\r\n", self.method, self.target).into_bytes();
        for (name, value) in &self.headers {
            out.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        out.extend_from_slice(format!("Content-Length: {}\r\n\r\n", self.body.len()).as_bytes());
        out.extend_from_slice(&self.body);
        out
    }
}

/// A keep-alive connection of an app server.
pub struct Client {
    stream: Stream,
    inbox: Vec<u8>,
}

impl Client {
    /// Connects without TLS.
    ///
    /// # Errors
    /// No connection.
    pub fn connect(address: SocketAddr) -> io::Result<Client> {
        Ok(Client::over(Stream::connect(address)?))
    }

    pub fn over(stream: Stream) -> Client {
        Client { stream, inbox: Vec::new() }
    }

    /// Sends a request and reads its response.
    ///
    /// # Errors
    /// The connection ended or was silent for too long, or its bytes are no response.
    pub fn exchange(&mut self, request: &Request) -> io::Result<Response> {
        self.stream.write_all(&request.to_bytes())?;
        loop {
            if let Some((response, used)) = parse(&self.inbox).map_err(io::Error::other)? {
                self.inbox.drain(..used);
                return Ok(response);
            }
            if read_more(&mut self.stream, &mut self.inbox)? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            if self.inbox.len() > RESPONSE_BYTES_MAX {
                return Err(io::Error::other("the response is too long"));
            }
        }
    }
}

/// Sends one request on a connection of its own.
///
/// # Errors
/// As those of [`Client::exchange`].
pub fn exchange(address: SocketAddr, request: &Request) -> io::Result<Response> {
    Client::connect(address)?.exchange(request)
}

/// Waits for bytes and appends them; their number, 0 at the end of the stream.
///
/// # Errors
/// Errors of the stream.
pub fn read_more(stream: &mut impl Read, inbox: &mut Vec<u8>) -> io::Result<usize> {
    let mut buffer = [0; 16 * 1024];
    let n = repeat(|| stream.read(&mut buffer))?;
    inbox.extend_from_slice(&buffer[..n]);
    Ok(n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_is_read_when_its_last_byte_is_there() {
        let text = b"HTTP/1.1 410 Gone\r\nContent-Length: 13\r\nX: y\r\n\r\n{\"errno\":106}HTTP";
        for cut in 0..text.len() - 4 {
            assert!(parse(&text[..cut]).unwrap().is_none());
        }
        let endless = format!("HTTP/1.1 200 OK\r\nX: {}", "y".repeat(HEAD_BYTES_MAX));
        assert!(parse(endless.as_bytes()).is_err());
        let (response, used) = parse(text).unwrap().unwrap();
        assert_eq!((response.status, response.errno(), used), (410, Some(106), text.len() - 4));
        assert_eq!((response.header("x"), response.message_id()), (Some("y"), None));
        assert!(parse(b"HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551615\r\n\r\n").is_err());
    }

    #[test]
    fn header_of_a_request_replaces_its_namesake() {
        let request = Request::post("http://push.test:8082/wpush/v2/abc", 60).unwrap().header("ttl", "5");
        let text = String::from_utf8(request.clone().encrypted("b").to_bytes()).unwrap();
        let lines = ["POST /wpush/v2/abc HTTP/1.1", "Host: push.test:8082", "ttl: 5", "Content-Encoding: aes128gcm"];
        assert_eq!(text, format!("{}\r\nContent-Length: 1\r\n\r\nb", lines.join("\r\n")));
        assert!(!String::from_utf8(request.encrypted("").to_bytes()).unwrap().contains("Content-Encoding"));
        assert!(Request::post("nonsense", 60).is_err());
    }
}
