//! `murre schema`: the tables of a shared store.

use std::process::ExitCode;

use clap::{Subcommand, ValueEnum};
use store::scylla::operator::{self, Operator};
use store::shared::options::Options;
use store::shared::schema::{Layout, Server, VERSION};

use super::{ConfigArgs, fail, status};
use config::Config;

/// Arguments of this command.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    task: Task,
}

/// Tasks for the tables.
#[derive(Subcommand, Debug)]
enum Task {
    /// Print the statements that make the keyspace and the tables
    Print {
        /// Database whose options the tables get; default: the configured one, else ScyllaDB
        #[arg(long = "for", value_name = "DATABASE")]
        database: Option<Database>,
        #[command(flatten)]
        store: StoreArgs,
    },
    /// Create the keyspace and the missing tables
    Create(StoreArgs),
    /// Bring the tables of an older version up to date
    Migrate(StoreArgs),
    /// Print everything that would keep a server from starting with this store
    Check(StoreArgs),
}

/// Location of the store: the configuration of the server.
#[derive(clap::Args, Debug)]
struct StoreArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Contact points (key store.scylla.nodes)
    #[arg(long, value_name = "HOST:PORT")]
    scylla: Option<String>,
}

/// Database whose options the tables get.
#[derive(Clone, Copy, ValueEnum, Debug)]
enum Database {
    /// ScyllaDB 2025.1 or later
    Scylla,
    /// Apache Cassandra 5
    Cassandra,
}

impl StoreArgs {
    fn load(&self) -> Result<Config, Failure> {
        let flag = self.scylla.iter().map(|nodes| ("--scylla".to_owned(), "store.scylla.nodes", nodes.clone()));
        self.config.load_with(flag).map_err(|error| Failure { status: status::CONFIG, said: error.to_string() })
    }

    /// Loads the configuration, which must name a contact point.
    fn reach(&self) -> Result<Config, Failure> {
        let config = self.load()?;
        if config.store.scylla.nodes.is_empty() {
            let said = "no contact point: set store.scylla.nodes, or give --scylla HOST:PORT".to_owned();
            return Err(Failure { status: status::CONFIG, said });
        }
        Ok(config)
    }
}

/// Exit status and reason of a failed command.
struct Failure {
    status: u8,
    said: String,
}

impl Failure {
    fn of(fault: impl std::fmt::Display) -> Failure {
        Failure { status: status::FAILED, said: fault.to_string() }
    }
}

/// Runs the task. Returns 0 when the tables are as requested.
pub fn run(args: Args) -> ExitCode {
    match perform(args.task) {
        Ok(said) => {
            print!("{said}");
            ExitCode::SUCCESS
        }
        Err(failure) => fail(failure.status, &failure.said),
    }
}

fn perform(task: Task) -> Result<String, Failure> {
    match task {
        Task::Print { database, store } => {
            let config = store.load()?.store.scylla;
            Ok(Layout::of(&config, for_which(database, &config)?).script())
        }
        Task::Create(store) => {
            let config = store.reach()?.store.scylla;
            let applied = Operator::connect(&config).and_then(|operator| operator.create()).map_err(Failure::of)?;
            Ok(said(&config, &applied, "made"))
        }
        Task::Migrate(store) => {
            let config = store.reach()?.store.scylla;
            let applied = Operator::connect(&config).and_then(|operator| operator.migrate()).map_err(Failure::of)?;
            Ok(said(&config, &applied, "brought up to date"))
        }
        Task::Check(store) => {
            let config = store.reach()?;
            let mut faults = config::shared_store_faults(&config);
            faults.extend(operator::faults(&config.store.scylla, config.store.max_skew));
            if faults.is_empty() {
                let keyspace = &config.store.scylla.keyspace;
                return Ok(format!(
                    "{keyspace}: nothing is wrong for this murre, which knows version {VERSION} of the tables\n"
                ));
            }
            let said: Vec<String> = faults.iter().map(ToString::to_string).collect();
            Err(Failure { status: status::FAILED, said: said.join("\nmurre: ") })
        }
    }
}

