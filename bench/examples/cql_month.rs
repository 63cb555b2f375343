//! What a month of messages leaves in a database, by layout of the message table (docs/decisions/0015-wide-rows.md).
//!
//! A month of some minutes: days, TTLs, gc_grace and compaction intervals are shortened alike, memtables are written
//! out once a day. Nine users of ten never come back; the tenth reads once a day. Three layouts get the same load:
//! ours (one table, unified compaction, settled by low water), the same settled by deletes, and a table for each class
//! of TTL with time windows. Then: one message left of ten thousand, read behind low water and behind tombstones.
//!
//!     cargo run -p murre-bench --example cql_month -- --users 2000 --day 30

use std::collections::HashMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use murre::config::{Config, Sources};
use murre::store::scylla::connect::connect;
use murre_bench::cassandra::Database;
use ring::rand::{SecureRandom as _, SystemRandom};
use scylla::client::session::Session;
use scylla::statement::prepared::PreparedStatement;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

#[derive(Parser, Clone)]
struct Options {
    /// How many users.
    #[arg(long, default_value_t = 2_000)]
    users: u32,
    /// Messages for each user in a day.
    #[arg(long, default_value_t = 5)]
    messages: u32,
    /// Bytes of a message row's value.
    #[arg(long, default_value_t = 700)]
    bytes: usize,
    /// Seconds that a day takes.
    #[arg(long, default_value_t = 30)]
    day: u32,
    /// How many days.
    #[arg(long, default_value_t = 30)]
    days: u32,
}

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const KEYSPACE: &str = "month";

/// Days of TTL, and of ten messages how many have it.
const TTLS: [(u32, u32); 3] = [(1, 2), (7, 3), (28, 5)];

/// Days of the TTL of each class of the layout with classes.
const CLASSES: [u32; 3] = [1, 7, 30];

/// One way to lay out messages.
#[derive(Clone, Copy, PartialEq)]
enum Layout {
    LowWater,
    Deletes,
    Classes,
}

impl Layout {
    const ALL: [Layout; 3] = [Layout::LowWater, Layout::Deletes, Layout::Classes];

    fn name(self) -> &'static str {
        match self {
            Layout::LowWater => "one table, low water",
            Layout::Deletes => "one table, deletes",
            Layout::Classes => "TTL classes, TWCS",
        }
    }

    fn tables(self) -> Vec<String> {
        match self {
            Layout::LowWater => vec!["water".into()],
            Layout::Deletes => vec!["deletes".into()],
            Layout::Classes => CLASSES.iter().map(|days| format!("class_{days}")).collect(),
        }
    }

    /// Table, and TTL in days, of a message that lives so long.
    fn place(self, days: u32) -> (usize, u32) {
        match self {
            Layout::LowWater | Layout::Deletes => (0, days),
            // A table of time windows wants one TTL; the exact one is a matter of the reader.
            Layout::Classes => {
                let class = CLASSES.iter().position(|class| *class >= days).unwrap_or(2);
                (class, CLASSES[class])
            }
        }
    }

    fn create(self, options: &Options) -> Vec<String> {
        let day = options.day;
        let columns = "uaid blob, family tinyint, clock bigint, origin bigint, key blob, value blob, \
                       PRIMARY KEY ((uaid), family, clock, origin, key)";
        let common = format!(
            "gc_grace_seconds = {day} AND memtable_flush_period_in_ms = {}000 AND compression = \
             {{'class': 'LZ4Compressor', 'chunk_length_in_kb': 4}}",
            day
        );
        let compaction = |table: usize| match self {
            Layout::Classes => {
                // Twenty to thirty windows for each class, and none shorter than the database takes.
                let minutes = (CLASSES[table] * day).div_ceil(20 * 60).max(1);
                format!(
                    "{{'class': 'TimeWindowCompactionStrategy', 'compaction_window_unit': 'MINUTES', \
                     'compaction_window_size': {minutes}, 'expired_sstable_check_frequency_seconds': 1}}"
                )
            }
            _ => format!(
                "{{'class': 'UnifiedCompactionStrategy', 'scaling_parameters': 'T4', 'tombstone_compaction_interval': \
                 {day}, 'expired_sstable_check_frequency_seconds': 1}}"
            ),
        };
        let tables = self.tables().into_iter().enumerate();
        let create = |(at, table): (usize, String)| {
            format!("CREATE TABLE {KEYSPACE}.{table} ({columns}) WITH {common} AND compaction = {}", compaction(at))
        };
        tables.map(create).collect()
    }
}

