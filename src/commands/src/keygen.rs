//! `murre keygen`: fresh secrets for a configuration.
//!
//! `murre serve` makes its own keys in the data directory; this command is for keys that several nodes share, or that
//! a secret store keeps.

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

use base64::Engine;
use base64::engine::general_purpose::{URL_SAFE, URL_SAFE_NO_PAD};
use ring::rand::{SecureRandom, SystemRandom};

/// Arguments of this command.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Print environment variables instead of TOML.
    #[arg(long)]
    pub env: bool,
}

/// Prints both keys. Returns 0, or 1 when the host gives no randomness or standard output is closed.
pub fn run(args: Args) -> ExitCode {
    let text = match Keys::generate() {
        Ok(keys) if args.env => keys.to_env(),
        Ok(keys) => keys.to_toml(),
        Err(error) => {
            eprintln!("murre keygen: the host gives no randomness: {error}");
            return ExitCode::FAILURE;
        }
    };
    match io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// One fresh set of secrets. Made once, printed once.
pub struct Keys {
    /// Fernet key: 32 random bytes, base64url with padding (PROTOCOL.md 2.2). Seals endpoints and message ids.
    pub crypto: String,
    /// Bearer secret of the node API (PROTOCOL.md 4.1): 32 random bytes, base64url.
    pub node: String,
}

impl Keys {
    /// Draws both keys from the operating system.
    pub fn generate() -> Result<Keys, ring::error::Unspecified> {
        let random = SystemRandom::new();
        let draw = || {
            let mut bytes = [0; 32];
            random.fill(&mut bytes).map(|()| bytes)
        };
        Ok(Keys { crypto: URL_SAFE.encode(draw()?), node: URL_SAFE_NO_PAD.encode(draw()?) })
    }

    /// Lines for a configuration file.
    pub fn to_toml(&self) -> String {
        format!(
            "# Put a new crypto key first and keep the old ones behind it as long as endpoint URLs live.\n\
             [endpoint]\n\
             crypto_keys = [\"{}\"]\n\
             \n\
             [node]\n\
             keys = [\"{}\"]\n",
            self.crypto, self.node
        )
    }

    /// Lines for an environment file.
    pub fn to_env(&self) -> String {
        format!("MURRE_ENDPOINT__CRYPTO_KEYS={}\nMURRE_NODE__KEYS={}\n", self.crypto, self.node)
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crypto_key_is_a_fernet_key_and_no_two_are_alike() {
        let (one, two) = (Keys::generate().unwrap(), Keys::generate().unwrap());
        assert!(fernet::Fernet::new(&one.crypto).is_some());
        assert_ne!(one.crypto, two.crypto);
        assert_ne!(one.node, two.node);
        assert_ne!(one.crypto.trim_end_matches('='), one.node);
    }

    #[test]
    fn toml_and_environment_carry_the_same_secrets() {
        let keys = Keys::generate().unwrap();
        let table: toml::Table = keys.to_toml().parse().unwrap();
        assert_eq!(table["endpoint"]["crypto_keys"].as_array().unwrap()[0].as_str(), Some(keys.crypto.as_str()));
        assert_eq!(table["node"]["keys"].as_array().unwrap()[0].as_str(), Some(keys.node.as_str()));
        let env = keys.to_env();
        assert_eq!(
            env.lines().collect::<Vec<_>>(),
            [format!("MURRE_ENDPOINT__CRYPTO_KEYS={}", keys.crypto), format!("MURRE_NODE__KEYS={}", keys.node)]
        );
    }

    #[test]
    fn secrets_are_not_shown_by_debug() {
        let keys = Keys { crypto: "secret".into(), node: "secret".into() };
        assert!(!format!("{keys:?}").contains("secret"));
    }
}
