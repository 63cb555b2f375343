//! Notifications that came into the window before the minimum urgency of their user agent rose above them (decision
//! 0029).

use crate::ids::Stamp;
use crate::message::Urgency;

use super::Window;
use super::entry::CopyLocation;

impl Window {
    /// Holds what is not sent and below this minimum. Returns true if anything is held.
    pub fn hold(&mut self, minimum: Urgency) -> bool {
        let mut any = false;
        for entry in &mut self.entries {
            if entry.waits() && entry.urgency < minimum {
                self.ahead_bytes -= entry.ahead_bytes();
                self.unsent -= 1;
                entry.held = true;
            }
            any |= entry.held;
        }
        any
    }

    /// Lets what is held and not below this minimum wait again, in its place. Returns true if anything does.
    pub fn release(&mut self, minimum: Urgency) -> bool {
        let mut any = false;
        for (place, entry) in self.entries.iter_mut().enumerate() {
            if entry.held && entry.urgency >= minimum {
                entry.held = false;
                self.unsent += 1;
                self.ahead_bytes += entry.ahead_bytes();
                self.sent_below = self.sent_below.min(place as u16);
                any = true;
            }
        }
        any
    }

    /// Names what is held, once storage has all of it: together, so that it keeps its order.
    pub fn held_rows(&self) -> Vec<Stamp> {
        let held = || self.entries.iter().filter(|entry| entry.held);
        if held().any(|entry| entry.source != CopyLocation::Row) {
            return Vec::new();
        }
        held().map(|entry| entry.row.stamp).collect()
    }
}