/// A table's statements.
struct Table {
    name: String,
    insert: PreparedStatement,
    read: PreparedStatement,
    delete: PreparedStatement,
}

/// A layout under load.
struct Month {
    layout: Layout,
    tables: Vec<Table>,
    /// By user: everything up to it is settled.
    low_water: HashMap<u32, i64>,
    /// Bytes and end (in days) of what was written and is not settled.
    live: HashMap<u32, Vec<(i64, f64, usize)>>,
    reads: u64,
    writes: u64,
}

/// What a read cost the database, by its own account.
#[derive(Clone, Copy, Default, Debug)]
struct Cost {
    rows: u64,
    tombstones: u64,
    sstables: u64,
    micros: u64,
}

#[tokio::main]
async fn main() -> Outcome<()> {
    let options = Options::parse();
    let database = Database::start(&["--heap", "512"])?;
    let sets = ["store.scylla.replication_factor=1", "store.scylla.request_timeout=30"].map(str::to_owned);
    let mut sets = sets.to_vec();
    sets.push(format!("store.scylla.nodes={}", database.nodes()));
    let config = Config::load(&Sources { sets, ..Sources::default() })?;
    let session = Arc::new(connect(&config.store.scylla).await?);
    define(&session, &format!(
        "CREATE KEYSPACE {KEYSPACE} WITH replication = {{'class': 'NetworkTopologyStrategy', 'replication_factor': 1}}"
    ))
    .await?;
    let mut months = Vec::new();
    for layout in Layout::ALL {
        months.push(Month::new(&session, layout, &options).await?);
    }
    let data = database.file(&format!("1/data/{KEYSPACE}"));
    let start = Instant::now();
    println!("{:>4}  {:<22} {:>9} {:>9} {:>6}  cost of a daily read", "day", "layout", "disk MiB", "live MiB", "ratio");
    for day in 0..options.days {
        for month in &mut months {
            let costs = month.day(&session, &options, day).await?;
            if (day + 1) % 5 == 0 {
                let (disk, live) = (month.disk(&data), month.live(day));
                let ratio = disk as f64 / live.max(1) as f64;
                let name = month.layout.name();
                println!(
                    "{:>4}  {name:<22} {:>9.1} {:>9.1} {ratio:>6.2}  {}",
                    day + 1,
                    mib(disk),
                    mib(live),
                    median(&costs)
                );
            }
        }
        tokio::time::sleep_until((start + Duration::from_secs(u64::from(options.day * (day + 1)))).into()).await;
    }
    println!("\nwho never read comes back after the month:");
    for month in &mut months {
        let mut costs = Vec::new();
        for user in (1..options.users).step_by(10).take(50) {
            costs.push(month.read(&session, user, true).await?);
        }
        println!("{:<22} {}", month.layout.name(), median(&costs));
        println!("{:<22} {} statements written, {} read", "", month.writes, month.reads);
    }
    queue(&session, &mut months, &options).await
}

/// One message left of ten thousand.
async fn queue(session: &Arc<Session>, months: &mut [Month], options: &Options) -> Outcome<()> {
    println!("\none message left of 10,000 of one user:");
    let user = options.users + 7;
    for month in months {
        for number in 0..10_000_i64 {
            month.write(session, user, number + 1, 28, f64::from(options.days), options).await?;
        }
        let rows = month.rows(session, user).await?;
        month.settle(session, user, &rows[..rows.len() - 1]).await?;
        let cost = month.read(session, user, true).await?;
        println!("{:<22} {cost}", month.layout.name());
    }
    Ok(())
}

