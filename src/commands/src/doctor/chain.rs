//! Judges the order and the end of a chain of certificates.

use std::collections::HashSet;

use x509_parser::certificate::X509Certificate;
use x509_parser::parse_x509_certificate;

/// Authorities that clients know: the root certificates of this host. Their names in DER.
pub struct Known(HashSet<Vec<u8>>);

impl Known {
    /// Reads those of this host.
    pub fn of_this_host() -> Known {
        let roots = rustls_native_certs::load_native_certs().certs;
        Known(roots.iter().filter_map(|root| Some(parse(root)?.subject().as_raw().to_vec())).collect())
    }
}

/// A chain: the name of the authority that signed its first certificate, and its fault, if it has one.
pub struct Chain {
    pub issuer: String,
    /// Reason for clients to refuse it, in one sentence.
    pub fault: Option<String>,
}

/// Judges certificates in the order of their file; `None` if one of them is no certificate.
///
/// Names are compared, not signatures: a chain that was put together of the wrong parts is found, a forged one is not.
pub fn judge<'a>(chain: impl Iterator<Item = &'a [u8]>, known: &Known) -> Option<Chain> {
    let chain: Vec<X509Certificate<'_>> = chain.map(parse).collect::<Option<_>>()?;
    let issuer = chain.first()?.issuer().to_string();
    let (mut at, mut fault) = (chain.first()?, None);
    for next in &chain[1..] {
        if at.issuer().as_raw() != next.subject().as_raw() {
            fault = Some(format!(
                "the chain is out of order: \"{}\" was signed by \"{}\", and \"{}\" comes behind it",
                at.subject(),
                at.issuer(),
                next.subject()
            ));
            break;
        }
        at = next;
    }
    let ends_with_itself = at.issuer().as_raw() == at.subject().as_raw();
    if fault.is_none() && !ends_with_itself && !known.0.contains(at.issuer().as_raw()) {
        fault = Some(format!(
            "the chain is not complete: the certificate of \"{}\" is missing, and it is no authority of this host; \
             clients that do not have it refuse the certificate",
            at.issuer()
        ));
    }
    Some(Chain { issuer, fault })
}

fn parse(der: &[u8]) -> Option<X509Certificate<'_>> {
    Some(parse_x509_certificate(der).ok()?.1)
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

    use super::*;

    /// Root, intermediate and own certificate.
    fn chain() -> [Vec<u8>; 3] {
        let params = |name: &str| {
            let mut params = CertificateParams::new(vec!["n.example".to_owned()]).unwrap();
            params.distinguished_name.push(DnType::CommonName, name);
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params
        };
        let [root_key, middle_key, own_key] = [(); 3].map(|()| KeyPair::generate().unwrap());
        let root = params("Root").self_signed(&root_key).unwrap().der().to_vec();
        let by_root = Issuer::new(params("Root"), root_key);
        let middle = params("Middle").signed_by(&middle_key, &by_root).unwrap().der().to_vec();
        let by_middle = Issuer::new(params("Middle"), middle_key);
        let own = params("Own").signed_by(&own_key, &by_middle).unwrap().der().to_vec();
        [root, middle, own]
    }

    #[test]
    fn a_chain_leads_in_order_to_a_root_that_it_has_or_that_is_known() {
        let [root, middle, own] = chain();
        let nothing = Known(HashSet::new());
        let root_is_known = Known(HashSet::from([parse(&root).unwrap().subject().as_raw().to_vec()]));
        let judged = |chain: &[&Vec<u8>], known: &Known| judge(chain.iter().map(|der| &der[..]), known).unwrap();
        for (chain, known) in
            [(vec![&own, &middle, &root], &nothing), (vec![&own, &middle], &root_is_known), (vec![&root], &nothing)]
        {
            assert_eq!(judged(&chain, known).fault, None);
        }
        assert_eq!(judged(&[&own, &middle, &root], &nothing).issuer, "CN=Middle");
        for (chain, said) in [
            (vec![&own], "the certificate of \"CN=Middle\" is missing"),
            (vec![&own, &root], "\"CN=Own\" was signed by \"CN=Middle\", and \"CN=Root\" comes behind it"),
        ] {
            let fault = judged(&chain, &root_is_known).fault.unwrap();
            assert!(fault.contains(said), "{fault}");
        }
        assert!(judged(&[&own, &middle], &nothing).fault.unwrap().contains("\"CN=Root\" is missing"));
    }

    #[test]
    fn bytes_that_are_no_certificate_are_not_judged() {
        let [_, _, own] = chain();
        let nothing = Known(HashSet::new());
        assert!(judge([&own[..], b"x"].into_iter(), &nothing).is_none());
        assert!(judge([].into_iter(), &nothing).is_none());
    }
}
