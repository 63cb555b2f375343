//! Findings of one run of one scenario, as a JSON object: written by [`crate::report::Report`], read by
//! `murre-bench report` and `murre-bench capacity`. Several runs become one report, so every result names the server,
//! the host and the options.
//!
//! Names of figures and series are text, and new ones may come at any time. Those that a reader looks for are in
//! [`names`].

use std::io;
use std::path::Path;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Schema of the results that this build writes, and the newest it reads.
pub const SCHEMA: u32 = 1;

/// A result file larger than this is refused: murre-bench did not write it.
pub const FILE_BYTES_MAX: u64 = 64 << 20;

/// One run of one scenario. Fields that an older or foreign writer left out are empty; of these four none may be.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Outcome {
    /// [`SCHEMA`] of the writer.
    pub schema: u32,
    /// For example `hold` or `push`.
    pub scenario: String,
    /// End of the run in seconds since 1970, UTC.
    pub when: u64,
    pub machine: Machine,
    /// Name of the measured server: `murre`, or the value of `--label`.
    #[serde(default)]
    pub server: String,
    /// Commit of the generator's source, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The command line of the generator.
    #[serde(default)]
    pub command: String,
    /// Options of the run: sessions, rates, sizes.
    #[serde(default)]
    pub options: Map<String, Value>,
    /// Numbers, in the order in which they were found.
    #[serde(default)]
    pub figures: Vec<Figure>,
    /// Conditions that had to hold, and their results.
    #[serde(default)]
    pub checks: Vec<Check>,
    /// Curves over time, over the number of sessions, over shards.
    #[serde(default)]
    pub series: Vec<Series>,
    #[serde(default)]
    pub histograms: Vec<Distribution>,
}

/// The host of a run, generator and server alike unless the run says otherwise.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Machine {
    pub kernel: String,
    pub cpu: String,
    /// Processors that are online.
    pub cores: u64,
    /// `MemTotal` in bytes.
    pub memory_bytes: u64,
}

/// A named number (or a word).
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Figure {
    pub name: String,
    pub value: Value,
    /// Unit of the value: `B`, `us`, `/s`; may be empty.
    #[serde(default)]
    pub unit: String,
}

impl Figure {
    /// The operation whose server CPU this is ([`names::CPU_PER`]), behind the step of the scenario if there is one:
    /// `notification`, `all come back: session`. `None` for every other figure.
    pub fn operation(&self) -> Option<String> {
        let (step, operation) = self.name.split_once(names::CPU_PER).filter(|_| self.unit == "us")?;
        (step.is_empty() || step.ends_with(": ")).then(|| format!("{step}{operation}"))
    }
}

/// A condition that had to hold.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Check {
    pub name: String,
    /// Value found; null when the check is a sentence only.
    #[serde(default)]
    pub got: Value,
    /// Value required, as a number or in words (`<= 160`).
    #[serde(default)]
    pub want: Value,
    pub ok: bool,
}

/// A curve.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Series {
    pub name: String,
    /// Unit of x: `s`, `sessions`, `shard`.
    pub x_unit: String,
    #[serde(default)]
    pub unit: String,
    /// Pairs of x and y, x ascending.
    pub points: Vec<[f64; 2]>,
}

/// A distribution.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Distribution {
    pub name: String,
    #[serde(default)]
    pub unit: String,
    /// Number of recorded values.
    pub count: u64,
    /// Pairs of quantile (0 to 1) and value, ascending; the last is the largest value.
    pub points: Vec<[f64; 2]>,
}

