//! The little HTTP/1.1 that a load generator needs: requests as bytes, responses with a Content-Length.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Longest wait for bytes that must come: a host that has other things to do is no fault of the server.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A response as read.
#[derive(Debug, Default, Clone)]
pub struct Response {
    /// Status code.
    pub status: u16,
    /// Header names (lower case) and values.
    pub headers: Vec<(String, String)>,
    /// Body.
    pub body: Vec<u8>,
}

impl Response {
    /// The value of a header by its lower-case name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The `errno` of a JSON error body (PROTOCOL.md 2.11); `None` when there is none.
    pub fn errno(&self) -> Option<u64> {
        serde_json::from_slice::<serde_json::Value>(&self.body).ok()?.get("errno")?.as_u64()
    }
}

/// The response at the front of `bytes` and how many bytes it took; `None` when it is not there yet.
pub fn parse(bytes: &[u8]) -> Result<Option<(Response, usize)>, String> {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut head = httparse::Response::new(&mut headers);
    let start = match head.parse(bytes) {
        Ok(httparse::Status::Complete(start)) => start,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(error) => return Err(format!("not a response: {error}")),
    };
    let mut response = Response { status: head.code.unwrap_or(0), ..Response::default() };
    for header in head.headers.iter() {
        let value = String::from_utf8_lossy(header.value).into_owned();
        response.headers.push((header.name.to_ascii_lowercase(), value));
    }
    let len = match response.header("content-length") {
        Some(text) => text.parse::<usize>().map_err(|_| format!("Content-Length: {text}"))?,
        None => 0,
    };
    let Some(body) = bytes.get(start..start + len) else { return Ok(None) };
    response.body = body.to_vec();
    Ok(Some((response, start + len)))
}

/// The bytes of one request. `headers` are added to Host and Content-Length.
pub fn request(method: &str, host: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut out = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n").into_bytes();
    for (name, value) in headers {
        out.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
    }
    out.extend_from_slice(format!("Content-Length: {}\r\n\r\n", body.len()).as_bytes());
    out.extend_from_slice(body);
    out
}

/// A keep-alive connection that blocks.
pub struct Client {
    stream: TcpStream,
    inbox: Vec<u8>,
}

impl Client {
    /// Connects; every later wait for bytes ends after [`PATIENCE`].
    pub fn connect(address: SocketAddr) -> io::Result<Client> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(Client { stream, inbox: Vec::new() })
    }

    /// Sends these bytes and reads one response.
    pub fn exchange(&mut self, request: &[u8]) -> io::Result<Response> {
        self.stream.write_all(request)?;
        self.response()
    }

    /// Reads one response.
    pub fn response(&mut self) -> io::Result<Response> {
        loop {
            if let Some((response, used)) = parse(&self.inbox).map_err(io::Error::other)? {
                self.inbox.drain(..used);
                return Ok(response);
            }
            if read_more(&mut self.stream, &mut self.inbox)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

/// Waits for bytes and appends them; how many, 0 at the end of the stream. A read with a time limit is not begun again
/// by the kernel when something interrupts it: work that a ring of the same thread completes is such a thing, and so is
/// a process that was stopped and goes on.
pub fn read_more(stream: &mut impl Read, inbox: &mut Vec<u8>) -> io::Result<usize> {
    let mut buffer = [0; 16 * 1024];
    loop {
        match stream.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
            Ok(n) => {
                inbox.extend_from_slice(&buffer[..n]);
                return Ok(n);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupted_read_is_begun_again() {
        struct Interrupted<'a>(u32, &'a [u8]);
        impl Read for Interrupted<'_> {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                self.0 += 1;
                if self.0 < 3 { Err(io::ErrorKind::Interrupted.into()) } else { self.1.read(buffer) }
            }
        }
        let (mut stream, mut inbox) = (Interrupted(0, b"later"), b"sooner ".to_vec());
        assert_eq!(read_more(&mut stream, &mut inbox).unwrap(), 5);
        assert_eq!(inbox, b"sooner later");
        assert_eq!(read_more(&mut stream, &mut inbox).unwrap(), 0);
    }

    #[test]
    fn a_response_is_read_when_its_last_byte_is_there() {
        let text = b"HTTP/1.1 410 Gone\r\nContent-Length: 13\r\nX: y\r\n\r\n{\"errno\":106}HTTP";
        for cut in 0..text.len() - 4 {
            assert!(parse(&text[..cut]).unwrap().is_none());
        }
        let (response, used) = parse(text).unwrap().unwrap();
        assert_eq!((response.status, response.errno(), used), (410, Some(106), text.len() - 4));
        assert_eq!(response.header("x"), Some("y"));
    }
}
