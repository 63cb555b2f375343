//! Stand-ins of Firebase Cloud Messaging (FCM), of Google's token endpoint and of the Apple Push Notification service
//! (APNs), over TLS on loopback.
//!
//! They check each request against the documents of Google and Apple, note every fault as a *violation*, and answer as
//! these services do. A test chooses other answers by the text of a device token, or with [`Script`], or over the
//! control port. They also fail in the ways in which a network and a service fail ([`Fault`]).

mod answer;
mod apns;
mod aps;
mod control;
mod fcm;
mod google;
mod jwt;
mod papers;
mod record;
mod serve;
mod wire;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::task::JoinSet;

pub use answer::{Answer, Fault, Service};
pub use papers::{
    APNS_CHANNELS, APNS_KEY, CA, CLIENT_CERTIFICATE, CLIENT_KEY, CertificateKind, FCM_CREDENTIALS, KEY_ID, PROJECT,
    Papers, SERVICE_ACCOUNT, SERVICE_ACCOUNT_EMAIL, TEAM_ID, TOPIC,
};
pub use record::{Call, Script, State};

/// Running stand-ins. They end when this is dropped.
pub struct Upstream {
    /// Listener of FCM and of the token endpoint.
    pub google: SocketAddr,
    /// Listener of APNs.
    pub apple: SocketAddr,
    /// Listener of the control port, plain HTTP/1.1.
    pub control: SocketAddr,
    pub state: Arc<State>,
    _tasks: JoinSet<()>,
}

impl Upstream {
    /// Listens on free ports of `ip`, and writes its certificate authority and matching credentials to `directory`
    /// under the names of [`papers`].
    ///
    /// # Errors
    /// If a port or a file cannot be had.
    pub async fn start(ip: IpAddr, directory: &Path) -> io::Result<Upstream> {
        let [google, apple, control] =
            [TcpListener::bind((ip, 0)).await?, TcpListener::bind((ip, 0)).await?, TcpListener::bind((ip, 0)).await?];
        let addresses = [google.local_addr()?, apple.local_addr()?, control.local_addr()?];
        let papers = Papers::new(ip).map_err(io::Error::other)?;
        papers.write(directory, addresses[0], addresses[1])?;
        let state = Arc::new(State::new(&papers, addresses[0]));
        let mut tasks = JoinSet::new();
        tasks.spawn(serve::listen(google, serve::Kind::Google, papers.clone(), Arc::clone(&state)));
        tasks.spawn(serve::listen(apple, serve::Kind::Apple, papers, Arc::clone(&state)));
        tasks.spawn(control::listen(control, Arc::clone(&state)));
        Ok(Upstream { google: addresses[0], apple: addresses[1], control: addresses[2], state, _tasks: tasks })
    }
}
