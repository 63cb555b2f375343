//! Text of a starting node for its operator: its addresses, and how to point Firefox at it.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use protocol::wire::url::Origin;

/// Addresses of a node as bound: with port 0 configured, the port that the kernel chose.
#[derive(Clone, Debug, Default)]
pub struct Addresses {
    pub websocket: Vec<SocketAddr>,
    /// Listeners for user agents over TLS.
    pub websocket_tls: Vec<SocketAddr>,
    pub endpoint: Vec<SocketAddr>,
    /// Listeners for app servers over TLS.
    pub endpoint_tls: Vec<SocketAddr>,
    /// Listeners for user agents and app servers together, over TLS.
    pub public: Vec<SocketAddr>,
    /// Listeners without TLS that send browsers to `https://`.
    pub public_http: Vec<SocketAddr>,
    /// Listeners of the node API.
    pub node: Vec<SocketAddr>,
    /// Listeners of the node API over TLS.
    pub node_tls: Vec<SocketAddr>,
    pub admin: Vec<SocketAddr>,
    /// Listeners for operators over TLS.
    pub admin_tls: Vec<SocketAddr>,
    /// Listeners for metrics and health, which are only read.
    pub metrics: Vec<SocketAddr>,
    /// Prefix of endpoint URLs.
    pub endpoint_url: String,
    /// URL by which user agents reach the node, `http` or `https` without a path.
    pub agent_url: String,
}

impl Addresses {
    /// Formats several lines for a terminal, with a line end at the end.
    pub fn banner(&self, shard_count: u16, cores: &[u32], data: &str) -> String {
        let mut text = format!(
            "murre {} serves with {shard_count} shard{} on CPU {}, data in {data}\n",
            env!("CARGO_PKG_VERSION"),
            if shard_count == 1 { "" } else { "s" },
            list(cores.iter().map(u32::to_string)),
        );
        let mut line = |who: &str, scheme: &str, addresses: &[SocketAddr]| {
            if !addresses.is_empty() {
                let urls = list(addresses.iter().map(|address| format!("{scheme}://{address}/")));
                // Writing to a String cannot fail.
                let _ = writeln!(text, "  {who:<12} {urls}");
            }
        };
        line("everyone", "https", &self.public);
        line("redirects", "http", &self.public_http);
        line("user agents", "ws", &self.websocket);
        line("user agents", "wss", &self.websocket_tls);
        line("app servers", "http", &self.endpoint);
        line("app servers", "https", &self.endpoint_tls);
        line("other nodes", "http", &self.node);
        line("other nodes", "https", &self.node_tls);
        line("operators", "http", &self.admin);
        line("operators", "https", &self.admin_tls);
        line("metrics", "http", &self.metrics);
        if [&self.endpoint, &self.endpoint_tls, &self.public].iter().any(|addresses| !addresses.is_empty()) {
            let _ = writeln!(text, "  endpoint URLs begin with {}", self.endpoint_url);
        }
        if [&self.websocket, &self.websocket_tls, &self.public].iter().any(|addresses| !addresses.is_empty()) {
            let url = self.agent_url.replacen("http", "ws", 1);
            let is_plain = self.agent_url.starts_with("http://");
            let insecure = if is_plain { "and dom.push.testing.allowInsecureServerURL to true, " } else { "" };
            let _ = write!(
                text,
                "Firefox: in about:config set dom.push.serverURL to {url}/\n         {insecure}then restart it\n"
            );
        }
        text
    }
}

/// Returns the host by which a client on this host reaches a listener. `localhost` also leads through a published port
/// into a container.
fn reached(listen: IpAddr) -> String {
    if listen.is_unspecified() { "localhost".to_owned() } else { listen.to_string() }
}

/// Origin by which a client on this host reaches the first of these addresses, over TLS if one of them is. `name` is
/// that of a certificate. `None`: there is no address.
pub(super) fn origin(over_tls: &[SocketAddr], plain: &[SocketAddr], name: Option<&str>) -> Option<Origin> {
    let https = !over_tls.is_empty();
    let address = over_tls.first().or(plain.first())?;
    let host = name.filter(|_| https).map_or_else(|| reached(address.ip()), host_of);
    Some(Origin { https, host, port: address.port() })
}

