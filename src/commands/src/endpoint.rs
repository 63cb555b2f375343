//! `murre endpoint inspect URL`: opens an endpoint token with the configured keys and prints its contents.
//!
//! For the operator who is sent an endpoint URL and asks for its user agent, its server, and the key that sealed it.
//! Reads the configuration of the server and the keys in its data directory; changes nothing, makes nothing.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::{ConfigArgs, fail, status};
use protocol::webpush::endpoint::{EndpointToken, TokenForm, Tokens, parse_path};
use protocol::wire::url::Origin;

/// Arguments of this command.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: What,
}

/// Tasks for an endpoint.
#[derive(clap::Subcommand, Debug)]
enum What {
    /// Print the contents of an endpoint URL: user agent, channel, key, and the time and key of the seal.
    Inspect(Inspect),
}

/// Arguments of `inspect`.
#[derive(clap::Args, Debug)]
struct Inspect {
    /// Endpoint URL, or only the part that follows /wpush/ (SimplePush: /spush/).
    url: String,
    /// Print the result as one JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Returns 0 when a key opens the token, `status::FAILED` when none does, `status::CONFIG` when keys are unreadable.
pub fn run(args: Args) -> ExitCode {
    let What::Inspect(args) = args.command;
    let config = match args.config.load() {
        Ok(config) => config,
        Err(error) => return fail(status::CONFIG, &error),
    };
    let configured: Vec<String> = config.endpoint.crypto_keys.iter().map(|key| key.reveal().to_string()).collect();
    let keys = match configured.is_empty() {
        true => match kept_key(&config.data_dir) {
            Ok(key) => vec![key],
            Err(reason) => return fail(status::CONFIG, &reason),
        },
        false => configured,
    };
    match inspect(&args.url, &keys) {
        Ok(found) => {
            let text = if args.json { found.to_json() } else { found.to_text() };
            match io::stdout().write_all(text.as_bytes()) {
                Ok(()) => ExitCode::SUCCESS,
                Err(_) => ExitCode::FAILURE,
            }
        }
        Err(reason) => fail(status::FAILED, &reason),
    }
}

/// The key that the server made for itself (`src/server/src/data_dir.rs`).
fn kept_key(data_dir: &Path) -> Result<String, String> {
    let path = data_dir.join("keys").join("crypto");
    fs::read_to_string(&path).map(|text| text.trim().to_string()).map_err(|error| {
        format!("there is no key: endpoint.crypto_keys is not set and {} cannot be read: {error}", path.display())
    })
}

/// An opened token, its age and its key.
#[derive(Debug, PartialEq, Eq)]
struct InspectedToken {
    opened: EndpointToken,
    /// Unix seconds; absent in tokens of version 3.
    sealed: Option<u64>,
    /// Counted from 1.
    key: usize,
    keys: usize,
}

/// Opens the token with each key alone, so that the one that fits is known.
fn inspect(url: &str, keys: &[String]) -> Result<InspectedToken, String> {
    let cut = ["/wpush/", "/spush/"].iter().find_map(|part| url.rsplit_once(part));
    let path = cut.map_or(url, |(_, path)| path);
    let (version, token) = parse_path(path)
        .ok_or("this is not an endpoint URL: it must end in /wpush/v1/TOKEN, /v2/TOKEN or /v3/TOKEN")?;
    for (at, key) in keys.iter().enumerate() {
        // The origin of the URL does not matter for its token.
        let base = Origin { https: false, host: "localhost".to_owned(), port: 80 }.into();
        let tokens = Tokens::new(&base, TokenForm::Short, std::slice::from_ref(key));
        let tokens = tokens.map_err(|_| format!("key {} of {} is not a Fernet key", at + 1, keys.len()))?;
        let Some(opened) = tokens.open(1, token).or_else(|| tokens.open(3, token)) else { continue };
        // A bare token has its version in its contents only.
        if opened.version != version && path != token {
            let belongs = opened.version;
            return Err(format!("the token belongs under /wpush/v{belongs}/, not v{version}: the server answers 404"));
        }
        let sealed = if opened.version == 3 { None } else { sealed_at(token) };
        return Ok(InspectedToken { opened, sealed, key: at + 1, keys: keys.len() });
    }
    let tried = if keys.len() == 1 {
        "the key does not open it".into()
    } else {
        format!("none of {} keys opens it", keys.len())
    };
    Err(format!("{tried}: it was sealed with another key, or changed"))
}

/// Bytes 1 to 8 of a Fernet token (PROTOCOL.md 2.2): the time by its sealer's clock. Authentic once the token opened.
fn sealed_at(token: &str) -> Option<u64> {
    let head = URL_SAFE_NO_PAD.decode(token.get(..12)?).ok()?;
    Some(u64::from_be_bytes(head.get(1..9)?.try_into().ok()?))
}

impl InspectedToken {
    fn uaid(&self) -> String {
        uuid::Uuid::from_bytes(self.opened.uaid.0).simple().to_string()
    }

