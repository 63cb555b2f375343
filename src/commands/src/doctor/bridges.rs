//! Judges the credentials of mobile bridges.

use std::time::{Duration, SystemTime};

use super::super::keygen::Keys;
use config::Config;
use control_plane::{BridgeSettings, ProfileReport};
use host::{Finding, Verdict};

/// Returns one finding for each profile of this configuration, or one for the first that cannot be read. `online`: also
/// asks each service once.
pub fn examine(config: &Config, online: bool) -> Vec<Finding> {
    if config.fcm.credentials.is_none() && config.apns.channels.is_none() {
        return Vec::new();
    }
    let reports = crypto_keys(config).and_then(|keys| BridgeSettings::read(config, &keys)).and_then(|settings| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| format!("this host refuses a runtime: {error}"))?;
        Ok(runtime.block_on(settings.report(online)))
    });
    match reports {
        Ok(reports) => reports.into_iter().map(|report| judge(report, SystemTime::now())).collect(),
        Err(why) => vec![Finding {
            what: "bridge",
            found: "credentials of no use".to_owned(),
            wanted: "credentials of each profile that can be read".to_owned(),
            verdict: Verdict::Fail,
            why,
            mend: vec!["murre doctor   # again, after it is mended".to_owned()],
        }],
    }
}

/// Returns the keys of message ids. Without configured ones the server makes a key in its data directory; nothing is
/// sealed here, so any key serves.
fn crypto_keys(config: &Config) -> Result<Vec<String>, String> {
    let configured: Vec<String> = config.endpoint.crypto_keys.iter().map(|key| key.reveal().to_owned()).collect();
    if !configured.is_empty() {
        return Ok(configured);
    }
    let made = Keys::generate().map_err(|error| format!("the host gives no randomness: {error}"))?;
    Ok(vec![made.crypto])
}

fn judge(report: ProfileReport, now: SystemTime) -> Finding {
    let ProfileReport { name, certificate_expires, clock_ahead, service } = report;
    let left = certificate_expires.map(|expires| expires.duration_since(now).unwrap_or_default());
    let mut found = "the credentials can be read".to_owned();
    if let Some(left) = left {
        found += &format!("; days left of the certificate: {}", left.as_secs() / 86_400);
    }
    if let Some(answer) = &service {
        found += if answer.is_ok() { "; the service answers" } else { "; the service does not answer as it should" };
    }
    let skew = clock_ahead.filter(|ahead| ahead.unsigned_abs() > SKEW_SECONDS_MAX);
    let why = match (skew, left, service) {
        // First, because it explains the others.
        (Some(ahead), ..) => skewed(ahead),
        (_, _, Some(Err(why))) => why,
        (_, Some(Duration::ZERO), _) => "the client certificate expired: Apple refuses every notification".to_owned(),
        (_, Some(left), _) if left < SOON => {
            "the client certificate expires within 30 days: renew it, replace the files, and send SIGHUP".to_owned()
        }
        _ => String::new(),
    };
    let is_good = why.is_empty();
    Finding {
        what: "bridge",
        found,
        wanted: name,
        verdict: if is_good { Verdict::Good } else { Verdict::Warn },
        why,
        mend: if is_good { Vec::new() } else { vec!["murre doctor --online   # again, after it is mended".to_owned()] },
    }
}

fn skewed(ahead: i64) -> String {
    let (seconds, side) = (ahead.unsigned_abs(), if ahead > 0 { "ahead of" } else { "behind" });
    format!("the clock of this host is {seconds} s {side} that of the service, which refuses its tokens: set the clock")
}