/// Names that readers look for. Scenarios that measure the same thing use the same name.
pub mod names {
    /// Series over `sessions`, in `B`: written memory of the server process that is not shared (`Private_Dirty`), all
    /// of it, at each session count. A first point at 0 or few sessions is the fixed part.
    pub const USER_BYTES: &str = "user bytes";
    /// Series over `sessions`, in `B`: the part of [`USER_BYTES`] that is the store's cache and its write buffers, as
    /// the server says. Bounded at any number of sessions, and filled by reads and writes.
    pub const STORE_BYTES: &str = "user bytes of the store";
    /// Series over `sessions`, in `B`: kernel memory (slab) of the server's sockets, all of it, the generator's end
    /// taken off.
    pub const KERNEL_BYTES: &str = "kernel bytes";
    /// The same for both ends of every connection, when server and generator share the kernel: the value that was
    /// really read.
    pub const KERNEL_BYTES_BOTH_ENDS: &str = "kernel bytes, both ends";
    /// Prefix of series over `sessions`, in `B`: the size of a table as the server says, all shards together:
    /// `table bytes: murre_..._bytes`.
    pub const TABLE_BYTES: &str = "table bytes: ";
    /// Series over `s`, in `/s`: sessions that became ready.
    pub const CONNECTS: &str = "connects";
    /// Series over `s`, in `/s`: notifications that arrived.
    pub const NOTIFICATIONS: &str = "notifications";
    /// Series over `s`, in `cores`: CPU of the server and its children.
    pub const SERVER_CPU: &str = "server CPU";
    /// Series over `s`, in `cores`: CPU of the generator.
    pub const GENERATOR_CPU: &str = "generator CPU";
    /// Series over `shard`, in `sessions`.
    pub const SHARD_SESSIONS: &str = "sessions by shard";

    /// Prefix of figures in `us`: server CPU of one operation. In front of it may stand the step of the scenario:
    /// `all come back: server CPU per session` ([`super::Figure::operation`]).
    pub const CPU_PER: &str = "server CPU per ";
    /// Figure in `us`: server CPU of one direct notification, from POST to ack.
    pub const CPU_NOTIFICATION: &str = "server CPU per notification";
    /// Figure in `us`: the same with a VAPID token that is used again and again.
    pub const CPU_NOTIFICATION_VAPID: &str = "server CPU per notification, VAPID";
    /// Figure in `us`: server CPU to store one notification, until its 201.
    pub const CPU_STORE: &str = "server CPU per stored notification";
    /// Figure in `us`: server CPU to deliver one stored notification and to take its ack.
    pub const CPU_DRAIN: &str = "server CPU per drained notification";
    /// Figure in `us`: server CPU of accept, upgrade and the hello of a new user agent, without registrations.
    pub const CPU_HELLO: &str = "server CPU per accept and hello";
    /// Figure in `us`: the same for a user agent that is known: with hand-off and storage read.
    pub const CPU_RETURN: &str = "server CPU per returning hello";
    /// Figure in `us`: server CPU of one registration of a channel.
    pub const CPU_REGISTER: &str = "server CPU per register";
    /// Figure in `us`: server CPU of one ping and its pong.
    pub const CPU_PING: &str = "server CPU per ping";
    /// Figure in `/s`: notifications that arrived in the measured time.
    pub const NOTIFICATION_RATE: &str = "notifications a second";
    /// Figure in `/s`: pings of the server that were answered in the time in which CPU was measured; of `ping`, those
    /// of the user agents, too.
    pub const PING_RATE: &str = "pings a second";
    /// Figure in `cores`: the server in the time of [`NOTIFICATION_RATE`] and [`PING_RATE`], all its work included.
    pub const CORES: &str = "server cores in the measured time";
    /// Figure in `cores`: the server with all sessions held and nothing to do but its pings.
    pub const CPU_IDLE: &str = "idle server CPU";
    /// Figure in `B`: slope of [`USER_BYTES`] between the first and the last session count.
    pub const USER_SLOPE: &str = "user memory per session (slope)";
    /// Figure in `B`: slope of [`KERNEL_BYTES`].
    pub const KERNEL_SLOPE: &str = "kernel memory per session (slope)";

    /// Distribution in `us`: POST due until its answer.
    pub const TO_ANSWER: &str = "POST to 201";
    /// Distribution in `us`: POST due until the notification is in the user agent.
    pub const TO_FRAME: &str = "POST to frame";
    /// Distribution in `us`: connect until the answer to hello.
    pub const TO_HELLO: &str = "connect to hello";

