//! `/etc/murre/murre.toml`: every key of the table of keys with its default, commented out.

use config::keys::KEYS;
use config::{Key, Live};

const HEAD: &str = "\
# Settings of murre: every key with its default. Remove the # before a key to change it.
# Then murre doctor --config FILE says what is wrong, and systemctl restart murre takes it.
#
# Variables MURRE_SECTION__KEY in /etc/murre/environment win over this file, and flags of murre.service over both:
# it sets data_dir. Secrets belong into /etc/murre/environment with mode 0600, because every user reads this file.
";

/// Widest comment.
const COLUMNS: usize = 118;

/// Text of the file. Keys are written with their sections, so that each line stands for itself.
pub fn commented() -> String {
    let mut text = HEAD.to_owned();
    for key in KEYS {
        text.push('\n');
        text.push_str(&comment(&format!("{} It takes {}.{}", key.help, key.allowed, change(key))));
        text.push_str(&format!("#{} = {}\n", key.name, value(key.default)));
    }
    text
}

/// Sentences about a change of this key.
fn change(key: &Key) -> &'static str {
    match (key.secret, key.live) {
        (true, Live::Restart) => " A secret.",
        (true, _) => " A secret. SIGHUP takes a change.",
        (false, Live::Restart) => "",
        (false, Live::Taken) => " SIGHUP takes a change.",
        (false, Live::TakenIfOn) => " SIGHUP takes a change if it was on at the start and stays on.",
    }
}

/// Value as TOML.
fn value(default: &str) -> String {
    let is_bare = default.parse::<u64>().is_ok() || default.parse::<bool>().is_ok();
    if is_bare { default.to_owned() } else { format!("{default:?}") }
}

/// Words in lines of a comment.
fn comment(words: &str) -> String {
    let mut text = String::from("#");
    let mut columns = 1;
    for word in words.split_whitespace() {
        if columns + 1 + word.len() > COLUMNS {
            text.push_str("\n#");
            columns = 1;
        }
        text.push(' ');
        text.push_str(word);
        columns += 1 + word.len();
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use std::fs;

    use config::{Config, Sources};

    use super::*;

    /// Loads a file with this text and nothing else.
    fn load(text: &str) -> Result<Config, String> {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("murre.toml");
        fs::write(&file, text).unwrap();
        Config::load(&Sources { file: Some(file), ..Sources::default() }).map_err(|error| error.to_string())
    }

    /// Settings of the file without their `#`.
    fn settings(text: &str) -> Vec<String> {
        let lines = text.lines().filter_map(|line| line.strip_prefix('#'));
        lines.filter(|line| !line.is_empty() && !line.starts_with(' ')).map(str::to_owned).collect()
    }

    #[test]
    fn the_file_has_every_key_and_sets_nothing() {
        let text = commented();
        load(&text).expect("comments");
        assert!(text.lines().all(|line| line.is_empty() || line.starts_with('#')), "a line is no comment");
        let found: Vec<String> = settings(&text).iter().map(|line| line.split(" = ").next().unwrap().into()).collect();
        let keys: Vec<String> = KEYS.iter().map(|key| key.name.to_owned()).collect();
        assert_eq!(found, keys);
    }

    #[test]
    fn each_line_is_accepted_without_its_comment_and_so_are_all_together() {
        let lines = settings(&commented());
        for line in &lines {
            load(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
        load(&lines.join("\n")).expect("all of them");
    }

    #[test]
    fn a_line_that_no_key_accepts_is_refused() {
        assert!(load("max_connections = \"lots\"").is_err());
    }

    #[test]
    fn long_comments_are_broken_between_words() {
        let text = comment(&"word ".repeat(60));
        assert!(
            text.lines().count() == 3 && text.lines().all(|line| line.len() <= COLUMNS && line.starts_with("# word"))
        );
    }
}
