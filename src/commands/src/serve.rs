//! `murre serve`: run the server until a signal stops it.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Arg, ArgMatches, Command, FromArgMatches};
use tracing_subscriber::Registry;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::{self, MakeWriter};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::reload;

use super::{fail, status};
use config::keys::KEYS;
use config::{Config, Log, LogFormat, Sources};
use server::{Environment, HostClock, RunningNode, Signal, StopOutcome};

/// Arguments of this command: `--config`, `--set`, and every flag of the table of keys.
#[derive(Debug)]
pub struct Args {
    config: Option<PathBuf>,
    sets: Vec<String>,
    flags: Vec<(String, &'static str, String)>,
    new_keys: bool,
}

impl Args {
    /// Sources of the configuration by these arguments.
    pub fn sources(&self) -> Sources {
        Sources { file: self.config.clone(), flags: self.flags.clone(), sets: self.sets.clone(), ..Sources::from_env() }
    }
}

/// Runs until SIGTERM or SIGINT, then drains; a second one ends the drain. SIGHUP reads keys and certificates again.
pub fn run(args: Args) -> ExitCode {
    run_by(args, HostClock::default())
}

/// As [`run`], by another clock than the host's: for tests of nodes whose clocks are wrong.
pub fn run_by(args: Args, host_clock: HostClock) -> ExitCode {
    let config = match Config::load(&args.sources()) {
        Ok(config) => config,
        Err(error) if args.sources().ask_for_json() => {
            let level = Targets::new().with_default(LevelFilter::ERROR);
            let log = Log { level, format: LogFormat::Json, color: false };
            log_to_stderr(&log);
            return ended(&log, status::CONFIG, Some(&error));
        }
        Err(error) => return fail(status::CONFIG, &error),
    };
    let level = log_to_stderr(&config.log);
    tracing::info!(version = version::build().line, data_dir = %config.data_dir.display(), "node starting");
    if let Some(file) = args.config.as_deref().filter(|_| config.has_secrets()) {
        server::warn_of_readers(file, server::STRANGERS);
    }
    let surroundings = Environment {
        signals: true,
        host_clock,
        store_patience: STORE_PATIENCE,
        new_keys: args.new_keys,
        ..Environment::default()
    };
    let running = match server::start_with(&config, surroundings) {
        Ok(running) => running,
        Err(fault) => return ended(&config.log, fault.status(), Some(&fault)),
    };
    match config.log.format {
        // Standard output can be closed; the server serves all the same.
        LogFormat::Text => drop(std::io::stdout().write_all(running.banner().as_bytes())),
        LogFormat::Json => tracing::info!(addresses = running.banner().trim_end(), "node serving"),
    }
    let last = loop {
        match running.wait_for_signal() {
            Signal::Reload => reload(&args, &running, level.as_ref()),
            last @ (Signal::Stop | Signal::Over) => break last,
        }
    };
    match running.stop() {
        Ok(StopOutcome::InOrder) if last == Signal::Over => ended(&config.log, status::ADDRESS, Some(&RunOver)),
        Ok(StopOutcome::InOrder) => ended(&config.log, status::DONE, None),
        Ok(StopOutcome::LedgerLeft { messages }) => {
            ended(&config.log, status::LEDGER_LEFT, Some(&LedgerLeft { messages }))
        }
        Err(fault) => ended(&config.log, fault.status(), Some(&fault)),
    }
}

/// Longest wait for a database that is away at start. Then the process ends, so that its operator notices, and a
/// service manager starts it again.
const STORE_PATIENCE: Duration = Duration::from_secs(300);

/// Logs the end of the node, with the reason if it was not in order.
fn ended(log: &Log, status: u8, reason: Option<&dyn std::fmt::Display>) -> ExitCode {
    let Some(reason) = reason else {
        tracing::info!(status, "node stopped");
        return ExitCode::from(status);
    };
    if log.format == LogFormat::Json && tracing::enabled!(tracing::Level::ERROR) {
        // A reader of JSON objects gets the sentence as a field.
        tracing::error!(status, %reason, "node stopped");
        return ExitCode::from(status);
    }
    tracing::info!(status, "node stopped");
    fail(status, reason)
}

/// Takes what is live of the same sources as at start, and names what waits for a restart. If they are wrong, logs the
/// fault and keeps all as it was.
fn reload(args: &Args, running: &RunningNode, level: Option<&LevelHandle>) {
    let config = Config::load(&args.sources()).map_err(|error| error.to_string());
    let reload = |config: Config| {
        let waiting = running.reload(&config).map_err(|fault| fault.to_string())?;
        if let Some(level) = level {
            // It fails without a subscriber only, which lives as long as the process.
            let _ = level.reload(config.log.level);
        }
        running.follow_log().map_err(|fault| fault.to_string())?;
        Ok::<_, String>(waiting)
    };
    match config.and_then(reload) {
        Ok(waiting) if waiting.is_empty() => tracing::info!("keys reloaded"),
        Ok(waiting) => {
            tracing::warn!(waiting = waiting.join(","), "keys reloaded; those that changed and wait need a restart");
        }
        Err(reason) => tracing::error!(%reason, "keys not reloaded; the old keys stay"),
    }
}

struct RunOver;

impl std::fmt::Display for RunOver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(
            "cannot go on as this run: the table of nodes says that it is over, because another node has its node.url, or \
             it was silent for 10 minutes and unreachable; start it again",
        )
    }
}

