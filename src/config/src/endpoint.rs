//! `endpoint.*`: the port of application servers, and endpoint URLs.

use std::net::SocketAddr;

use machine::ids::KeyDigest;
use protocol::webpush::endpoint::TokenForm;
use protocol::wire::url::BaseUrl;

use super::allowed::{ADDRESSES, ADDRESSES_OR_NONE, RATE, URL, VAPID_KEYS};
use super::client_certificates::ClientCertificates;
use super::key::settings;
use super::parse;
use super::parse::Secret;

settings! {
    /// `endpoint.*`.
    #[derive(Clone, Debug, Default)]
    pub struct Endpoint as ENDPOINT at [endpoint] {
        pub listen: Vec<SocketAddr> = "endpoint.listen" ("endpoint" "ADDR"), "127.0.0.1:8082",
            ADDRESSES,
            "Listen addresses for the POSTs of application servers.",
            parse::addresses;
        pub tls_listen: Vec<SocketAddr> = "endpoint.tls.listen" ("endpoint-tls" "ADDR"), "",
            ADDRESSES_OR_NONE,
            "Listen addresses for the POSTs of application servers over TLS (https); needs tls.cert and tls.key.",
            parse::addresses;
        /// Start of endpoint URLs, no slash at the end; `None`: `https://` and the first of `public.domain`, or
        /// `https://`, the first name of the first certificate and the port of `public.listen` or `tls_listen`, or
        /// `http://` and the first listen address.
        pub url: Option<BaseUrl> = "endpoint.url" ("endpoint-url" "URL"), "",
            URL,
            "Start of the endpoint URLs, as application servers reach it; by default https:// and the first of public.domain, else https://, the first name of the first certificate and the port of public.listen or endpoint.tls.listen, else http:// and the first address of endpoint.listen, or localhost if that is 0.0.0.0 or [::].",
            parse::url;
        /// Fernet keys; the first encrypts, all decrypt. Empty: one is made in the data directory.
        pub crypto_keys: Vec<Secret> = "endpoint.crypto_keys" [secret live], "",
            "Fernet keys as printed by `murre keygen`, [k1,k2] or k1,k2",
            "Keys of the endpoint tokens: the first key seals, every key opens. By default the server makes one in data_dir.",
            parse::fernet_keys;
        pub tokens: TokenForm = "endpoint.tokens", "short",
            "short, or fernet for the tokens of the services before this one",
            "Form of new endpoint tokens; the server opens every form.",
            parse::word([("short", TokenForm::Short), ("fernet", TokenForm::Fernet)]);
        /// POSTs per second to one endpoint; 0: no limit.
        pub token_rate: u32 = "endpoint.token_rate", "0",
            RATE,
            "Maximum POSTs per second to one endpoint, with a burst of ten seconds' worth; excess POSTs are answered 429.",
            parse::rate;
        /// POSTs per second of one VAPID key on one shard; 0: no limit.
        pub origin_rate: u32 = "endpoint.origin_rate", "0",
            RATE,
            "Maximum POSTs per second for each VAPID key and shard; POSTs without a key are limited for each user to whom they go. Excess POSTs are answered 429.",
            parse::rate;
        /// Digests of the VAPID public keys whose POSTs are taken; empty: any.
        pub allowed_keys: Vec<KeyDigest> = "endpoint.allowed_keys" [live], "",
            VAPID_KEYS,
            "VAPID public keys of the app servers whose messages are taken; others are answered 401. Empty: all.",
            parse::vapid_keys;
    } with {
        /// `endpoint.tls.client_ca` and `endpoint.tls.client_required`.
        pub clients: ClientCertificates,
    }
}