/// Returns a name as origins spell it.
fn host_of(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

fn list(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_banner_says_where_it_listens_and_what_firefox_needs() {
        let addresses = Addresses {
            websocket: vec!["0.0.0.0:8080".parse().unwrap(), "[::1]:8080".parse().unwrap()],
            websocket_tls: vec!["0.0.0.0:443".parse().unwrap()],
            endpoint: vec!["127.0.0.1:8082".parse().unwrap()],
            endpoint_tls: vec!["0.0.0.0:8443".parse().unwrap()],
            public: vec!["[::]:443".parse().unwrap()],
            public_http: vec!["[::]:80".parse().unwrap()],
            node: vec![],
            node_tls: vec!["10.0.0.1:8443".parse().unwrap()],
            admin: vec!["127.0.0.1:8083".parse().unwrap()],
            admin_tls: vec!["[::1]:9443".parse().unwrap()],
            metrics: vec!["127.0.0.1:8084".parse().unwrap()],
            endpoint_url: "https://push.example.org".to_owned(),
            agent_url: "http://127.0.0.1:8080".to_owned(),
        };
        let text = addresses.banner(2, &[0, 1], "murre-data");
        for line in [
            "serves with 2 shards on CPU 0, 1, data in murre-data\n",
            "  everyone     https://[::]:443/\n",
            "  redirects    http://[::]:80/\n",
            "  user agents  ws://0.0.0.0:8080/, ws://[::1]:8080/\n",
            "  user agents  wss://0.0.0.0:443/\n",
            "  app servers  http://127.0.0.1:8082/\n",
            "  app servers  https://0.0.0.0:8443/\n",
            "  other nodes  https://10.0.0.1:8443/\n",
            "  operators    http://127.0.0.1:8083/\n",
            "  operators    https://[::1]:9443/\n",
            "  metrics      http://127.0.0.1:8084/\n",
            "  endpoint URLs begin with https://push.example.org\n",
            "dom.push.serverURL to ws://127.0.0.1:8080/\n",
            "dom.push.testing.allowInsecureServerURL to true",
        ] {
            assert!(text.contains(line), "{text}");
        }
        assert_eq!(text.matches("other nodes").count(), 1);
        let over_tls = Addresses { agent_url: "https://push.example.org".to_owned(), ..addresses };
        let text = over_tls.banner(2, &[0, 1], "murre-data");
        assert!(text.ends_with("dom.push.serverURL to wss://push.example.org/\n         then restart it\n"), "{text}");
    }

    #[test]
    fn a_url_without_configuration_is_one_a_client_of_this_host_can_use() {
        let plain = |address: &str| origin(&[], &[address.parse().unwrap()], Some("unused")).unwrap().to_string();
        assert_eq!(plain("0.0.0.0:82"), "http://localhost:82");
        assert_eq!(plain("[::]:82"), "http://localhost:82");
        assert_eq!(plain("192.0.2.1:82"), "http://192.0.2.1:82");
        assert_eq!(plain("192.0.2.1:80"), "http://192.0.2.1", "the default port is left out");
        assert_eq!(plain("[2001:db8::1]:80"), "http://[2001:db8::1]");
        let over_tls = |address: &str, name| origin(&[address.parse().unwrap()], &[], name).unwrap().to_string();
        assert_eq!(over_tls("0.0.0.0:443", Some("Push.Example.org.")), "https://push.example.org");
        assert_eq!(over_tls("0.0.0.0:8443", Some("push.example.org")), "https://push.example.org:8443");
        assert_eq!(over_tls("[::]:443", None), "https://localhost");
        assert_eq!(over_tls("192.0.2.1:82", None), "https://192.0.2.1:82");
        assert_eq!(origin(&[], &[], Some("push.example.org")), None);
    }
}
