//! Directories and files with secrets: for their owner only, and never half written.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

/// Makes a directory with mode 0700, and those above it.
///
/// # Errors
/// As the operating system says.
pub fn make_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Writes a file with mode 0600. It is written under another name first, so that a file with this name is always whole,
/// also after a power cut.
///
/// # Errors
/// As the operating system says; then a file of this name is what it was.
pub fn write_whole(path: &Path, text: &str) -> io::Result<()> {
    let draft = path.with_extension("tmp");
    let _ = fs::remove_file(&draft);
    let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&draft)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&draft, path)?;
    path.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
}
