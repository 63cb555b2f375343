//! Bytes: of the process and of the kernel, line by line, at any number of sessions.

use std::io;

use super::documented::{
    FROZEN_KERNEL_BYTES, FROZEN_USER_BYTES, LEDGER_BYTES, PROCESS_BYTES, RING_BYTES, SESSION_KERNEL_BYTES,
    SESSION_USER_BYTES, SHARD_BYTES_MAX, SHARD_WARM_BYTES, SPARE_SHARE, STORE_BYTES, SYSTEM_BYTES,
    TLS_CONNECTION_BYTES, TLS_HANDSHAKES_BYTES,
};
use super::fit::{Line, index_bytes};
use super::{Basis, Mix};
use crate::result::{Outcome, names};

/// Promised: this share of what a full run shows.
pub(super) const PROMISE: f64 = 0.05;

/// One line of the model.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub name: String,
    /// Bytes with any number of sessions.
    pub fixed: f64,
    /// Bytes for each session.
    pub each: f64,
    /// Origin of the figures.
    pub how: String,
}

/// All lines.
#[derive(Clone, Debug)]
pub(super) struct Prediction {
    /// Sessions predicted.
    pub sessions: f64,
    /// Of the process.
    pub user: Vec<Item>,
    /// Of the kernel, in object caches.
    pub kernel: Vec<Item>,
    /// Of both, fixed: bounds rather than readings.
    pub beside: Vec<Item>,
    /// Distance of the furthest reading from its line, user and kernel, as a share; none when no line is measured.
    pub off: Option<(f64, f64)>,
}

impl Prediction {
    pub fn new(basis: &Basis<'_>, mix: &Mix) -> io::Result<Prediction> {
        let sessions = mix.sessions as f64;
        let (mut user, user_off) = user(basis, mix)?;
        let (mut kernel, kernel_off) = kernel(basis, mix)?;
        add_frozen(&mut user, &mut kernel, mix);
        let shards = mix.shards.map(|count| count as f64).or(basis.shards());
        Ok(Prediction { sessions, user, kernel, beside: beside(mix, shards), off: Some((user_off, kernel_off)) })
    }

    /// The forecast of the documented constants alone, for shards whose number is known or guessed.
    pub fn documented(mix: &Mix, shards: f64) -> Prediction {
        let item = |name: &str, fixed: f64, each: f64| Item { name: name.into(), fixed, each, how: DOCUMENTED.into() };
        let mut user = vec![
            item("session, index and its part of chunks", 0.0, SESSION_USER_BYTES),
            item("the process without sessions", PROCESS_BYTES, 0.0),
            item(&format!("{shards} warm shards"), shards * SHARD_WARM_BYTES, 0.0),
        ];
        let mut kernel = vec![item(&sockets(mix), 0.0, SESSION_KERNEL_BYTES * mix.live_share())];
        add_frozen(&mut user, &mut kernel, mix);
        Prediction { sessions: mix.sessions as f64, user, kernel, beside: beside(mix, Some(shards)), off: None }
    }

    /// The forecast of the results, or of the documented constants and the reason why the results allow none.
    pub fn best(basis: &Basis<'_>, mix: &Mix) -> (Prediction, Option<String>) {
        match Prediction::new(basis, mix) {
            Ok(prediction) => (prediction, None),
            Err(why) => {
                let shards = mix.shards.map(|count| count as f64).or(basis.shards());
                let shards = shards.unwrap_or(mix.cores.max(1) as f64);
                (Prediction::documented(mix, shards), Some(why.to_string()))
            }
        }
    }

    fn total(&self, items: &[Item]) -> f64 {
        items.iter().map(|item| item.fixed + item.each * self.sessions).sum()
    }

    /// Bytes of the process.
    pub fn user_bytes(&self) -> f64 {
        self.total(&self.user)
    }

    /// Bytes in the kernel's object caches.
    pub fn kernel_bytes(&self) -> f64 {
        self.total(&self.kernel)
    }

    /// Everything.
    pub fn all_bytes(&self) -> f64 {
        self.user_bytes() + self.kernel_bytes() + self.total(&self.beside)
    }

    /// Bytes of a host that holds it.
    pub fn host_bytes(&self) -> f64 {
        self.all_bytes() * (1.0 + PROMISE) * (1.0 + SPARE_SHARE) + SYSTEM_BYTES
    }