fn for_which(database: Option<Database>, config: &Options) -> Result<Server, Failure> {
    match database {
        Some(Database::Cassandra) => Ok(Server::Cassandra(5)),
        None if !config.nodes.is_empty() => {
            Operator::connect(config).and_then(|operator| operator.server()).map_err(Failure::of)
        }
        Some(Database::Scylla) | None => Ok(Server::Scylla { incremental: true }),
    }
}

fn said(config: &Options, applied: &[i32], done: &str) -> String {
    let keyspace = &config.keyspace;
    match applied {
        [] => format!(
            "{keyspace}: the tables are of version {VERSION} already, or of a later one that this murre may read\n"
        ),
        _ => format!("{keyspace}: the tables are {done}, version {VERSION}\n"),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::{Cli, Command};

    fn run(line: &[&str]) -> Result<String, (u8, String)> {
        let line = ["murre", "schema"].iter().chain(line);
        let Command::Schema(args) = Cli::try_parse_from(line).unwrap().command else { panic!("not schema") };
        perform(args.task).map_err(|failure| (failure.status, failure.said))
    }

    #[test]
    fn statements_are_printed_without_a_database() {
        let scylla = run(&["print", "--set", "store.scylla.keyspace=push"]).unwrap();
        assert!(scylla.starts_with("CREATE KEYSPACE IF NOT EXISTS push "), "{scylla}");
        assert!(scylla.contains("IncrementalCompactionStrategy"));
        let cassandra = run(&["print", "--for", "cassandra"]).unwrap();
        assert!(cassandra.contains("UnifiedCompactionStrategy") && !cassandra.contains("tombstone_gc"));
    }

    #[test]
    fn nothing_is_done_without_a_contact_point_or_with_a_wrong_setting() {
        for task in ["create", "migrate", "check"] {
            let (status, said) = run(&[task]).expect_err("nobody to ask");
            assert_eq!(status, status::CONFIG);
            assert!(said.contains("give --scylla HOST:PORT"), "{said}");
        }
        let (status, said) = run(&["create", "--scylla", "nowhere"]).expect_err("no port");
        assert_eq!(status, status::CONFIG);
        assert!(said.starts_with("flag --scylla: invalid value \"nowhere\" for store.scylla.nodes"), "{said}");
    }

    #[test]
    #[ignore = "needs Cassandra: bench/check test"]
    fn tables_are_made_and_checked_as_the_command_says() {
        let keyspace = cassandra::keyspace();
        let at = ["--scylla", cassandra::shared(), "--set", "store.scylla.replication_factor=1", "--set"];
        let place = format!("store.scylla.keyspace={keyspace}");
        let with = |task: &'static str, more: &[&'static str]| [&[task], &at[..], &[place.as_str()], more].concat();
        let keys = [
            "--set",
            "endpoint.crypto_keys=YWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWE=",
            "--set",
            "node.keys=0123456789abcdef",
        ];
        let (status, said) = run(&with("check", &keys)).expect_err("there is nothing");
        assert_eq!(
            (status, said),
            (status::FAILED, format!("there is no keyspace {keyspace}; run `murre schema create`"))
        );
        let said = run(&with("create", &[])).unwrap();
        assert_eq!(said, format!("{keyspace}: the tables are made, version {VERSION}\n"));
        let said = run(&with("migrate", &[])).unwrap();
        assert_eq!(
            said,
            format!(
                "{keyspace}: the tables are of version {VERSION} already, or of a later one that this murre may read\n"
            )
        );
        let said = run(&with("check", &keys)).unwrap();
        assert_eq!(
            said,
            format!("{keyspace}: nothing is wrong for this murre, which knows version {VERSION} of the tables\n")
        );
        let (_, said) = run(&with("check", &[])).expect_err("there are no keys");
        assert_eq!(said.matches("is not set").count(), 2, "{said}");
        assert!(run(&with("print", &[])).unwrap().contains("UnifiedCompactionStrategy"), "it asks which it is");
    }
}
