//! Manual pages and completions of shells, made from the command line of `murre`.

use std::path::Path;

use clap::CommandFactory as _;
use clap_complete::Shell;
use commands::Cli;

/// Shells with completions.
const SHELLS: [Shell; 3] = [Shell::Bash, Shell::Zsh, Shell::Fish];

/// Writes a page for each command to `pages`, and a file for each shell to `completions`.
pub fn write(pages: &Path, completions: &Path) -> Result<(), String> {
    // The commit that `murre --version` names would make every build another page.
    let command = Cli::command().version(env!("CARGO_PKG_VERSION"));
    let failed = |what: &str, error: std::io::Error| format!("cannot write the {what}: {error}");
    clap_mangen::generate_to(command.clone(), pages).map_err(|error| failed("manual pages", error))?;
    for shell in SHELLS {
        let of_shell = clap_complete::generate_to(shell, &mut command.clone(), "murre", completions);
        of_shell.map_err(|error| failed("completions", error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use clap::Command;

    use super::*;

    fn names_of(directory: &Path) -> BTreeSet<String> {
        let entries = fs::read_dir(directory).expect("a directory of this test");
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// Name of the page of each command below this one, and of this one.
    fn pages_of(command: &Command, prefix: &str) -> BTreeSet<String> {
        let below = command.get_subcommands().flat_map(|each| pages_of(each, &format!("{prefix}-{}", each.get_name())));
        below.chain([format!("{prefix}.1")]).collect()
    }

    #[test]
    fn every_command_has_a_page_and_every_flag_is_in_it() {
        let (pages, completions) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        write(pages.path(), completions.path()).unwrap();
        let names = names_of(pages.path());
        let missing: Vec<String> = pages_of(&Cli::command(), "murre").difference(&names).cloned().collect();
        assert!(missing.is_empty(), "without a page: {missing:?}");
        let serve = fs::read_to_string(pages.path().join("murre-serve.1")).unwrap().replace('\\', "");
        for key in config::keys::KEYS {
            let Some((flag, _)) = key.flag else { continue };
            assert!(serve.contains(&format!("--{flag}")), "murre-serve.1 has no --{flag}");
        }
        let shells: BTreeSet<String> = ["murre.bash", "_murre", "murre.fish"].map(str::to_owned).into();
        assert_eq!(names_of(completions.path()), shells);
    }
}