    /// Prints the model.
    pub fn show(&self, mix: &Mix) {
        println!("memory for {} sessions, --max-connections {}", mix.sessions, mix.max_connections());
        println!("  {:<40} {:>12} {:>12} {:>14}  from", "", "fixed", "a session", "in all");
        for (kind, items) in [("user: ", &self.user), ("kernel: ", &self.kernel), ("", &self.beside)] {
            for item in items {
                let all = item.fixed + item.each * self.sessions;
                println!(
                    "  {:<40} {:>12} {:>10.1} B {:>14}  {}",
                    format!("{kind}{}", item.name),
                    mib(item.fixed),
                    item.each,
                    mib(all),
                    item.how
                );
            }
        }
        let sums = [
            ("user, without the store", self.user_bytes()),
            ("kernel, object caches", self.kernel_bytes()),
            ("in all", self.all_bytes()),
        ];
        for (name, bytes) in sums {
            println!("  {name:<40} {:>12} {:>10.1} B {:>14}", "", bytes / self.sessions, mib(bytes));
        }
        for line in self.promise() {
            println!("  {line}");
        }
        println!(
            "  Give the host {}: that, {:.0} % for the prediction, a quarter for buffers of busy and blocked sockets, the page \
             cache of the store and the system.",
            mib(self.host_bytes()),
            PROMISE * 100.0
        );
        if mix.hibernation.is_on() {
            println!("  The share of live sessions is computed from the options, and not promised.");
            let each = SESSION_KERNEL_BYTES - FROZEN_USER_BYTES - FROZEN_KERNEL_BYTES;
            let more = each * (1.0 - mix.live_share()) * self.sessions;
            println!(
                "  When a broadcast or the network thaws every session at once, they take {} more. Records (hibernate.dir) are \
                 not in it: 128 to 256 B a session, and twice that for a moment of a restart.",
                mib(more)
            );
        }
        println!(
            "  Not in it: stored messages in the page cache, connection tracking (about 320 B a connection: use notrack){}.",
            if mix.tls { "" } else { ", TLS (--tls)" }
        );
    }

    /// Basis of the figures, in sentences.
    pub fn promise(&self) -> Vec<String> {
        let Some((user, kernel)) = self.off else {
            return vec![format!("Nothing of it is promised: every figure is {DOCUMENTED}.")];
        };
        let mut said = vec![format!(
            "Promised within {:.0} %: bytes a session, and user and kernel together. Readings lay up to {:.1} % (user) and \
             {:.1} % (kernel) off the line.",
            PROMISE * 100.0,
            user * 100.0,
            kernel * 100.0
        )];
        if user.max(kernel) > PROMISE {
            said.push(
                "That is more than is promised: the host was not quiet. Measure again, with more sessions.".to_owned(),
            );
        }
        said
    }
}

/// Origin of a figure that was not measured.
const DOCUMENTED: &str = "a documented constant (docs/CAPACITY.md), not measured";

/// Bounds beside what is measured, from the documented constants.
fn beside(mix: &Mix, shards: Option<f64>) -> Vec<Item> {
    let fixed = |name: &str, fixed: f64, how: String| Item { name: name.into(), fixed, each: 0.0, how };
    let mut items = vec![
        fixed(
            "kernel, mapped: tables of the rings",
            mix.max_connections() as f64 * RING_BYTES,
            format!("{RING_BYTES} B for each of --max-connections, mapped at start"),
        ),
        fixed(
            "user: the store, at most",
            STORE_BYTES,
            "store.cache and write buffers; little until it was busy".into(),
        ),
    ];
    if mix.tls {
        items.push(Item {
            name: "user: TLS, secrets and handshakes".into(),
            fixed: shards.unwrap_or(1.0) * TLS_HANDSHAKES_BYTES,
            each: TLS_CONNECTION_BYTES,
            how: "docs/TLS.md, Memory".into(),
        });
    }
    if let Some(shards) = shards {
        let how = format!("{} for each shard (delivery.ledger_bytes)", mib(LEDGER_BYTES));
        items.push(fixed("page cache: ledger logs", shards * LEDGER_BYTES, how));
    }
    items
}

/// Readings of user memory without what the server says that its store's cache and write buffers hold: that is bounded,
/// and in a small run of known users it fills while the readings are taken. All of it where the server says nothing.
pub(super) fn without_store(one: &Outcome) -> Vec<[f64; 2]> {
    let store = one.series(names::STORE_BYTES).map_or(&[][..], |series| &series.points);
    let of_store = |count: f64| store.iter().find(|point| point[0] == count).map_or(0.0, |point| point[1]);
    let user = one.series(names::USER_BYTES).map_or(&[][..], |series| &series.points);
    user.iter().map(|[count, bytes]| [*count, bytes - of_store(*count)]).collect()
}

