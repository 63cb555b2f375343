//! Nodes that are owed notifications while the database does not take that: their URLs in a file of the data directory,
//! so that the next boot on it tells them (decision 0037).

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use protocol::wire::url::HttpUrl;

use host::files::write_whole;

/// The file. Lives on the control plane. It exists only while a node is in it.
pub(super) struct Unwritten {
    path: Option<PathBuf>,
    urls: BTreeSet<Box<str>>,
}

impl Unwritten {
    /// Reads what an earlier boot has left. `None`: nothing is kept.
    pub fn read(path: Option<&Path>) -> Unwritten {
        let urls = match path.map(fs::read_to_string) {
            Some(Ok(text)) => text.lines().filter(|line| HttpUrl::parse(line).is_some()).map(Box::from).collect(),
            Some(Err(error)) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(%error, ?path, "file of unwritten debts not read; its nodes find out at refreshes");
                BTreeSet::new()
            }
            Some(Err(_)) | None => BTreeSet::new(),
        };
        Unwritten { path: path.map(Path::to_owned), urls }
    }

    pub fn urls(&self) -> impl Iterator<Item = &str> {
        self.urls.iter().map(|url| &**url)
    }

    /// Adds a node. It is on disk when this returns, or a line in the log says why not.
    pub fn add(&mut self, url: &str) {
        if self.path.is_some() && self.urls.insert(url.into()) {
            self.write();
        }
    }

    /// Removes the nodes that the database has rows of by now, or that are owed nothing more.
    pub fn retain(&mut self, is_unwritten: impl Fn(&str) -> bool) {
        let before = self.urls.len();
        self.urls.retain(|url| is_unwritten(url));
        if self.urls.len() != before {
            self.write();
        }
    }

    fn write(&self) {
        let Some(path) = &self.path else { return };
        let text: String = self.urls.iter().flat_map(|url| [&**url, "\n"]).collect();
        let written = if text.is_empty() { fs::remove_file(path) } else { write_whole(path, &text) };
        if let Err(error) = written {
            tracing::warn!(%error, ?path, "file of unwritten debts not written");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_stay_until_they_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("debts");
        let mut unwritten = Unwritten::read(Some(&path));
        unwritten.add("http://a:1");
        unwritten.add("http://b:1");
        let mut next = Unwritten::read(Some(&path));
        assert_eq!(next.urls().collect::<Vec<_>>(), ["http://a:1", "http://b:1"]);
        next.retain(|url| url == "http://b:1");
        assert_eq!(fs::read_to_string(&path).unwrap(), "http://b:1\n");
        next.retain(|_| false);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        fs::write(&path, "no url\nhttp://c:1\n").unwrap();
        assert_eq!(Unwritten::read(Some(&path)).urls().collect::<Vec<_>>(), ["http://c:1"]);
    }

    #[test]
    fn without_a_data_directory_nothing_is_kept() {
        let mut unwritten = Unwritten::read(None);
        unwritten.add("http://a:1");
        assert_eq!(unwritten.urls().count(), 0);
    }
}