struct LedgerLeft {
    messages: usize,
}

impl std::fmt::Display for LedgerLeft {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let messages = self.messages;
        write!(f, "storage did not take {messages} messages in time; they are in the ledger: start again to save them")
    }
}

/// Changes the level of a log.
type LevelHandle = reload::Handle<Targets, Registry>;

/// Everything is logged to standard error, one line each; the banner alone goes to standard output, and with JSON to
/// the log. Returns `None` if another logger logs.
fn log_to_stderr(log: &Log) -> Option<LevelHandle> {
    let (subscriber, level) = subscriber(log, std::io::stderr);
    if log.format == LogFormat::Json {
        std::panic::set_hook(Box::new(|panic| tracing::error!(%panic, "thread panicked")));
    }
    // The call fails when there is a logger already, which then logs.
    tracing::subscriber::set_global_default(subscriber).ok().map(|()| level)
}

/// Returns the subscriber that writes the lines of such a log with `writer`, and the handle of its level.
fn subscriber<W>(log: &Log, writer: W) -> (Box<dyn tracing::Subscriber + Send + Sync>, LevelHandle)
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let (level, handle) = reload::Layer::new(log.level.clone());
    let registry = Registry::default().with(level);
    let lines = fmt::layer().with_ansi(log.color).with_writer(writer);
    let subscriber: Box<dyn tracing::Subscriber + Send + Sync> = match log.format {
        LogFormat::Text => Box::new(registry.with(lines)),
        LogFormat::Json => {
            let lines = lines.json().flatten_event(true).with_current_span(false).with_span_list(false);
            Box::new(registry.with(lines))
        }
    };
    (subscriber, handle)
}

