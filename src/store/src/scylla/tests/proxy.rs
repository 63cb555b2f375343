//! A relay between the store and the database that can be silent, slow or gone, or ask for other things than the store
//! does, so that tests of faults share one database with all others.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Listens on the address of the database with another port: the driver asks every node on the port of its contact
/// point.
pub(in super::super) struct Proxy {
    pub(in super::super) address: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    silent: AtomicBool,
    refuses: AtomicBool,
    mute: AtomicBool,
    delay_ms: AtomicU64,
    open: Mutex<Vec<TcpStream>>,
    /// Text of the store, the text that the database gets in its place, of the same length, and how often it did.
    instead: Mutex<Vec<(&'static str, String, usize)>>,
}

impl Proxy {
    pub(in super::super) fn new(database: SocketAddr) -> Proxy {
        let listener = TcpListener::bind((database.ip(), 0)).expect("a port");
        let address = listener.local_addr().expect("an address");
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        // It ends with the process: the threads hold nothing but sockets.
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if shared.refuses.load(Ordering::Relaxed) {
                    continue;
                }
                let Ok(server) = TcpStream::connect(database) else { continue };
                for (from, to, answers) in [(&client, &server, false), (&server, &client, true)] {
                    let (from, to) = (from.try_clone().expect("a socket"), to.try_clone().expect("a socket"));
                    let state = Arc::clone(&shared);
                    std::thread::spawn(move || state.carry(from, to, answers));
                }
                shared.open.lock().expect("no panic").push(client);
            }
        });
        Proxy { address, state }
    }

    /// From now on nothing is carried, or everything again, as with a stopped process.
    pub(in super::super) fn silent(&self, silent: bool) {
        self.state.silent.store(silent, Ordering::Relaxed);
    }

    /// From now on questions are carried and answers are not, or everything again: requests are done, and their answers
    /// are lost.
    pub(in super::super) fn mute(&self, mute: bool) {
        self.state.mute.store(mute, Ordering::Relaxed);
    }

    /// Every answer and every question takes this much longer.
    pub(in super::super) fn delay(&self, delay: Duration) {
        self.state.delay_ms.store(delay.as_millis() as u64, Ordering::Relaxed);
    }

    /// From now on the database is asked for `other` where the store asks for `text`.
    pub(in super::super) fn instead(&self, text: &'static str, other: &str) {
        let padded = format!("{other:len$}", len = text.len());
        assert_eq!(padded.len(), text.len(), "as many bytes");
        self.state.instead.lock().expect("no panic").push((text, padded, 0));
    }

    /// Number of times that the store has said a text of [`Proxy::instead`].
    pub(in super::super) fn said(&self, text: &str) -> usize {
        let instead = self.state.instead.lock().expect("no panic");
        instead.iter().filter(|(of_store, ..)| *of_store == text).map(|(.., count)| count).sum()
    }

    /// Connections end and new ones do too, as with a killed process; or not any more.
    pub(in super::super) fn refuse(&self, refuses: bool) {
        self.state.refuses.store(refuses, Ordering::Relaxed);
        for client in self.state.open.lock().expect("no panic").drain(..) {
            let _ = client.shutdown(Shutdown::Both);
        }
    }
}

impl State {
    fn carry(&self, mut from: TcpStream, mut to: TcpStream, answers: bool) {
        let mut bytes = vec![0; 64 * 1024];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            while self.silent.load(Ordering::Relaxed) || (answers && self.mute.load(Ordering::Relaxed)) {
                std::thread::sleep(Duration::from_millis(5));
            }
            std::thread::sleep(Duration::from_millis(self.delay_ms.load(Ordering::Relaxed)));
            if !answers {
                self.replace(&mut bytes[..count]);
            }
            if to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    }

    fn replace(&self, bytes: &mut [u8]) {
        for (text, other, count) in &mut *self.instead.lock().expect("no panic") {
            while let Some(at) = bytes.windows(text.len()).position(|some| some == text.as_bytes()) {
                bytes[at..at + other.len()].copy_from_slice(other.as_bytes());
                *count += 1;
            }
        }
    }
}
