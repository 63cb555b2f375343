//! `murre-freeze-race`: the go or no-go of hibernation.

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use freeze_race::freeze::Form;
use freeze_race::network::Link;
use freeze_race::path::Faults;
use freeze_race::peers::Pace;
use freeze_race::race::{Race, run};

/// Freeze and thaw TCP connections under peers that never stop sending, and count every byte.
///
/// Makes network namespaces of its own and touches no other. Needs root, iproute2, and a kernel with nf_tables,
/// nft_socket, nft_compat and NFQUEUE. Exits with status 1 if a byte was lost or a connection got stuck or broke.
#[derive(Parser)]
#[command(name = "murre-freeze-race", version)]
struct Options {
    /// Path from the peers to the server.
    #[arg(long, value_enum, default_value = "veth")]
    link: Link,
    /// Protection against bytes that arrive between the check and the close.
    #[arg(long, value_enum, default_value = "mark")]
    form: Form,
    /// Candidates for each grace period.
    #[arg(long, default_value_t = 64)]
    batch: usize,
    /// Peers.
    #[arg(long, default_value_t = 1024)]
    connections: usize,
    /// Mean time between two writes of one peer, in milliseconds.
    #[arg(long, default_value_t = 60)]
    period_ms: u64,
    /// Largest write, in bytes.
    #[arg(long, default_value_t = 200)]
    bytes: usize,
    /// Seconds of the race.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// End early after this number of freezes.
    #[arg(long, default_value_t = u64::MAX)]
    freezes: u64,
    /// Seconds after the last write within which everything must be acknowledged. Peers wait up to 120 s between two
    /// retransmissions.
    #[arg(long, default_value_t = 150)]
    patience: u64,
    /// Impaired link: delay in each direction, in microseconds.
    #[arg(long, default_value_t = 2_000)]
    delay_us: u64,
    /// Impaired link: random addition to the delay, which reorders packets, in microseconds.
    #[arg(long, default_value_t = 3_000)]
    jitter_us: u64,
    /// Impaired link: lost packets in a thousand.
    #[arg(long, default_value_t = 20)]
    loss: u64,
    /// Impaired link: duplicated packets in a thousand.
    #[arg(long, default_value_t = 20)]
    duplicates: u64,
    /// Listen on the address of the server instead of the wildcard address.
    #[arg(long)]
    one_address: bool,
    /// Freeze on while the reader of the queue is behind, until the kernel drops segments.
    #[arg(long)]
    unpaced: bool,
    /// Seed of all random numbers.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let race = Race {
        link: options.link,
        form: options.form,
        batch: options.batch.max(1),
        pace: Pace {
            connections: options.connections.max(options.batch),
            period: Duration::from_millis(options.period_ms),
            bytes_max: options.bytes.max(1),
            patience: Duration::from_secs(options.patience),
        },
        duration: Duration::from_secs(options.seconds),
        freezes_max: options.freezes,
        faults: Faults {
            delay: Duration::from_micros(options.delay_us),
            jitter: Duration::from_micros(options.jitter_us),
            loss_per_mille: options.loss,
            duplicates_per_mille: options.duplicates,
        },
        one_address: options.one_address,
        unpaced: options.unpaced,
        seed: options.seed,
    };
    match run(&race, &mut io::stderr()) {
        Ok(outcome) => {
            println!("{:?} {:?} batch {}: {outcome:?}", race.link, race.form, race.batch);
            println!("{}", if outcome.clean() { "clean" } else { "NOT CLEAN" });
            if outcome.clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("error: cannot run the race: {error}; run as root on a kernel that --help describes");
            ExitCode::from(2)
        }
    }
}