    fn channel(&self) -> String {
        uuid::Uuid::from_bytes(self.opened.chid.0).hyphenated().to_string()
    }

    fn to_text(&self) -> String {
        let bound = match &self.opened.lock {
            Some(lock) => {
                let said = if lock.as_bytes().len() == 32 { "has SHA-256" } else { "has a SHA-256 that begins with" };
                format!("only the sender whose key {said} {}", URL_SAFE_NO_PAD.encode(lock.as_bytes()))
            }
            None => "anybody who knows the URL".to_string(),
        };
        let sealed = match self.sealed {
            Some(at) => format!("{at} (Unix seconds), {} days ago", unix_now().saturating_sub(at) / 86_400),
            None => "a token of version 3 does not say when".to_string(),
        };
        format!(
            "version   v{}\nuaid      {}   (a secret: whoever knows it can take over the session)\nchannel   {}\n\
             senders   {bound}\nsealed    {sealed}\nkey       {} of {}\n",
            self.opened.version,
            self.uaid(),
            self.channel(),
            self.key,
            self.keys
        )
    }

    fn to_json(&self) -> String {
        let digest = self.opened.lock.as_ref().map(|lock| URL_SAFE_NO_PAD.encode(lock.as_bytes()));
        let value = serde_json::json!({
            "version": self.opened.version, "uaid": self.uaid(), "channelID": self.channel(),
            "key_sha256": digest, "sealed": self.sealed, "crypto_key": self.key, "crypto_keys": self.keys,
        });
        value.to_string() + "\n"
    }
}

fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use machine::ids::{Chid, KeyDigest, Uaid};

    use super::*;
    use protocol::webpush::endpoint::Subscription;
    use protocol::wire::url::BaseUrl;

    const KEY_1: &str = "HJVPy4ZwF4Yz_JdvXTL8hRcwIhv742vC60Tg5Ycrvw8=";
    const KEY_2: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

    fn url_in(form: TokenForm, key: &str, digest: Option<[u8; 32]>) -> String {
        let subscription = Subscription { uaid: Uaid([0xab; 16]), chid: Chid([0xcd; 16]), key: digest.map(KeyDigest) };
        let mut url = Vec::new();
        let mut tokens =
            Tokens::new(&BaseUrl::parse("https://push.example").unwrap(), form, &[key.to_string()]).unwrap();
        tokens.seal(&subscription, &mut url).unwrap();
        String::from_utf8(url).unwrap()
    }

    fn url(key: &str, digest: Option<[u8; 32]>) -> String {
        url_in(TokenForm::Fernet, key, digest)
    }

    fn keys(list: &[&str]) -> Vec<String> {
        list.iter().map(|key| key.to_string()).collect()
    }

