//! The demands of application servers on endpoint URLs, judged from outside (docs/SELF-HOSTING.md): most post only to
//! `https://`, port 443, public addresses and trusted certificates.

use std::net::{IpAddr, ToSocketAddrs as _};
use std::time::SystemTime;

use protocol::wire::global::is_global;
use protocol::wire::url::{HttpUrl, Origin};

use super::Failure;
use client::stream::Trust;
use control_plane::Validity;
use host::Verdict;

/// One demand, judged.
#[derive(Debug, PartialEq, Eq)]
pub struct Row {
    pub name: &'static str,
    pub verdict: Verdict,
    pub found: String,
}

/// Facts about an endpoint URL. Each error is a sentence.
struct Facts<'a> {
    /// Host that the operator named.
    server: &'a str,
    endpoint: &'a Origin,
    addresses: Result<Vec<IpAddr>, String>,
    /// Days until the certificate ends. The handshake has verified its authority and its name.
    days_left: Result<i64, String>,
}

/// Reads the URL of a server: `https://NAME`, with the path of its user agents.
///
/// # Errors
/// One sentence for any other text.
pub fn server_url(text: &str) -> Result<HttpUrl, String> {
    let name = text.split_once("://").map_or(text, |(_, name)| name);
    let url = HttpUrl::parse(text).filter(|url| url.origin().https);
    url.ok_or_else(|| format!("browsers and app servers take https:// only; give https://{name}"))
}

/// Judges the endpoint URL that `server` gave.
pub fn examine(server: &HttpUrl, endpoint: &HttpUrl, trust: &Trust) -> Vec<Row> {
    let endpoint = endpoint.origin();
    let facts = Facts {
        server: &server.origin().host,
        endpoint,
        addresses: resolve(endpoint).map_err(|error| error.to_string()),
        days_left: days_left(endpoint, trust).map_err(|failure| failure.to_string()),
    };
    judge(&facts)
}

/// Returns the first failed demand.
///
/// # Errors
/// One sentence that names it.
pub fn outcome(rows: &[Row]) -> Result<(), Failure> {
    let failed = rows.iter().find(|row| row.verdict == Verdict::Fail);
    failed.map_or(Ok(()), |row| Err(Failure::new(format!("app servers refuse the endpoint: {}", row.found))))
}

fn resolve(endpoint: &Origin) -> std::io::Result<Vec<IpAddr>> {
    let mut addresses: Vec<IpAddr> = endpoint.with_port().to_socket_addrs()?.map(|at| at.ip()).collect();
    addresses.sort_unstable();
    addresses.dedup();
    Ok(addresses)
}

fn days_left(endpoint: &Origin, trust: &Trust) -> Result<i64, Failure> {
    let stream = trust.connect(endpoint, endpoint)?;
    let validity = stream.certificate().and_then(Validity::of);
    let validity = validity.ok_or_else(|| Failure::new("no certificate was shown"))?;
    Ok(validity.seconds_left(SystemTime::now()).div_euclid(86_400))
}

fn judge(facts: &Facts<'_>) -> Vec<Row> {
    let Facts { server, endpoint, .. } = facts;
    let mut rows = vec![match endpoint.https {
        true => good("scheme", "https".to_owned()),
        false => fail("scheme", format!("{endpoint} is not https; set endpoint.url = https://{server}")),
    }];
    rows.push(match endpoint.port {
        443 => good("port", "443".to_owned()),
        port => fail(
            "port",
            format!(
                "{port} is not 443, which some app servers demand, and some libraries leave the port out of the VAPID \
                 audience; listen on 443 and set endpoint.url without a port"
            ),
        ),
    });
    rows.push(match endpoint.host == *server {
        true => good("host", endpoint.host.clone()),
        false => warn("host", format!("endpoint URLs name {}, and not {server}", endpoint.host)),
    });
    rows.push(addresses(&endpoint.host, &facts.addresses));
    if endpoint.https {
        rows.push(certificate(&facts.days_left));
    }
    rows
}

fn addresses(host: &str, addresses: &Result<Vec<IpAddr>, String>) -> Row {
    let addresses = match addresses {
        Ok(addresses) => addresses,
        Err(why) => return fail("address", format!("{host} does not resolve: {why}")),
    };
    let texts = |all: &[IpAddr]| all.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ");
    let (public, others): (Vec<IpAddr>, Vec<IpAddr>) = addresses.iter().copied().partition(|ip| is_global(*ip));
    match (public.is_empty(), others.is_empty()) {
        (false, true) => good("address", texts(&public)),
        (false, false) => {
            let (others, public) = (texts(&others), texts(&public));
            warn("address", format!("{others} in the DNS is not public, beside {public}; remove it"))
        }
        (true, _) => fail("address", format!("{host} has no public address but {}", texts(&others))),
    }
}

