//! The binary `package`: writes what packages contain beside the binary. `bench/release/` packs it.
//!
//! Everything comes from the sources: manual pages and completions from the command line of `murre`, `murre.toml` from
//! the table of keys, and notices from the crates that `Cargo.lock` names.

mod manual;
mod notices;
mod settings;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;

/// Write manual pages, completions, murre.toml and licence notices.
#[derive(Parser)]
#[command(name = "package")]
struct Options {
    /// Directory to write to; made if it is missing.
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
    /// Target of the binary: notices name the crates that are linked for it.
    #[arg(long, value_name = "TRIPLE")]
    target: String,
}

fn main() -> ExitCode {
    let options = Options::parse();
    match write(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("package: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn write(options: &Options) -> Result<(), String> {
    let to = &options.to;
    manual::write(&made(&to.join("man"))?, &made(&to.join("completions"))?)?;
    save(&to.join("murre.toml"), &settings::commented())?;
    save(&to.join("NOTICES"), &notices::of_target(&options.target)?)
}

/// Makes a directory and returns its path.
fn made(path: &Path) -> Result<PathBuf, String> {
    fs::create_dir_all(path).map_err(|error| format!("cannot make {}: {error}", path.display()))?;
    Ok(path.to_owned())
}

fn save(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
}