    /// Option: number of sessions.
    pub const OPTION_SESSIONS: &str = "sessions";
    /// Option: shards of the server.
    pub const OPTION_SHARDS: &str = "shards";
    /// Option: the server's `--max-connections`, for which its tables are sized. Taken from the room of its shards, so
    /// it may be more by the number of shards.
    pub const OPTION_MAX_CONNECTIONS: &str = "max_connections";
    /// Option: channels of each session.
    pub const OPTION_CHANNELS: &str = "channels";
}

impl Outcome {
    /// Reads a result; the error is one sentence that names the file.
    pub fn read(file: &Path) -> io::Result<Outcome> {
        let name = file.display();
        let wrong = |why: String| io::Error::new(io::ErrorKind::InvalidData, format!("{name}: {why}"));
        let facts = std::fs::metadata(file).map_err(|error| wrong(format!("cannot be read: {error}")))?;
        if !facts.is_file() || facts.len() > FILE_BYTES_MAX {
            return Err(wrong(format!("no result: results are files of at most {} MiB", FILE_BYTES_MAX >> 20)));
        }
        let bytes = std::fs::read(file).map_err(|error| wrong(format!("cannot be read: {error}")))?;
        Outcome::parse(&bytes).map_err(wrong)
    }

    /// Reads the text of a result.
    pub fn parse(bytes: &[u8]) -> Result<Outcome, String> {
        let value: Value = serde_json::from_slice(bytes).map_err(|error| format!("no JSON: {error}"))?;
        match value.get("schema").and_then(Value::as_u64) {
            None => return Err("no result of murre-bench: there is no number `schema` in it".into()),
            Some(1) => {}
            Some(other) => return Err(format!("schema {other} is newer than this build, which reads up to {SCHEMA}")),
        }
        let read: Outcome =
            serde_json::from_value(value).map_err(|error| format!("no result of murre-bench: {error}"))?;
        read.complaint().map_or(Ok(read), Err)
    }

    /// Reason why it is unusable although it could be parsed.
    fn complaint(&self) -> Option<String> {
        let descends = |points: &[[f64; 2]]| points.windows(2).any(|pair| pair[1][0] < pair[0][0]);
        let series = self.series.iter().find(|one| descends(&one.points));
        let distribution = self.histograms.iter().find(|one| descends(&one.points));
        let name = series.map(|one| &one.name).or(distribution.map(|one| &one.name))?;
        Some(format!("the points of `{name}` are not in ascending order"))
    }

    /// The first figure of this name that is a number.
    pub fn figure(&self, name: &str) -> Option<f64> {
        self.figures.iter().filter(|one| one.name == name).find_map(|one| one.value.as_f64())
    }

    /// The series of this name that has points.
    pub fn series(&self, name: &str) -> Option<&Series> {
        self.series.iter().find(|one| one.name == name && !one.points.is_empty())
    }

    /// The distribution of this name that has points.
    pub fn histogram(&self, name: &str) -> Option<&Distribution> {
        self.histograms.iter().find(|one| one.name == name && !one.points.is_empty())
    }

    /// An option that is a number.
    pub fn option(&self, name: &str) -> Option<f64> {
        self.options.get(name).and_then(Value::as_f64)
    }

    /// Returns true if every check held.
    pub fn all_held(&self) -> bool {
        self.checks.iter().all(|check| check.ok)
    }
}

impl Series {
    pub fn last(&self) -> Option<f64> {
        self.points.last().map(|point| point[1])
    }
}

impl Distribution {
    /// Builds a distribution from recorded values; each value is divided by `divisor` (1,000 makes microseconds of
    /// nanoseconds).
    pub fn new(name: impl Into<String>, unit: &str, recorded: &Histogram<u64>, divisor: f64) -> Distribution {
        // Five points for each halving of the distance to 1: a smooth curve, and at most a few hundred points.
        let point = |quantile: f64, value: u64| [quantile, value as f64 / divisor];
        let mut points: Vec<[f64; 2]> =
            recorded.iter_quantiles(5).map(|at| point(at.quantile_iterated_to(), at.value_iterated_to())).collect();
        points.dedup_by(|later, earlier| later[0] <= earlier[0]);
        Distribution { name: name.into(), unit: unit.into(), count: recorded.len(), points }
    }

