//! Room of storage for accepted messages: a message goes to the ledger only while storage would take it from there.

/// State of the room by the last answers of storage.
#[derive(Default)]
pub(in crate::shard) struct StorageRoom {
    full: bool,
    scarce: bool,
}

impl StorageRoom {
    /// No message is taken that would have to be saved.
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// Storage gives shares of its room: it judges the messages of a user who has some unacked.
    pub fn is_scarce(&self) -> bool {
        self.scarce
    }

    /// Storage has answered a write of messages.
    pub fn answered(&mut self, scarce: bool) {
        self.scarce = scarce;
    }

    /// Storage has answered a save; `full` when it had no room for it. Returns true if it was refused so.
    pub fn saved(&mut self, full: bool) -> bool {
        self.full = full;
        full
    }

    /// Storage has written a row.
    pub fn written(&mut self) {
        self.full = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_storage_has_room_again_with_the_next_row_it_takes() {
        let mut room = StorageRoom::default();
        assert!(!room.is_full() && room.saved(true) && room.is_full());
        room.written();
        assert!(!room.is_full());
        assert!(room.saved(true) && !room.saved(false) && !room.is_full());
    }
}
