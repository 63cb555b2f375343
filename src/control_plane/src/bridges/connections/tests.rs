//! Connections to a service over HTTP/2 without TLS that falls silent, or ends its connections early.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU32, Ordering};

use hyper::Response;
use protocol::wire::url::HttpUrl;
use tokio::net::{TcpListener, TcpStream};

use super::*;

/// A service. Its connections are numbered from 0.
struct Service {
    connections: Arc<Connections>,
    /// Connections that were taken.
    taken: Arc<AtomicU32>,
    /// Bits of those that answer nothing any more, neither calls nor PING.
    silent: watch::Sender<u32>,
}

impl Service {
    async fn start(connections_max: usize, ends_early: bool) -> Service {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let url = HttpUrl::parse(&format!("http://{}/", listener.local_addr().unwrap())).unwrap();
        let (taken, silent) = (Arc::new(AtomicU32::new(0)), watch::Sender::new(0));
        let (counted, quiet) = (Arc::clone(&taken), silent.subscribe());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let number = counted.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(serve(stream, number, quiet.clone(), ends_early));
            }
        });
        let idle = Duration::from_secs(600);
        let mut connections = Connections::new(url.origin().clone(), HttpClient::new(), connections_max, idle);
        if connections_max == 1 {
            connections.ping_after = Duration::from_millis(300);
            connections.pong_within = Duration::from_millis(300);
        }
        Service { connections: Arc::new(connections), taken, silent }
    }

    fn taken(&self) -> u32 {
        self.taken.load(Ordering::SeqCst)
    }

    /// Returns true if a call has its answer within this time.
    async fn answers(&self, within: Duration) -> bool {
        let call = async {
            let mut stream = Connections::stream(&self.connections).await.ok()?;
            stream.exchange(Request::post("http://localhost/").body(Full::default()).unwrap()).await.ok()
        };
        timeout(within, call).await.is_ok_and(|answer| answer.is_some())
    }

    async fn until_taken(&self, connections: u32) {
        timeout(PATIENCE, async {
            while self.taken() < connections {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        })
        .await
        .expect("a connection");
    }
}

async fn serve(stream: TcpStream, number: u32, mut silent: watch::Receiver<u32>, ends_early: bool) {
    let Ok(mut http) = h2::server::handshake(stream).await else { return };
    if ends_early {
        http.abrupt_shutdown(h2::Reason::NO_ERROR);
    }
    loop {
        tokio::select! {
            biased;
            _ = async { silent.wait_for(|silent| silent & (1 << number) != 0).await.is_ok() } => {
                std::future::pending::<()>().await;
            }
            request = http.accept() => {
                let Some(Ok((_, mut respond))) = request else { return };
                let _ = respond.send_response(Response::new(()), true);
            }
        }
    }
}

#[tokio::test]
async fn a_connection_whose_calls_time_out_is_not_favoured() {
    let service = Service::start(2, false).await;
    assert!(service.answers(PATIENCE).await);
    // Calls that are not sent: they only make a second connection wanted.
    let mut held = Vec::new();
    for _ in 0..=STREAMS_BEFORE_ANOTHER {
        held.push(Connections::stream(&service.connections).await.ok());
    }
    service.until_taken(2).await;
    timeout(PATIENCE, async {
        while service.connections.state().open.len() < 2 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await
    .expect("two connections");
    drop(held);
    service.silent.send_replace(1);
    let mut lost = 0;
    for _ in 0..20 {
        lost += u32::from(!service.answers(Duration::from_millis(500)).await);
    }
    assert!(lost <= 3, "{lost} of 20 calls went to a connection that answers nothing");
}

#[tokio::test]
async fn another_connection_is_opened_beside_one_that_answers_nothing() {
    let service = Service::start(2, false).await;
    assert!(service.answers(PATIENCE).await);
    service.silent.send_replace(1);
    let mut lost = 0;
    while !service.answers(Duration::from_millis(300)).await {
        lost += 1;
        assert!(lost < 10, "no call finds another connection");
    }
    assert_eq!(service.taken(), 2);
}

#[tokio::test]
async fn a_connection_that_does_not_even_answer_a_ping_is_given_up() {
    let service = Service::start(1, false).await;
    assert!(service.answers(PATIENCE).await);
    service.silent.send_replace(1);
    assert!(!service.answers(Duration::from_millis(100)).await);
    timeout(PATIENCE, async {
        while !service.connections.state().open[0].sender.is_closed() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .expect("a connection without an answer to PING is closed");
    assert!(service.answers(PATIENCE).await, "over a new connection");
    assert_eq!(service.taken(), 2);
}

#[tokio::test]
async fn connections_that_end_without_an_answer_are_opened_with_pauses() {
    let service = Service::start(2, true).await;
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(1_200) {
        assert!(!service.answers(PATIENCE).await);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // One at once; then after 0.25 s, 0.5 s and 1 s at least.
    assert!((2..=4).contains(&service.taken()), "{} connections", service.taken());
}

/// Longest wait for something that must happen.
const PATIENCE: Duration = Duration::from_secs(30);
