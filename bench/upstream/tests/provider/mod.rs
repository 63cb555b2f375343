//! A provider that speaks to the stand-ins: it signs, and it sends one request at a time.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use h2::client::{ResponseFuture, SendRequest};
use http::Request;
use http_body_util::BodyExt as _;
use hyper::body::Bytes;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, RSA_PKCS1_SHA256, RsaKeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use upstream::{
    APNS_KEY, CA, CLIENT_CERTIFICATE, CLIENT_KEY, KEY_ID, SERVICE_ACCOUNT, SERVICE_ACCOUNT_EMAIL, State, TEAM_ID,
    TOPIC, Upstream,
};

pub const DEVICE: &str = "00fc13adff785122b4ad28809a3420982341241421348097878e577c991de8f0";
pub const PAYLOAD: &str = r#"{"aps":{"alert":"hello","mutable-content":1},"chid":"x"}"#;
pub const APNS_HEADERS: [(&str, &str); 6] = [
    ("apns-topic", TOPIC),
    ("apns-push-type", "alert"),
    ("apns-priority", "10"),
    ("apns-expiration", "0"),
    ("apns-collapse-id", "0123456789012345678901"),
    ("apns-id", "123e4567-e89b-12d3-a456-42665544000a"),
];

/// Hexadecimal digits of a text.
pub fn hex(text: &str) -> String {
    text.bytes().map(|b| format!("{b:02x}")).collect()
}

pub struct Provider {
    upstream: Upstream,
    directory: TempDir,
}

impl Provider {
    pub async fn start() -> Provider {
        let directory = tempfile::tempdir().unwrap();
        let upstream = Upstream::start(IpAddr::V4(Ipv4Addr::LOCALHOST), directory.path()).await.unwrap();
        Provider { upstream, directory }
    }

    pub fn state(&self) -> &State {
        &self.upstream.state
    }

    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.directory.path().join(name)).unwrap()
    }

    /// Right claims of an assertion.
    pub fn claims(&self) -> Value {
        let account: Value = serde_json::from_slice(&self.read(SERVICE_ACCOUNT)).unwrap();
        json!({
            "iss": SERVICE_ACCOUNT_EMAIL, "scope": "https://www.googleapis.com/auth/firebase.messaging",
            "aud": account["token_uri"], "iat": now(), "exp": now() + 3_600,
        })
    }

    pub fn rs256(&self, claims: &Value) -> String {
        let account: Value = serde_json::from_slice(&self.read(SERVICE_ACCOUNT)).unwrap();
        let pem = account["private_key"].as_str().unwrap();
        let der = PrivatePkcs8KeyDer::from_pem_slice(pem.as_bytes()).unwrap();
        let key = RsaKeyPair::from_pkcs8(der.secret_pkcs8_der()).unwrap();
        let text = unsigned(&json!({"alg": "RS256", "typ": "JWT"}), claims);
        let mut signature = vec![0; key.public().modulus_len()];
        key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), text.as_bytes(), &mut signature).unwrap();
        format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    /// A provider token that is this many seconds old.
    pub fn es256(&self, age: i64) -> String {
        self.es256_of(KEY_ID, age)
    }

    pub fn es256_of(&self, key_id: &str, age: i64) -> String {
        let der = PrivatePkcs8KeyDer::from_pem_slice(&self.read(APNS_KEY)).unwrap();
        let random = SystemRandom::new();
        let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, der.secret_pkcs8_der(), &random).unwrap();
        let text = unsigned(&json!({"alg": "ES256", "kid": key_id}), &json!({"iss": TEAM_ID, "iat": now() - age}));
        let signature = key.sign(&random, text.as_bytes()).unwrap();
        format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    pub async fn access_token(&self) -> String {
        let (status, body) = self.token(&self.rs256(&self.claims())).await;
        assert_eq!((status, &body["expires_in"]), (200, &json!(3_599)), "{body}");
        body["access_token"].as_str().unwrap().to_owned()
    }

    pub async fn token(&self, assertion: &str) -> (u16, Value) {
        let mut google = self.connect(self.upstream.google, false, None).await.unwrap();
        let body = format!("grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer&assertion={assertion}");
        let headers = [("content-type", "application/x-www-form-urlencoded")];
        google.call("/token", &headers, &body).await.unwrap()
    }

    pub async fn fcm(&self, token: &str, message: &Value) -> Result<(u16, Value), h2::Error> {
        let mut google = self.connect(self.upstream.google, false, None).await.unwrap();
        let bearer = format!("Bearer {token}");
        let headers = [("content-type", "application/json"), ("authorization", bearer.as_str())];
        let body = json!({"message": message}).to_string();
        google.call("/v1/projects/murre-test/messages:send", &headers, &body).await
    }

    pub async fn apple(&self, has_certificate: bool) -> io::Result<Connection> {
        self.connect(self.upstream.apple, has_certificate, None).await
    }

    /// A connection that takes any number of streams for allowed until SETTINGS arrive.
    pub async fn apple_without_limit(&self) -> Connection {
        self.connect(self.upstream.apple, false, Some(100)).await.unwrap()
    }

    async fn connect(
        &self,
        address: SocketAddr,
        has_certificate: bool,
        streams: Option<usize>,
    ) -> io::Result<Connection> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(&self.read(CA)).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let builder = builder.with_root_certificates(roots);
        let mut config = if has_certificate {
            let chain = vec![CertificateDer::from_pem_slice(&self.read(CLIENT_CERTIFICATE)).unwrap()];
            let key = PrivateKeyDer::from_pem_slice(&self.read(CLIENT_KEY)).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        } else {
            builder.with_no_client_auth()
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        let name = ServerName::try_from("localhost").unwrap();
        let stream = TcpStream::connect(address).await?;
        let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
        let mut builder = h2::client::Builder::new();
        builder.initial_max_send_streams(streams.unwrap_or(1)).max_header_list_size(16 * 1024);
        let (sender, driver) = builder.handshake(stream).await.map_err(io::Error::other)?;
        tokio::spawn(driver);
        Ok(Connection { sender, begun: Vec::new() })
    }

    /// One request to the control port.
    pub async fn control(&self, method: &str, path: &str, body: &str) -> Value {
        let stream = TcpStream::connect(self.upstream.control).await.unwrap();
        let io = hyper_util::rt::TokioIo::new(stream);
        let (mut sender, driver) = hyper::client::conn::http1::handshake(io).await.unwrap();
        tokio::spawn(driver);
        let request = Request::builder().method(method).uri(path).header("host", "control").body(body.to_owned());
        let response = sender.send_request(request.unwrap()).await.unwrap();
        assert_eq!(response.status(), 200);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        serde_json::from_slice(&body).unwrap()
    }
}