    /// The value at this quantile, between the points on a straight line.
    pub fn at(&self, quantile: f64) -> Option<f64> {
        let after = self.points.iter().position(|point| point[0] >= quantile);
        let Some(after) = after else { return self.points.last().map(|point| point[1]) };
        let [x1, y1] = self.points[after];
        let Some([x0, y0]) = after.checked_sub(1).map(|before| self.points[before]) else { return Some(y1) };
        Some(y0 + (y1 - y0) * (quantile - x0) / (x1 - x0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = r#"{"schema":1,"scenario":"hold","when":0,"machine":{"kernel":"6","cpu":"c","cores":2,
        "memory_bytes":1},"series":[{"name":"user bytes","x_unit":"sessions","unit":"B","points":[[0,5],[10,25]]}]}"#;

    #[test]
    fn what_is_left_out_is_empty_and_the_rest_is_found() {
        let read = Outcome::parse(SMALL.as_bytes()).unwrap();
        assert_eq!(read.series(names::USER_BYTES).unwrap().last(), Some(25.0));
        assert!(read.series(names::KERNEL_BYTES).is_none() && read.all_held() && read.figure("x").is_none());
        let again = Outcome::parse(&serde_json::to_vec(&read).unwrap()).unwrap();
        assert_eq!(again.series[0].points, read.series[0].points);
    }

    #[test]
    fn server_cpu_of_an_operation_is_known_by_its_name_and_unit() {
        let of = |name: &str, unit: &str| Figure { name: name.into(), value: 1.into(), unit: unit.into() }.operation();
        assert_eq!(of(names::CPU_DRAIN, "us").as_deref(), Some("drained notification"));
        assert_eq!(of("return: server CPU per session", "us").as_deref(), Some("return: session"));
        assert_eq!(of(names::CPU_DRAIN, "B"), None);
        assert_eq!(of("  user, by ticks, per notification", "us"), None);
        assert_eq!(of("what the server CPU per ping was", "us"), None);
        let operations = [
            names::CPU_NOTIFICATION,
            names::CPU_NOTIFICATION_VAPID,
            names::CPU_STORE,
            names::CPU_DRAIN,
            names::CPU_HELLO,
            names::CPU_RETURN,
            names::CPU_REGISTER,
            names::CPU_PING,
        ];
        assert!(operations.iter().all(|name| of(name, "us").is_some()));
    }

    #[test]
    fn foreign_newer_and_disordered_files_are_refused_and_say_why() {
        let refused = |text: &str| Outcome::parse(text.as_bytes()).unwrap_err();
        assert!(refused("hello").starts_with("no JSON"));
        assert!(refused("{\"figures\":{}}").contains("no number `schema`"));
        assert!(refused(&SMALL.replace("\"schema\":1", "\"schema\":2")).contains("newer than this build"));
        assert!(refused(&SMALL.replace("\"scenario\":\"hold\",", "")).contains("scenario"));
        assert!(refused(&SMALL.replace("[10,25]", "[-1,25]")).contains("ascending"));
        assert!(Outcome::read(Path::new("no/such/file")).unwrap_err().to_string().starts_with("no/such/file: cannot"));
    }

    #[test]
    fn a_distribution_keeps_its_quantiles_and_its_largest_value() {
        let mut recorded = Histogram::<u64>::new_with_bounds(1, 1_000_000_000, 3).unwrap();
        (1..=100_000u64).for_each(|value| recorded.record(value * 1_000).unwrap());
        let kept = Distribution::new("x", "us", &recorded, 1e3);
        assert_eq!(kept.count, 100_000);
        for quantile in [0.5, 0.9, 0.99, 0.999] {
            let value = kept.at(quantile).unwrap();
            assert!((value / (quantile * 100_000.0) - 1.0).abs() < 0.01, "{quantile}: {value}");
        }
        assert!((kept.at(1.0).unwrap() / 100_000.0 - 1.0).abs() < 0.001);
        assert!(kept.points.len() < 200);
    }
}
