//! The runtime of the shared store, and blocking calls into it.

use tokio::runtime::{Handle, Runtime};

/// Threads of the runtime: the driver and all lanes share them, and one encodes and decodes for several shards.
const THREADS_MAX: usize = 4;
/// Shards that one thread serves.
const SHARDS_PER_THREAD: usize = 4;

/// Makes the runtime.
pub(super) fn runtime() -> Result<Runtime, String> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(cores.div_ceil(SHARDS_PER_THREAD).min(THREADS_MAX))
        .thread_name("store")
        .enable_all()
        .build()
        .map_err(|error| format!("the system refuses a runtime for the store: {error}"))
}

/// Waits on a thread of its own, because the caller may be inside a runtime.
pub(super) fn block_on<T: Send>(runtime: &Handle, future: impl Future<Output = T> + Send) -> T {
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| runtime.block_on(future));
        match waiting.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}
