//! Settings that are allowed and probably a mistake, and a host that is not as it should be: a warning in the log for
//! each.

use std::net::{IpAddr, SocketAddr};

use super::data_dir::{STRANGERS, warn_of_readers};
use super::error::NodeError;
use config::Config;
use host::{Facts, Finding, Needs, Verdict};
use protocol::wire::url::{BaseUrl, Origin};

/// Judges the host by the needs of a configuration, and logs a warning for each finding with which the server
/// starts.
///
/// # Errors
/// [`NodeError::Unfit`] with the findings that keep it from starting.
pub(super) fn on_host(facts: &Facts, needs: Needs) -> Result<(), NodeError> {
    let findings = host::judge(facts, needs);
    let of = |verdict| findings.iter().filter(move |finding| finding.verdict == verdict);
    let fatal: Vec<String> = of(Verdict::Fail).map(Finding::sentence).collect();
    if !fatal.is_empty() {
        return Err(NodeError::Unfit(fatal.join("; ")));
    }
    for Finding { what, found, wanted, why, mend, .. } in of(Verdict::Warn) {
        tracing::warn!(what, found, wanted, why, command = mend.first(), "host not as recommended");
    }
    Ok(())
}

/// Warns of settings that do not do what the operator may expect. `endpoint_url` is the prefix of endpoint URLs; the
/// pair is the numbers of shards and of CPUs.
pub(super) fn on_settings(config: &Config, endpoint_url: &BaseUrl, (shards, cpus): (u16, usize)) {
    let keys = config.node.tls.key.iter().chain(&config.store.scylla.tls.key).chain(&config.tls.key);
    for path in keys {
        warn_of_readers(path, STRANGERS);
    }
    if usize::from(shards) > cpus {
        tracing::warn!(shards, cpus, "CPUs shared by several shards; set shards.count to the number of CPUs or fewer");
    }
    let origin = endpoint_url.origin();
    if !endpoint_url.path().is_empty() {
        tracing::warn!(%endpoint_url, "path found in endpoint.url; POSTs arrive only if a proxy takes the path off");
    }
    if !origin.has_default_port() && !is_loopback(origin) {
        tracing::warn!(
            %endpoint_url,
            "port found in endpoint URLs; some application servers post to port 443 only, and some libraries leave the \
             port out of the VAPID audience: serve on port 443 and set endpoint.url without a port"
        );
    }
    let public = |addresses: &[SocketAddr]| addresses.iter().any(|address| !address.ip().is_loopback());
    let (socket, endpoint) = (&config.websocket, &config.endpoint);
    let is_public = public(&config.public.listen())
        || config.roles.connect && (public(&socket.listen) || public(&socket.tls_listen))
        || config.roles.endpoint && (public(&endpoint.listen) || public(&endpoint.tls_listen));
    if is_public && is_loopback(origin) {
        tracing::warn!(%endpoint_url, "loopback address found in endpoint URLs of a public server; set endpoint.url");
    }
    for address in
        config.admin.listen.iter().chain(&config.admin.tls_listen).filter(|address| is_reachable(address.ip()))
    {
        tracing::warn!(%address, "admin listener left open to other hosts; it is for operators: set admin.listen");
    }
    for address in config.metrics.listen.iter().filter(|address| is_reachable(address.ip())) {
        tracing::warn!(%address, "metrics listener left open to other hosts; it asks for no password: set metrics.listen");
    }
}

/// Returns true if only clients on the same host reach this origin.
pub fn is_loopback(origin: &Origin) -> bool {
    let host = &origin.host;
    let address = host.parse::<IpAddr>();
    host == "localhost" || host.ends_with(".localhost") || address.is_ok_and(|ip| ip.is_loopback())
}

/// Returns true if hosts outside the operator's own network may reach `ip`.
fn is_reachable(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => !(ip.is_loopback() || ip.is_private() || ip.is_link_local()),
        IpAddr::V6(ip) => !(ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::Sources;
    use fixtures::Log;

    fn said(sets: &[&str], endpoint_url: &str, shards: (u16, usize)) -> Vec<String> {
        let sets = sets.iter().map(|text| (*text).to_owned()).collect();
        let config = Config::load(&Sources { sets, ..Sources::default() }).unwrap();
        let log = Log::default();
        log.of("warn", || on_settings(&config, &BaseUrl::parse(endpoint_url).unwrap(), shards));
        log.text().lines().map(str::to_owned).collect()
    }

    #[test]
    fn settings_that_are_probably_not_meant_are_warned_of() {
        let local = "http://127.0.0.1:8082";
        assert_eq!(said(&[], local, (2, 2)), [""; 0]);
        for (sets, url, shards, wanted) in [
            (&[][..], local, (99, 2), "shards=99 cpus=2"),
            (&[], "https://push.example.org/push", (1, 1), "path found in endpoint.url"),
            (&["websocket.listen=0.0.0.0:1"], local, (1, 1), "loopback address found in endpoint URLs"),
            (&["endpoint.listen=[::]:1"], "http://[::1]:1", (1, 1), "loopback address found in endpoint URLs"),
            (&["endpoint.listen=192.0.2.1:1"], "http://localhost:1", (1, 1), "loopback address found in endpoint URLs"),
            (&[], "https://push.example.org:8443", (1, 1), "port found in endpoint URLs"),
            (&[], "http://192.0.2.1:8082", (1, 1), "port found in endpoint URLs"),
            (&["admin.listen=0.0.0.0:1"], local, (1, 1), "address=0.0.0.0:1"),
            (&["admin.listen=[2001:db8::1]:1"], local, (1, 1), "admin listener left open"),
            (&["metrics.listen=[2001:db8::1]:1"], local, (1, 1), "metrics listener left open"),
        ] {
            let said = said(sets, url, shards);
            assert!(said.len() == 1 && said[0].contains(wanted), "{wanted}: {said:?}");
        }
        for url in ["http://push.example.org", "https://localhost:8443", "http://[::1]:82"] {
            assert_eq!(said(&[], url, (1, 2)), [""; 0], "{url}");
        }
        for sets in [&["admin.listen=10.0.0.1:1,[fd00::1]:1"][..], &["endpoint.listen=0.0.0.0:1", "roles=connect"]] {
            assert_eq!(said(sets, local, (1, 2)), [""; 0]);
        }
        assert_eq!(said(&["websocket.listen=0.0.0.0:1"], "https://push.example.org", (1, 2)), [""; 0]);
    }
}
