//! Port of the endpoint URLs that a server with this configuration hands out.

use protocol::wire::url::Origin;

use config::Config;
use host::{Finding, Verdict, good};
use server::is_loopback;

/// Judges the port. `None`: endpoint URLs lead to this host only, or no setting says where they lead.
pub(super) fn examine(config: &Config) -> Option<Finding> {
    let (what, wanted) = ("endpoint URLs", "the port of their scheme".to_owned());
    let named = config.endpoint.url.clone().or_else(|| config.public.url()).map(|url| url.origin().clone());
    let origin = named.or_else(|| listened(config)).filter(|origin| !is_loopback(origin))?;
    if origin.has_default_port() {
        return Some(good(what, origin.to_string(), wanted));
    }
    Some(Finding {
        what,
        found: origin.to_string(),
        wanted,
        verdict: Verdict::Warn,
        why: format!(
            "some app servers post to port 443 only, and some libraries leave port {} out of the VAPID audience",
            origin.port
        ),
        mend: vec![format!(
            "murre serve --endpoint-url {}   # served on port 443, by a proxy if need be",
            Origin { https: true, port: 443, host: origin.host.clone() }
        )],
    })
}

/// Origin of the first listener for app servers over TLS, else of the first without.
fn listened(config: &Config) -> Option<Origin> {
    let over_tls = [config.public.listen(), config.endpoint.tls_listen.clone()].concat();
    let address = over_tls.first().or(config.endpoint.listen.first())?;
    let host = address.ip();
    // Such an address becomes one of this host.
    let is_named = !host.is_unspecified();
    is_named.then(|| Origin { https: !over_tls.is_empty(), host: host.to_string(), port: address.port() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::Sources;

    fn judged(sets: &[&str]) -> Option<(String, Verdict)> {
        let sets = sets.iter().map(|text| (*text).to_owned()).collect();
        let config = Config::load(&Sources { sets, ..Sources::default() }).unwrap();
        examine(&config).map(|finding| (finding.found, finding.verdict))
    }

    #[test]
    fn a_port_that_is_not_that_of_the_scheme_is_warned_of() {
        for (sets, wanted) in [
            (&[][..], None),
            (&["endpoint.url=http://localhost:8082"], None),
            (&["endpoint.listen=0.0.0.0:8082"], None),
            (&["endpoint.url=https://Push.example.org:443"], Some(("https://push.example.org", Verdict::Good))),
            (
                &["public.domain=push.example.org", "public.listen=none", "public.http_listen=none"],
                Some(("https://push.example.org", Verdict::Good)),
            ),
            (&["endpoint.url=https://push.example.org:8443"], Some(("https://push.example.org:8443", Verdict::Warn))),
            (&["endpoint.listen=192.0.2.1:8082"], Some(("http://192.0.2.1:8082", Verdict::Warn))),
        ] {
            let found = judged(sets);
            assert_eq!(found.as_ref().map(|(url, verdict)| (url.as_str(), *verdict)), wanted, "{sets:?}");
        }
    }
}