impl Month {
    async fn new(session: &Session, layout: Layout, options: &Options) -> Outcome<Month> {
        let mut tables = Vec::new();
        for (statement, name) in layout.create(options).iter().zip(layout.tables()) {
            define(session, statement).await?;
            let key = "uaid = ? AND family = 2 AND clock = ? AND origin = 1 AND key = 0x01";
            let insert = format!(
                "INSERT INTO {KEYSPACE}.{name} (uaid, family, clock, origin, key, value) VALUES (?, 2, ?, 1, 0x01, ?) USING TTL ?"
            );
            let read = format!(
                "SELECT clock, value FROM {KEYSPACE}.{name} WHERE uaid = ? AND family = 2 AND clock > ? LIMIT 1000"
            );
            let delete = format!("DELETE FROM {KEYSPACE}.{name} WHERE {key}");
            let mut read = session.prepare(read).await?;
            read.set_page_size(10_000);
            tables.push(Table {
                insert: session.prepare(insert).await?,
                read,
                delete: session.prepare(delete).await?,
                name,
            });
        }
        Ok(Month { layout, tables, low_water: HashMap::new(), live: HashMap::new(), reads: 0, writes: 0 })
    }

    /// Everybody gets messages; the tenth reads and settles them. Returns what some of those reads cost.
    async fn day(&mut self, session: &Arc<Session>, options: &Options, day: u32) -> Outcome<Vec<Cost>> {
        let bound = Arc::new(Semaphore::new(64));
        let mut writes = JoinSet::new();
        for message in 0..options.messages {
            for user in 0..options.users {
                let clock = i64::from(day * options.messages + message + 1);
                let ttl = ttl_of(u64::from(user) * 31 + clock as u64 * 7);
                let (table, kept) = self.layout.place(ttl);
                let (insert, session) = (self.tables[table].insert.clone(), Arc::clone(session));
                let value = random(options.bytes)?;
                self.live.entry(user).or_default().push((clock, f64::from(day + ttl), options.bytes + 60));
                self.writes += 1;
                let permit = Arc::clone(&bound).acquire_owned().await?;
                let seconds = (kept * options.day) as i32;
                writes.spawn(async move {
                    let done = session.execute_unpaged(&insert, (uaid(user), clock, value, seconds)).await;
                    drop(permit);
                    done.map(|_| ())
                });
            }
        }
        while let Some(done) = writes.join_next().await {
            done??;
        }
        let mut costs = Vec::new();
        for user in (0..options.users).step_by(10) {
            let sampled = costs.len() < 20;
            if sampled {
                costs.push(self.read(session, user, true).await?);
            }
            let rows = self.rows(session, user).await?;
            self.settle(session, user, &rows).await?;
        }
        Ok(costs)
    }

    async fn write(
        &mut self,
        session: &Session,
        user: u32,
        clock: i64,
        ttl: u32,
        _day: f64,
        options: &Options,
    ) -> Outcome<()> {
        let (table, kept) = self.layout.place(ttl);
        let values = (uaid(user), clock, random(options.bytes)?, (kept * options.day) as i32);
        session.execute_unpaged(&self.tables[table].insert, values).await?;
        self.writes += 1;
        Ok(())
    }

    fn after(&self, user: u32) -> i64 {
        self.low_water.get(&user).copied().unwrap_or(0)
    }

    /// What a user has to read: clock and table.
    async fn rows(&mut self, session: &Session, user: u32) -> Outcome<Vec<(i64, usize)>> {
        let mut found = Vec::new();
        for (at, table) in self.tables.iter().enumerate() {
            let mut after = self.after(user);
            loop {
                let rows = session.execute_unpaged(&table.read, (uaid(user), after)).await?.into_rows_result()?;
                self.reads += 1;
                let before = found.len();
                for row in rows.rows::<(i64, Vec<u8>)>()? {
                    found.push((row?.0, at));
                }
                if found.len() - before < 1_000 {
                    break;
                }
                after = found.last().map_or(after, |(clock, _)| *clock);
            }
        }
        found.sort_unstable();
        Ok(found)
    }

    /// One first read of each table, traced.
    async fn read(&mut self, session: &Session, user: u32, traced: bool) -> Outcome<Cost> {
        let mut cost = Cost::default();
        for table in &self.tables {
            let mut read = table.read.clone();
            read.set_tracing(traced);
            let start = Instant::now();
            let result = session.execute_unpaged(&read, (uaid(user), self.after(user))).await?;
            cost.micros += start.elapsed().as_micros() as u64;
            let Some(id) = result.tracing_id() else { continue };
            for event in session.get_tracing_info(&id).await?.events {
                add(&mut cost, event.activity.as_deref().unwrap_or_default());
            }
        }
        Ok(cost)
    }

