//! Rules for the URL of a target. They hold at the creation of a token, and again at each message to it.

use crate::wire::url::HttpUrl;

/// Hosts that may be called. Addresses are judged after the lookup, by [`crate::wire::global`].
#[derive(Clone, Debug, Default)]
pub struct Targets {
    /// Names of this server: no message may come back to it.
    pub own: Vec<String>,
    /// `forward.hosts`: the only hosts that may be called; empty: any.
    pub only: Vec<String>,
}

impl Targets {
    /// Reads the URL of a target; `None` unless it is https on port 443, names a host that may be called by its name,
    /// and has neither user nor fragment.
    pub fn read(&self, text: &str) -> Option<HttpUrl> {
        if text.len() > TARGET_BYTES_MAX {
            return None;
        }
        let url = HttpUrl::parse(text)?;
        let origin = url.origin();
        let host = origin.host.as_str();
        let named = |list: &[String]| list.iter().any(|name| name.eq_ignore_ascii_case(host));
        let allowed = origin.https
            && origin.port == 443
            && is_name(host)
            && !named(&self.own)
            && (self.only.is_empty() || named(&self.only));
        allowed.then_some(url)
    }
}

/// Returns true for a name, in contrast to an address. A resolver also reads `0x7f.1` and `127.1` as addresses, so the
/// last label of a name is neither a number nor empty.
fn is_name(host: &str) -> bool {
    let last = host.rsplit('.').next().unwrap_or_default();
    let number = last.bytes().all(|b| b.is_ascii_digit()) || last.starts_with("0x");
    !host.contains(':') && !host.split('.').any(str::is_empty) && !number
}

/// Bytes of the URL of a target: the endpoint stays within the 1,000 bytes that UnifiedPush allows.
pub const TARGET_BYTES_MAX: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_https_to_a_named_host_on_443_is_a_target() {
        let any = Targets { own: vec!["push.own.example".into(), "Other.own.example".into()], only: Vec::new() };
        for good in
            ["https://a.example/x?y=z", "https://A.example:443/", "https://xn--bcher-kva.example/", "https://a_b.c/"]
        {
            assert!(any.read(good).is_some(), "{good}");
        }
        for bad in [
            "http://a.example/",
            "http://a.example:443/",
            "https://a.example:444/",
            "https://a.example:80/",
            "https://u@a.example/",
            "https://u:p@a.example/",
            "https://a.example/#f",
            "https://192.0.2.1/",
            "https://8.8.8.8/",
            "https://[2001:4860:4860::8888]/",
            "https://127.1/",
            "https://0x7f.0x1/",
            "https://0x08080808/",
            "https://a.0X7F/",
            "https://2130706433/",
            "https://a.example./",
            "https://a..example/",
            "https://push.own.example/wpush/x",
            "https://PUSH.own.example/",
            "https://other.own.example/",
            "ftp://a.example/",
            "//a.example/",
            "a.example",
            "",
        ] {
            assert!(any.read(bad).is_none(), "{bad}");
        }
        let long = |more| format!("https://a.example/{}", "x".repeat(TARGET_BYTES_MAX - 18 + more));
        assert!(any.read(&long(0)).is_some());
        assert!(any.read(&long(1)).is_none());
    }

    #[test]
    fn a_list_of_hosts_leaves_no_other() {
        let listed = Targets { own: Vec::new(), only: vec!["a.example".into(), "b.example".into()] };
        assert!(listed.read("https://a.example/x").is_some());
        assert!(listed.read("https://B.example/x").is_some());
        for bad in ["https://c.example/", "https://x.a.example/", "https://a.example.org/"] {
            assert!(listed.read(bad).is_none(), "{bad}");
        }
    }
}
