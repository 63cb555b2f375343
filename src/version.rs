//! Version of this binary, the commit that it was built from, and its Cargo features (`build.rs`).

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
/// Cargo features of this build, as `acme, bridges, hibernate, scylla`, or `none`.
pub const FEATURES: &str = env!("BUILD_FEATURES");

/// `murre --version`: [`LINE`], the features, and the planes.
pub const LONG: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (commit ",
    env!("BUILD_COMMIT"),
    ", tree ",
    env!("BUILD_TREE"),
    ")\nfeatures: ",
    env!("BUILD_FEATURES"),
    "\nplanes: io_uring, poll (murre doctor says which one shards.plane = auto takes here)"
);
