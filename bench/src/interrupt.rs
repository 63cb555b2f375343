//! Ctrl-C and SIGTERM end a scenario as an error does: everything it started is stopped.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use signal_hook::consts::{SIGINT, SIGTERM};

static INTERRUPTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

fn flag() -> &'static Arc<AtomicBool> {
    INTERRUPTED.get_or_init(Arc::default)
}

/// Catches both signals from now on; a second one ends the process at once.
pub fn install() -> io::Result<()> {
    for signal in [SIGINT, SIGTERM] {
        // The order matters: the second signal finds the flag that the first one set.
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, flag().clone())?;
        signal_hook::flag::register(signal, flag().clone())?;
    }
    Ok(())
}

/// Returns an error once the end was requested.
pub fn check() -> io::Result<()> {
    match flag().load(Ordering::Relaxed) {
        true => Err(io::Error::other("interrupted: everything that was started is stopped")),
        false => Ok(()),
    }
}