// Written out, not derived: the flags come from the table of keys, so that there is one place to add a setting.
impl clap::Args for Args {
    fn augment_args(command: Command) -> Command {
        let file = Arg::new("config").long("config").value_name("FILE").env("MURRE_CONFIG");
        let file = file.value_parser(clap::value_parser!(PathBuf)).help("TOML file");
        let sets = Arg::new("set").long("set").value_name("SECTION.KEY=VALUE").action(clap::ArgAction::Append);
        let command = command.arg(file).arg(sets.help("Set any key; may be repeated"));
        let new_keys = Arg::new("new-keys").long("new-keys").action(clap::ArgAction::SetTrue);
        let command =
            command.arg(new_keys.help("Make a new key where that of a store with users is gone: ends their URLs"));
        KEYS.iter().fold(command, |command, key| match key.flag {
            Some((flag, value)) => {
                let default =
                    if key.default.is_empty() { String::new() } else { format!(" [default: {}]", key.default) };
                let help = format!("{}{default} ({})", key.help, key.name);
                let arg = Arg::new(key.name).long(flag).value_name(value).help(help);
                // A flag that is true or false needs no value to be true.
                let is_switch = key.default == "false";
                command.arg(if is_switch { arg.num_args(0..=1).default_missing_value("true") } else { arg })
            }
            None => command,
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Args {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let texts = |name: &str| matches.get_many::<String>(name).into_iter().flatten().cloned();
        let flag = |key: &'static config::keys::Key| {
            let (flag, _) = key.flag?;
            Some((format!("--{flag}"), key.name, matches.get_one::<String>(key.name)?.clone()))
        };
        Ok(Args {
            config: matches.get_one::<PathBuf>("config").cloned(),
            sets: texts("set").collect(),
            flags: KEYS.iter().filter_map(flag).collect(),
            new_keys: matches.get_flag("new-keys"),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::Cli;

    fn sources(line: &[&str]) -> Sources {
        let cli = Cli::try_parse_from(["murre", "serve"].iter().chain(line)).expect("a command line");
        match cli.command {
            crate::Command::Serve(args) => Sources { variables: Vec::new(), ..args.sources() },
            other => panic!("not serve: {other:?}"),
        }
    }

    #[test]
    fn the_flags_of_the_design_exist_and_set_their_keys() {
        let line = [
            "--data-dir",
            "/d",
            "--websocket",
            "[::1]:1,127.0.0.1:1",
            "--endpoint",
            "127.0.0.1:2",
            "--node",
            "127.0.0.1:3",
            "--admin",
            "127.0.0.1:4",
            "--endpoint-url",
            "https://e",
            "--node-url",
            "http://n:1",
            "--cores",
            "0-1",
            "--shards",
            "4",
            "--max-connections",
            "5",
            "--roles",
            "connect",
            "--store",
            "memory",
            "--domain",
            "push.example.org",
            "--public",
            "none",
            "--admin-tls",
            "[::1]:443",
            "--acme-agree",
            "--acme-email",
            "ops@example.org",
            "--set",
            "drain.rate=9",
        ];
        let config = Config::load(&sources(&line)).expect("a configuration");
        assert_eq!(config.data_dir, PathBuf::from("/d"));
        assert_eq!(config.websocket.listen.len(), 2);
        assert_eq!(config.endpoint.listen, ["127.0.0.1:2".parse().unwrap()]);
        assert_eq!(config.node.listen, ["127.0.0.1:3".parse().unwrap()]);
        assert_eq!(config.admin.listen, ["127.0.0.1:4".parse().unwrap()]);
        assert_eq!(config.endpoint.url.as_ref().map(ToString::to_string).as_deref(), Some("https://e"));
        assert_eq!(config.node.url.as_deref(), Some("http://n:1"));
        assert_eq!(config.shards.cores, [0, 1]);
        assert_eq!((config.shards.count, config.max_connections, config.drain.rate), (4, 5, 9));
        assert!(config.roles.connect && !config.roles.endpoint);
        assert_eq!(config.acme_names(), ["push.example.org"]);
        assert_eq!(config.acme.email.as_deref(), Some("ops@example.org"));
    }

    #[test]
    fn a_bad_flag_is_named_as_it_was_written() {
        let said = Config::load(&sources(&["--shards", "many"])).expect_err("must be refused").to_string();
        assert_eq!(
            said,
            "flag --shards: invalid value \"many\" for shards.count; expected a number from 0 (one per core) to 256"
        );
    }

    #[test]
    fn a_log_is_text_or_one_object_a_line() {
        let log = |format| Log { level: Targets::new().with_default(LevelFilter::INFO), format, color: false };
        for format in [LogFormat::Text, LogFormat::Json] {
            let kept = fixtures::Log::default();
            tracing::subscriber::with_default(subscriber(&log(format), kept.clone()).0, || {
                tracing::info!(status = 7, "node stopped");
                tracing::debug!("left out");
            });
            let text = kept.text();
            assert_eq!(text.lines().count(), 1, "{text}");
            if format == LogFormat::Text {
                assert!(text.contains("INFO") && text.contains("node stopped status=7"), "{text}");
            } else {
                let line: serde_json::Value = serde_json::from_str(&text).expect("an object");
                assert_eq!(
                    (&line["level"], &line["status"], &line["message"]),
                    (&"INFO".into(), &7.into(), &"node stopped".into())
                );
            }
        }
    }

    #[test]
    fn a_fault_of_the_configuration_is_json_where_a_readable_source_asks_for_json() {
        let asks = |line: &[&str]| sources(line).ask_for_json();
        assert!(asks(&["--set", "log.format=json", "--shards", "many"]));
        assert!(!asks(&["--shards", "many"]) && !asks(&["--set", "log.format=json", "--set", "log.format=text"]));
        let variables = vec![("MURRE_LOG__FORMAT".to_owned(), "json".to_owned())];
        let unreadable = Sources { variables, ..sources(&["--config", "/nowhere/murre.toml", "--set", "nonsense"]) };
        assert!(unreadable.ask_for_json());
    }

    /// An event with more detail than this hint ends at the comparison of a number. With a hint that is too high, each
    /// event of every library asks the subscriber.
    #[test]
    fn a_subscriber_names_the_most_detail_that_its_log_takes() {
        for (text, most) in [
            ("info", LevelFilter::INFO),
            ("error", LevelFilter::ERROR),
            ("off", LevelFilter::OFF),
            ("error,murre::clients=debug", LevelFilter::DEBUG),
        ] {
            let set = format!("log.level={text}");
            let config = Config::load(&Sources { sets: vec![set], ..Sources::default() }).unwrap();
            let log = fixtures::Log::default();
            assert_eq!(subscriber(&config.log, log).0.max_level_hint(), Some(most), "{text}");
        }
    }

    #[test]
    fn the_level_of_a_log_can_be_changed_in_both_directions() {
        let kept = fixtures::Log::default();
        let log = Log { level: Targets::new().with_default(LevelFilter::INFO), format: LogFormat::Text, color: false };
        let (subscriber, level) = subscriber(&log, kept.clone());
        tracing::subscriber::with_default(subscriber, || {
            for (text, lines) in [("info", 0), ("debug", 1), ("error,murre::clients=debug", 1), ("info", 1)] {
                level.reload(text.parse::<Targets>().unwrap()).unwrap();
                tracing::debug!("a line");
                assert_eq!(kept.text().lines().count(), lines, "{text}");
            }
        });
    }

    #[test]
    fn the_command_line_is_sound() {
        <Cli as clap::CommandFactory>::command().debug_assert();
    }
}
