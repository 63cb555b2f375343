//! Version of the binary, the commit that it was built from, and its Cargo features.
//!
//! The binary knows them from its build script and names them once, so that a commit compiles only the binary anew.

#![forbid(unsafe_code)]

use std::sync::OnceLock;

/// Origin of a binary.
#[derive(Clone, Copy, Debug)]
pub struct Build {
    /// Hash of the commit, or `unknown`.
    pub commit: &'static str,
    /// `clean` if the binary has nothing but that commit, `changed` if a file of it was changed, or `unknown`.
    pub tree: &'static str,
    /// Name of the build that the environment of the compiler gave as `GIT_BUILD`, or `unknown`.
    pub name: &'static str,
    /// Everything in one line: `0.1.0 (commit 0123abcd, tree clean)`.
    pub line: &'static str,
    /// `murre --version`: `line`, the features, and the planes.
    pub long: &'static str,
}

/// Version of the package.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A binary that names nothing, as those of tests.
const UNNAMED: Build = Build { commit: "unknown", tree: "unknown", name: "unknown", line: VERSION, long: VERSION };

static BUILD: OnceLock<Build> = OnceLock::new();

/// Names what this binary was built from: the first call counts.
pub fn name(build: Build) {
    BUILD.get_or_init(|| build);
}

/// Returns the origin of this binary.
pub fn build() -> Build {
    *BUILD.get().unwrap_or(&UNNAMED)
}