fn user(basis: &Basis<'_>, mix: &Mix) -> io::Result<(Vec<Item>, f64)> {
    let hold = basis.hold;
    let points = without_store(hold);
    let measured_shards = basis.shards();
    let shards = mix.shards.map(|count| count as f64).or(measured_shards);
    // Without the number of shards the index stays in the slope, and the steps of its tables are an error of up to 4 %.
    let Some((measured_shards, shards)) = measured_shards.zip(shards) else {
        let line = fitted(&points, names::USER_BYTES)?;
        let how = "slope and start of the line through the readings; the number of shards is not known".to_owned();
        return Ok((vec![Item { name: "process".into(), fixed: line.fixed, each: line.slope, how }], line.off));
    };
    let measured_max = hold.option(names::OPTION_MAX_CONNECTIONS).unwrap_or(mix.max_connections() as f64);
    let index_then = |count: f64| index_bytes(count, measured_shards, measured_max);
    let rest: Vec<[f64; 2]> = points.iter().map(|[count, bytes]| [*count, bytes - index_then(*count)]).collect();
    let line = fitted(&rest, names::USER_BYTES)?;
    let sessions = mix.sessions as f64;
    let index_now = index_bytes(sessions, shards, mix.max_connections() as f64) / sessions;
    let mut items = vec![Item {
        name: "index of user agents".into(),
        fixed: 0.0,
        each: index_now,
        how: format!(
            "computed for {shards} shards: its tables double in steps; {:.1} B when measured",
            index_then(basis.sessions()) / basis.sessions().max(1.0)
        ),
    }];
    let mut told = 0.0;
    for series in &hold.series {
        let Some(table) = series.name.strip_prefix(names::TABLE_BYTES) else { continue };
        // Tables of input and messages are empty in an idle server, or hold what was made once: only tables that grow
        // with sessions are lines.
        let last = series.points.last().map_or(0.0, |[count, bytes]| bytes / count.max(1.0));
        let grows = |line: &Line| line.slope > 0.5 && line.slope > last / 2.0;
        let Some(line) = Line::through(&series.points).filter(grows) else { continue };
        told += line.slope;
        let how = "the server's own metric, slope".to_owned();
        items.push(Item { name: table.trim_start_matches("murre_").into(), fixed: 0.0, each: line.slope, how });
    }
    items.push(Item {
        name: "sessions, channels, everything else".into(),
        fixed: 0.0,
        each: line.slope - told,
        how: "slope of Private_Dirty without the store's cache and the lines above".into(),
    });
    let more_shards = (shards - measured_shards).max(0.0);
    items.push(Item {
        name: "the process without sessions".into(),
        fixed: line.fixed,
        each: 0.0,
        how: "start of that line".into(),
    });
    if more_shards > 0.0 {
        items.push(Item {
            name: format!("{more_shards} shards more than measured"),
            fixed: more_shards * SHARD_BYTES_MAX,
            each: 0.0,
            how: "arenas and lanes once used: 2 MiB of small and 2 MiB of large spans, 1 MiB of lanes".into(),
        });
    }
    Ok((items, line.off))
}

fn kernel(basis: &Basis<'_>, mix: &Mix) -> io::Result<(Vec<Item>, f64)> {
    let (name, share, how) = match basis.hold.series(names::KERNEL_BYTES) {
        Some(_) => (names::KERNEL_BYTES, 1.0, "slope of the slab caches, the server's end"),
        None => (names::KERNEL_BYTES_BOTH_ENDS, 0.5, "slope of the slab caches, half of both ends"),
    };
    let points = basis.hold.series(name).map(|series| series.points.clone()).unwrap_or_default();
    let line = fitted(&points, name)?;
    let item = |name: &str, fixed: f64, each: f64, how: &str| Item { name: name.into(), fixed, each, how: how.into() };
    let items = vec![
        item(&sockets(mix), 0.0, line.slope * share * mix.live_share(), how),
        item("what is there anyway", line.fixed * share, 0.0, "start of that line"),
    ];
    Ok((items, line.off))
}

/// Adds what frozen connections take.
fn add_frozen(user: &mut Vec<Item>, kernel: &mut Vec<Item>, mix: &Mix) {
    if !mix.hibernation.is_on() {
        return;
    }
    let share = 1.0 - mix.live_share();
    let frozen = |each: f64| Item {
        name: "frozen connections".into(),
        fixed: 0.0,
        each: each * share,
        how: format!("{each:.0} B for each of {:.1} % of the sessions: {DOCUMENTED}", share * 100.0),
    };
    user.push(frozen(FROZEN_USER_BYTES));
    kernel.push(frozen(FROZEN_KERNEL_BYTES));
}

/// Name of the line of sockets.
fn sockets(mix: &Mix) -> String {
    let what = "socket, file, inode, armed poll";
    if mix.hibernation.is_on() { format!("{what}, {:.1} % live", mix.live_share() * 100.0) } else { what.into() }
}

fn fitted(points: &[[f64; 2]], name: &str) -> io::Result<Line> {
    Line::through(points).filter(|line| line.slope > 0.0).ok_or_else(|| {
        io::Error::other(format!(
            "`{name}` does not grow with the sessions of these results: measure with --pid, as root (for /proc/slabinfo), with \
             `hold --channels 0 --at` several counts (registrations fill and empty the buffers of the store meanwhile)"
        ))
    })
}

/// Bytes in a unit that people can compare.
pub(super) fn mib(bytes: f64) -> String {
    match bytes.abs() {
        large if large >= f64::from(1 << 30) => format!("{:.2} GiB", bytes / f64::from(1 << 30)),
        small if small < 0.05 * f64::from(1 << 20) => format!("{:.1} KiB", bytes / 1024.0),
        _ => format!("{:.1} MiB", bytes / f64::from(1 << 20)),
    }
}
