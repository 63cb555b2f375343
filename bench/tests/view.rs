//! The live view on a real terminal: a pseudo-terminal that the generator takes for one.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::common::{PATIENCE, World};
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

/// The screen that programs take and give back (DEC private mode 1049), and the cursor they hide meanwhile.
const TAKEN: &str = "\x1b[?1049h";
const GIVEN_BACK: &str = "\x1b[?1049l";
const CURSOR_SHOWN: &str = "\x1b[?25h";

/// A terminal of 80 columns and 24 rows with a generator in it.
struct Terminal {
    keys: File,
    /// The program's end, kept open: the settings of the terminal are read from here.
    line: OwnedFd,
    output: Receiver<Vec<u8>>,
    seen: String,
    child: Child,
}

impl Terminal {
    fn hold(world: &World) -> Terminal {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let line = rustix::fs::open(&name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        tcsetwinsize(&line, Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_murre-bench"));
        command.args(["hold", "--sessions", "30", "--quiet", "1", "--stay", "600"]);
        command.args(["--ws", &world.server.websocket().to_string(), "--admin", &world.server.admin().to_string()]);
        command.args(["--pid", &world.server.pid().to_string()]);
        let end = || line.try_clone().unwrap();
        command.stdin(end()).stdout(end()).stderr(end());
        let child = command.spawn().unwrap();
        let (say, output) = channel();
        let mut screen = File::from(master.try_clone().unwrap());
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = screen.read(&mut bytes) {
                if say.send(bytes[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Terminal { keys: master.into(), line, output, seen: String::new(), child }
    }

    /// Waits for this text on the screen.
    fn until(&mut self, wanted: &str) {
        let deadline = Instant::now() + PATIENCE;
        while !self.seen.contains(wanted) {
            let left = deadline.saturating_duration_since(Instant::now());
            let more = self.output.recv_timeout(left).unwrap_or_else(|_| panic!("no {wanted:?} in {:?}", self.seen));
            self.seen.push_str(&String::from_utf8_lossy(&more));
        }
    }

    fn raw(&self) -> bool {
        !tcgetattr(&self.line).unwrap().local_modes.contains(LocalModes::ICANON | LocalModes::ECHO)
    }

    fn press(&mut self, key: &[u8]) {
        self.keys.write_all(key).unwrap();
    }

    fn end(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "still running: {:?}", self.seen);
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_key_ends_the_run_and_the_terminal_is_as_before() {
    let world = World::start();
    for key in [b"q", b"\x03"] {
        let mut terminal = Terminal::hold(&world);
        terminal.until(TAKEN);
        // By then figures were found while the screen was taken. (Only what changes is drawn: of "stay for" the blank
        // is not drawn again where "ramp to" was before.)
        terminal.until("stay");
        assert!(terminal.raw(), "keys come as they are pressed");
        terminal.press(key);
        assert_eq!(terminal.end().code(), Some(1), "an interrupted run is no success");
        terminal.until("murre-bench: interrupted");
        assert!(!terminal.raw(), "the next program can read lines again");
        let (_, after) = terminal.seen.rsplit_once(GIVEN_BACK).expect("the screen is given back");
        assert!(after.contains(CURSOR_SHOWN) || terminal.seen.contains(CURSOR_SHOWN), "{after:?}");
        for figure in ["channels of each session", "sessions held", "ramp to 30: sessions that failed"] {
            assert!(after.contains(figure), "{figure} was said behind the screen and is lost: {after:?}");
        }
    }
}