/// One HTTP/2 connection.
pub struct Connection {
    sender: SendRequest<Bytes>,
    begun: Vec<ResponseFuture>,
}

impl Connection {
    pub async fn push(
        &mut self,
        device: &str,
        token: Option<&str>,
        headers: &[(&str, &str)],
        payload: &str,
    ) -> Result<(u16, Value), h2::Error> {
        let bearer = token.map(|token| format!("bearer {token}"));
        let headers: Vec<_> =
            headers.iter().copied().chain(bearer.as_deref().map(|value| ("authorization", value))).collect();
        self.call(&format!("/3/device/{device}"), &headers, payload).await
    }

    /// Sends a request and does not wait for its answer.
    pub async fn begin(&mut self, device: &str, token: Option<&str>, headers: &[(&str, &str)], payload: &str) {
        let mut request = Request::builder().method("POST").uri(format!("https://localhost/3/device/{device}"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request = request.header("authorization", format!("bearer {}", token.unwrap()));
        let (answer, mut body) = self.sender.send_request(request.body(()).unwrap(), false).unwrap();
        body.send_data(Bytes::copy_from_slice(payload.as_bytes()), true).unwrap();
        self.begun.push(answer);
    }

    async fn call(&mut self, path: &str, headers: &[(&str, &str)], payload: &str) -> Result<(u16, Value), h2::Error> {
        let mut request = Request::builder().method("POST").uri(format!("https://localhost{path}"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut sender = self.sender.clone().ready().await?;
        let (answer, mut body) = sender.send_request(request.body(()).unwrap(), payload.is_empty())?;
        if !payload.is_empty() {
            body.send_data(Bytes::copy_from_slice(payload.as_bytes()), true)?;
        }
        let answer = answer.await?;
        let status = answer.status().as_u16();
        let mut body = answer.into_body();
        let mut bytes = Vec::new();
        while let Some(chunk) = body.data().await {
            let chunk = chunk?;
            let _ = body.flow_control().release_capacity(chunk.len());
            bytes.extend_from_slice(&chunk);
        }
        let value = if bytes.is_empty() { Value::Null } else { serde_json::from_slice(&bytes).unwrap() };
        Ok((status, value))
    }

    /// Waits until the limit is the wanted one, for a short time, and returns it.
    pub async fn limit_of_streams(&mut self, wanted: usize) -> usize {
        let deadline = Instant::now() + Duration::from_secs(5);
        loop {
            let limit = self.sender.current_max_send_streams();
            if limit == wanted || Instant::now() > deadline {
                return limit;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

fn unsigned(header: &Value, claims: &Value) -> String {
    let [header, claims] = [header, claims].map(|part| URL_SAFE_NO_PAD.encode(part.to_string()));
    format!("{header}.{claims}")
}

fn now() -> i64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() as i64
}