fn certificate(days_left: &Result<i64, String>) -> Row {
    match days_left {
        Ok(days @ DAYS_MIN..) => good("certificate", format!("trusted, names the host; days left: {days}")),
        Ok(days) => warn("certificate", format!("ends soon; days left: {days}")),
        Err(why) => fail("certificate", why.clone()),
    }
}

/// Fewer days are a warning: six-day certificates are renewed with at least two days left.
const DAYS_MIN: i64 = 2;

fn good(name: &'static str, found: String) -> Row {
    Row { name, verdict: Verdict::Good, found }
}

fn warn(name: &'static str, found: String) -> Row {
    Row { name, verdict: Verdict::Warn, found }
}

fn fail(name: &'static str, found: String) -> Row {
    Row { name, verdict: Verdict::Fail, found }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(endpoint: &str, addresses: &[&str], days_left: Result<i64, String>) -> Vec<Row> {
        let endpoint = HttpUrl::parse(endpoint).unwrap();
        let addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
        judge(&Facts { server: "push.example", endpoint: endpoint.origin(), addresses: Ok(addresses), days_left })
    }

    /// Verdicts of scheme, port, host, address and certificate.
    fn verdicts(rows: &[Row]) -> Vec<Verdict> {
        rows.iter().map(|row| row.verdict).collect()
    }

    #[test]
    fn each_demand_is_judged_alone() {
        use Verdict::{Fail, Good, Warn};
        let (here, url) = (&["8.8.8.8", "2606:4700::1"][..], "https://push.example/wpush/v3/t");
        let whole = judged(url, here, Ok(63));
        assert_eq!(verdicts(&whole), [Good; 5]);
        assert!(outcome(&whole).is_ok());
        assert_eq!(whole[3].found, "8.8.8.8, 2606:4700::1");
        assert_eq!(whole[4].found, "trusted, names the host; days left: 63");
        let untrusted = || Err("the certificate of push.example is not trusted: expired".to_owned());
        for (rows, at, verdict, said) in [
            (judged("https://push.example:8443/", here, Ok(9)), 1, Fail, "8443 is not 443"),
            (judged("https://other.example/", here, Ok(9)), 2, Warn, "name other.example, and not push.example"),
            (judged(url, &["8.8.8.8", "10.1.2.3"], Ok(9)), 3, Warn, "10.1.2.3 in the DNS is not public"),
            (judged(url, &["127.0.0.1", "fd00::1"], Ok(9)), 3, Fail, "no public address but 127.0.0.1, fd00::1"),
            (judged(url, here, Ok(1)), 4, Warn, "ends soon; days left: 1"),
            (judged(url, here, untrusted()), 4, Fail, "not trusted: expired"),
        ] {
            let others = rows.iter().enumerate().filter(|(place, _)| *place != at);
            assert!(others.clone().all(|(_, row)| row.verdict == Good), "{rows:?}");
            assert_eq!(rows[at].verdict, verdict, "{rows:?}");
            assert!(rows[at].found.contains(said), "{rows:?}");
            let failed = outcome(&rows).err().map(|failure| failure.to_string());
            assert_eq!(failed.is_some_and(|why| why.contains(said)), verdict == Fail, "{rows:?}");
        }
        let plain = judged("http://push.example/", here, Ok(9));
        assert_eq!(verdicts(&plain), [Fail, Fail, Good, Good], "no certificate without TLS");
        assert!(plain[0].found.contains("set endpoint.url = https://push.example"), "{plain:?}");
    }

    #[test]
    fn addresses_of_hosts_on_the_internet_are_public() {
        let public = |text: &str| is_global(text.parse().unwrap());
        for text in ["8.8.8.8", "172.32.0.1", "100.128.0.1", "2606:4700::1", "2001:4860::8", "::ffff:8.8.8.8"] {
            assert!(public(text), "{text}");
        }
        for text in [
            "0.0.0.0",
            "10.0.0.1",
            "100.64.0.1",
            "127.0.0.1",
            "169.254.1.1",
            "172.31.0.1",
            "192.0.2.1",
            "192.168.1.1",
            "198.19.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:10.0.0.1",
            "64:ff9b::1",
            "2001:db8::1",
            "2002::1",
            "fc00::1",
            "fe80::1",
            "ff02::1",
        ] {
            assert!(!public(text), "{text}");
        }
    }

    #[test]
    fn a_url_that_is_not_https_is_refused_with_one_that_is() {
        assert_eq!(server_url("https://push.example/t/TOKEN/").unwrap().target(), "/t/TOKEN/");
        for text in ["http://push.example", "wss://push.example", "push.example"] {
            let why = server_url(text).unwrap_err();
            assert_eq!(why, "browsers and app servers take https:// only; give https://push.example");
        }
    }
}