    #[test]
    fn a_url_is_taken_apart_and_the_key_that_fits_is_named() {
        let found = inspect(&url(KEY_2, Some([7; 32])), &keys(&[KEY_1, KEY_2])).unwrap();
        assert_eq!((found.key, found.keys), (2, 2));
        assert_eq!(found.uaid(), "ab".repeat(16));
        assert_eq!(found.channel(), "cdcdcdcd-cdcd-cdcd-cdcd-cdcdcdcdcdcd");
        assert!(unix_now() - found.sealed.unwrap() < 60, "{:?}", found.sealed);
        let text = found.to_text();
        assert!(text.contains("version   v2") && text.contains("key       2 of 2"), "{text}");
        assert!(text.contains(&URL_SAFE_NO_PAD.encode([7; 32])), "{text}");
        let json: serde_json::Value = serde_json::from_str(&found.to_json()).unwrap();
        assert_eq!((json["version"].as_u64(), json["crypto_key"].as_u64()), (Some(2), Some(2)));
    }

    #[test]
    fn a_url_without_a_key_and_a_bare_token_are_understood() {
        let url = url(KEY_1, None);
        let found = inspect(&url, &keys(&[KEY_1])).unwrap();
        assert!(found.to_text().contains("anybody who knows the URL"));
        let (_, path) = url.split_once("/wpush/").unwrap();
        assert_eq!(inspect(path, &keys(&[KEY_1])).unwrap(), found);
        assert_eq!(inspect(&url.replace("/wpush/", "/spush/"), &keys(&[KEY_1])).unwrap(), found, "SimplePush");
    }

    #[test]
    fn short_tokens_are_taken_apart_too() {
        for digest in [None, Some([7; 32])] {
            let url = url_in(TokenForm::Short, KEY_2, digest);
            let found = inspect(&url, &keys(&[KEY_1, KEY_2])).unwrap();
            assert_eq!((found.key, found.sealed, found.uaid()), (2, None, "ab".repeat(16)));
            let text = found.to_text();
            assert!(text.contains("version   v3") && text.contains("does not say when"), "{text}");
            let begins = format!("begins with {}\n", URL_SAFE_NO_PAD.encode([7; 16]));
            assert_eq!(text.contains(&begins), digest.is_some(), "{text}");
            let json: serde_json::Value = serde_json::from_str(&found.to_json()).unwrap();
            assert!(json["sealed"].is_null() && json["version"] == 3);
            for bare in ["/v3/", "/wpush/v3/"].map(|cut| url.split_once(cut).unwrap().1) {
                assert_eq!(inspect(bare, &keys(&[KEY_1, KEY_2])).unwrap(), found);
            }
            assert!(inspect(&url.replace("/v3/", "/v1/"), &keys(&[KEY_2])).unwrap_err().contains("404"));
        }
    }

    #[test]
    fn what_cannot_be_opened_is_explained() {
        let refusal = |url: &str, list: &[&str]| inspect(url, &keys(list)).unwrap_err();
        assert!(refusal(&url(KEY_2, None), &[KEY_1]).contains("the key does not open it"));
        assert!(refusal(&url(KEY_2, None), &[KEY_1, KEY_1]).contains("none of 2 keys"));
        assert!(refusal(&url(KEY_1, None).replace("/v1/", "/v2/"), &[KEY_1]).contains("404"));
        assert!(refusal("https://push.example/wpush/v7/x", &[KEY_1]).contains("/wpush/v1/TOKEN"));
        assert!(refusal(&url(KEY_1, None), &["short"]).contains("not a Fernet key"));
    }

    #[test]
    fn without_any_key_the_place_that_was_looked_at_is_named() {
        let dir = tempfile::tempdir().unwrap();
        assert!(kept_key(dir.path()).unwrap_err().contains("keys/crypto"));
        fs::create_dir(dir.path().join("keys")).unwrap();
        fs::write(dir.path().join("keys/crypto"), format!("{KEY_1}\n")).unwrap();
        assert_eq!(kept_key(dir.path()).unwrap(), KEY_1);
    }
}