    async fn settle(&mut self, session: &Session, user: u32, rows: &[(i64, usize)]) -> Outcome<()> {
        let Some((last, _)) = rows.last() else { return Ok(()) };
        if let Some(live) = self.live.get_mut(&user) {
            live.retain(|(clock, _, _)| clock > last);
        }
        if self.layout == Layout::Deletes {
            for (clock, table) in rows {
                session.execute_unpaged(&self.tables[*table].delete, (uaid(user), clock)).await?;
                self.writes += 1;
            }
            return Ok(());
        }
        // The row of low water is in another table; here only what it saves is looked at.
        self.writes += 1;
        self.low_water.insert(user, *last);
        Ok(())
    }

    fn disk(&self, data: &Path) -> u64 {
        let of_ours = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            self.tables.iter().any(|table| name.rsplit_once('-').is_some_and(|(of, _)| of == table.name))
        };
        entries(data).filter(of_ours).flat_map(|dir| entries(&dir).collect::<Vec<_>>()).map(|file| size(&file)).sum()
    }

    /// Bytes that are neither expired nor settled.
    fn live(&self, day: u32) -> u64 {
        let now = f64::from(day);
        let all = self.live.values().flatten();
        all.filter(|(_, end, _)| *end > now).map(|(_, _, bytes)| *bytes as u64).sum()
    }
}

fn entries(dir: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path())
}

fn size(file: &Path) -> u64 {
    std::fs::metadata(file).ok().filter(|found| found.is_file()).map_or(0, |found| found.len())
}

/// `Read 12 live rows and 3 tombstone cells`, `Merged data from memtables and 2 sstables`.
fn add(cost: &mut Cost, activity: &str) {
    let words: Vec<&str> = activity.split_whitespace().collect();
    let before = |word: &str| {
        let at = words.iter().position(|found| found.trim_matches(',') == word)?;
        words.get(at.checked_sub(1)?)?.parse::<u64>().ok()
    };
    if activity.starts_with("Read ") {
        cost.rows += before("live").unwrap_or(0);
        cost.tombstones += before("tombstone").unwrap_or(0);
    }
    if activity.starts_with("Merged data from memtables") {
        cost.sstables += before("sstables").unwrap_or(0);
    }
}

impl std::fmt::Display for Cost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Cost { rows, tombstones, sstables, micros } = self;
        write!(f, "{rows} rows, {tombstones} tombstones, {sstables} sstables, {micros} us")
    }
}

/// The median of each figure.
fn median(costs: &[Cost]) -> Cost {
    let of = |figure: fn(&Cost) -> u64| {
        let mut all: Vec<u64> = costs.iter().map(figure).collect();
        all.sort_unstable();
        all.get(all.len() / 2).copied().unwrap_or(0)
    };
    Cost {
        rows: of(|c| c.rows),
        tombstones: of(|c| c.tombstones),
        sstables: of(|c| c.sstables),
        micros: of(|c| c.micros),
    }
}

fn ttl_of(number: u64) -> u32 {
    let mut place = (number % 10) as u32;
    for (days, share) in TTLS {
        if place < share {
            return days;
        }
        place -= share;
    }
    TTLS[0].0
}

fn uaid(user: u32) -> Vec<u8> {
    let mut uaid = vec![0; 16];
    uaid[..4].copy_from_slice(&user.to_be_bytes());
    uaid
}

/// Encrypted bodies do not compress; neither do these.
fn random(bytes: usize) -> Outcome<Vec<u8>> {
    let mut value = vec![0; bytes];
    SystemRandom::new().fill(&mut value).map_err(|_| "no random bytes")?;
    Ok(value)
}

async fn define(session: &Session, statement: &str) -> Outcome<()> {
    session.query_unpaged(statement, ()).await.map_err(|error| format!("{statement}: {error}"))?;
    Ok(())
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
