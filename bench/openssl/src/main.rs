//! One user agent with tokio-tungstenite over OpenSSL, as `bench/node/receive.js` is one with npm's ws.
//!
//! Connects to the URL that is the first argument, and trusts the certificates of the PEM file that is the second.
//! Sends each line of its input as a message, and writes each message that it receives as a line. Ends with the
//! connection, or with its input.

use std::error::Error;

use futures_util::{SinkExt as _, StreamExt as _};
use native_tls::{Certificate, TlsConnector};
use tokio::io::{AsyncBufReadExt as _, BufReader, stdin};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::{Connector, connect_async_tls_with_config};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(url), Some(authority)) = (arguments.next(), arguments.next()) else {
        return Err("give a URL and a PEM file".into());
    };
    let authority = Certificate::from_pem(&std::fs::read(authority)?)?;
    let connector = TlsConnector::builder().disable_built_in_roots(true).add_root_certificate(authority).build()?;
    let mut request = url.into_client_request()?;
    request.headers_mut().insert("Sec-WebSocket-Protocol", HeaderValue::from_static("push-notification"));
    let connector = Some(Connector::NativeTls(connector));
    let (mut socket, _) = connect_async_tls_with_config(request, None, false, connector).await?;
    let mut lines = BufReader::new(stdin()).lines();
    let mut is_open = true;
    loop {
        tokio::select! {
            line = lines.next_line(), if is_open => match line? {
                Some(line) => socket.send(Message::text(line)).await?,
                None => {
                    is_open = false;
                    socket.close(None).await?;
                }
            },
            message = socket.next() => match message.transpose()? {
                Some(Message::Text(text)) => println!("{text}"),
                Some(_) => {}
                None => return Ok(()),
            },
        }
    }
}
