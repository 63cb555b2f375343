//! Version of this binary, and the commit that it was built from (`build.rs`).

/// Version of the package.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Hash of the commit, or `unknown`.
pub const COMMIT: &str = env!("BUILD_COMMIT");
/// `clean` if the binary has nothing but that commit, `changed` if a file of it was changed, or `unknown`.
pub const TREE: &str = env!("BUILD_TREE");
/// Name of the build that the environment of the compiler gave as `GIT_BUILD`, or `unknown`.
pub const BUILD: &str = env!("BUILD_NAME");
/// Everything in one line: `0.1.0 (commit 0123abcd, tree clean)`.
pub const LINE: &str =
    concat!(env!("CARGO_PKG_VERSION"), " (commit ", env!("BUILD_COMMIT"), ", tree ", env!("BUILD_TREE"), ")");