/// Difference of two clocks beyond which tokens fail: Google forgives five minutes, and Apple refuses a token of an
/// hour, which is replaced after 50 minutes.
const SKEW_SECONDS_MAX: u64 = 240;
const SOON: Duration = Duration::from_secs(30 * 86_400);

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::path::Path;

    use upstream::{
        APNS_CHANNELS, CA, CLIENT_CERTIFICATE, CLIENT_KEY, CertificateKind, FCM_CREDENTIALS, Script, Service, Upstream,
    };

    use super::*;
    use config::Sources;

    fn examined(directory: &Path, online: bool) -> Vec<Finding> {
        let file = |name: &str| directory.join(name).display().to_string();
        let sets = vec![
            "bridge.auth_keys=0123456789abcdef".to_owned(),
            format!("bridge.ca_file={}", file(CA)),
            format!("bridge.fcm.credentials={}", file(FCM_CREDENTIALS)),
            format!("bridge.apns.channels={}", file(APNS_CHANNELS)),
        ];
        examine(&Config::load(&Sources { sets, ..Sources::default() }).unwrap(), online)
    }

    #[test]
    fn credentials_are_read_and_services_asked_once_each() {
        assert!(examine(&Config::load(&Sources::default()).unwrap(), true).is_empty());
        let directory = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let upstream = runtime.block_on(Upstream::start(Ipv4Addr::LOCALHOST.into(), directory.path())).unwrap();
        let offline = examined(directory.path(), false);
        assert!(offline.len() >= 2 && offline.iter().all(|finding| finding.why.is_empty()), "{offline:?}");
        assert_eq!((upstream.state.connections(), upstream.state.count(Service::Token)), (0, 0));
        let online = examined(directory.path(), true);
        assert!(online.iter().all(|finding| finding.found.ends_with("; the service answers")), "{online:?}");
        assert_eq!(upstream.state.count(Service::Token), 1);
        let asked: Vec<_> = upstream.state.calls().into_iter().filter(|call| call.service != Service::Token).collect();
        assert!(asked.len() == 2 && asked.iter().all(|call| call.method == "GET"), "no notification: {asked:?}");

        let certificate = CertificateKind::Expired;
        upstream.state.set(Script { certificate, ..Script::default() });
        let refused = examined(directory.path(), true);
        assert!(refused.iter().all(|finding| finding.verdict == Verdict::Warn), "{refused:?}");
        std::fs::remove_file(directory.path().join(FCM_CREDENTIALS)).unwrap();
        let unreadable = examined(directory.path(), false);
        assert_eq!((unreadable.len(), unreadable[0].verdict), (1, Verdict::Fail));
        assert!(unreadable[0].why.starts_with("cannot read "), "{unreadable:?}");
    }

    #[test]
    fn a_clock_that_differs_from_that_of_a_service_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let upstream = runtime.block_on(Upstream::start(Ipv4Addr::LOCALHOST.into(), directory.path())).unwrap();
        for (clock_ahead, told) in [(-400, "s ahead of that"), (400, "s behind that"), (100, ""), (0, "")] {
            upstream.state.set(Script { clock_ahead, ..Script::default() });
            let findings = examined(directory.path(), true);
            let is_right = |finding: &Finding| finding.why.contains(told) && finding.why.is_empty() == told.is_empty();
            assert!(findings.len() == 3 && findings.iter().all(is_right), "{clock_ahead}: {findings:?}");
        }
    }

    /// The handshake of TLS 1.3 is over for the client before the service has seen its certificate.
    #[test]
    fn a_client_certificate_that_the_service_refuses_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let upstream = runtime.block_on(Upstream::start(Ipv4Addr::LOCALHOST.into(), directory.path())).unwrap();
        let own = rcgen::generate_simple_self_signed(vec!["push.example.com".to_owned()]).unwrap();
        std::fs::write(directory.path().join(CLIENT_CERTIFICATE), own.cert.pem()).unwrap();
        std::fs::write(directory.path().join(CLIENT_KEY), own.signing_key.serialize_pem()).unwrap();
        let findings = examined(directory.path(), true);
        let warned: Vec<_> = findings.iter().filter(|finding| finding.verdict == Verdict::Warn).collect();
        assert!(warned.len() == 1 && warned[0].wanted == "apns beta", "{findings:?}");
        // The alert, or the end of the connection: the service need not read before it closes.
        assert!(warned[0].why.starts_with("cannot talk to it: "), "{warned:?}");
        drop(upstream);
    }

    #[test]
    fn certificates_that_end_soon_are_told() {
        let now = SystemTime::now();
        for (days, verdict) in [(0, Verdict::Warn), (29, Verdict::Warn), (31, Verdict::Good)] {
            let expires = now + Duration::from_secs(days * 86_400);
            let report = ProfileReport {
                name: "apns a".to_owned(),
                certificate_expires: Some(expires),
                clock_ahead: None,
                service: None,
            };
            assert_eq!(judge(report, now).verdict, verdict, "{days}");
        }
    }
}
