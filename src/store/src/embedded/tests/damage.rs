//! Torn and damaged files: whole rows come back, or the store is refused and salvage brings them back.

use std::collections::BTreeSet;
use std::fs;

use super::*;

/// A closed store whose rows are all in its journal, one batch each.
struct Image {
    dir: tempfile::TempDir,
    journal: PathBuf,
    bytes: Vec<u8>,
    /// End of the batch of each message.
    ends: Vec<(u64, usize)>,
}

const MESSAGES: u64 = 40;

fn image() -> Image {
    let dir = tempfile::tempdir().expect("a directory");
    let store = open(dir.path());
    let mut port = port(&store);
    port.register(1, 2);
    for n in 1..=MESSAGES {
        let payload = vec![n as u8; 100 + (n as usize * 977) % 5_000].into();
        port.publish(Message { payload, ..message(1, 2, n) });
    }
    store.close();
    let journal = journal::list(&dir.path().join("db")).expect("it is there").pop().expect("there is one");
    let mut bytes = fs::read(&journal).expect("readable");
    let batches = journal::batches(&bytes);
    let mut ends = Vec::new();
    for batch in &batches {
        for item in &batch.items {
            if let Some((_, stamp, _)) = rows::parse_message_key(&bytes[item.key.clone()]) {
                ends.push((stamp.clock.0, batch.span.end));
            }
        }
    }
    assert_eq!(ends.len(), MESSAGES as usize, "one batch for each message");
    bytes.truncate(ends[ends.len() - 1].1);
    Image { dir, journal, bytes, ends }
}

impl Image {
    /// The same store with another journal, `zeros` of preallocated space behind it.
    fn with(&self, bytes: &[u8], zeros: usize) -> tempfile::TempDir {
        let copy = tempfile::tempdir().expect("a directory");
        copy_dir(self.dir.path(), copy.path(), &self.journal);
        let to = copy.path().join(self.journal.strip_prefix(self.dir.path()).expect("it is inside"));
        fs::write(&to, bytes).expect("writable");
        let file = fs::OpenOptions::new().write(true).open(&to).expect("writable");
        file.set_len((bytes.len() + zeros) as u64).expect("it grows");
        copy
    }

    /// Messages whose batch is whole in the first `len` bytes.
    fn whole_within(&self, len: usize) -> BTreeSet<u64> {
        self.ends.iter().filter(|(_, end)| *end <= len).map(|(n, _)| *n).collect()
    }
}

fn copy_dir(from: &Path, to: &Path, without: &Path) {
    fs::create_dir_all(to).expect("writable");
    for entry in fs::read_dir(from).expect("readable").flatten() {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_dir(&entry.path(), &target, without);
        } else if entry.path() != without {
            fs::copy(entry.path(), target).expect("writable");
        }
    }
}

fn rows_of(store: &Embedded) -> BTreeSet<u64> {
    let mut port = port(store);
    let op = StoreOp::Messages { uaid: uaid(1), after: Stamp::default(), limit: u16::MAX, now: NOW };
    let page = port.page(op);
    for m in &page.messages {
        let n = m.stamp.clock.0;
        assert!(m.payload.iter().all(|&byte| byte == n as u8), "a wrong body");
        assert_eq!(m.payload.len(), 100 + (n as usize * 977) % 5_000);
    }
    page.messages.iter().map(|m| m.stamp.clock.0).collect()
}

/// Opens the store, or salvages it when it is refused by name. Returns the rows, and true if it was refused.
fn recovered(dir: &Path) -> (BTreeSet<u64>, bool) {
    match Embedded::open(dir, patient()) {
        Ok(store) => (rows_of(&store), false),
        Err(fault) => {
            let said = fault.to_string();
            assert!(fault.is_damage() && said.contains("murre maintain salvage"), "{said}");
            let before = listing(dir);
            let dest = tempfile::tempdir().expect("a directory");
            let copied = salvage(dir, &dest.path().join("new"), &mut |_| ()).expect("it salvages");
            assert!(copied.damaged_journals > 0 && !copied.is_whole(), "{copied:?}");
            assert_eq!(listing(dir), before, "salvage leaves the files alone");
            (rows_of(&open(&dest.path().join("new"))), true)
        }
    }
}

fn listing(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).expect("readable").flatten() {
        if entry.path().is_dir() {
            files.extend(listing(&entry.path()));
        } else {
            files.push((entry.path(), fs::read(entry.path()).expect("readable")));
        }
    }
    files.sort();
    files
}

#[test]
fn a_journal_cut_anywhere_opens_with_every_whole_batch() {
    let image = image();
    let len = image.bytes.len();
    let last = image.ends[image.ends.len() - 2].1;
    let near_heads = (last..last + 120).step_by(7);
    let cuts = (0..8).map(|n| len - 1 - n * len / 9).chain(near_heads).chain((len - 40..len).step_by(5));
    for (nth, cut) in cuts.enumerate() {
        // As a kill leaves it in preallocated space, and as it leaves it behind the end of the file.
        let copy = image.with(&image.bytes[..cut], if nth % 2 == 0 { 100_000 } else { 0 });
        let (found, refused) = recovered(copy.path());
        assert!(!refused, "a clean cut at {cut} is no damage");
        assert_eq!(found, image.whole_within(cut), "cut at {cut} of {len}");
        // And it goes on from there.
        let store = open(copy.path());
        port(&store).register(1, 3);
        store.close();
        assert_eq!(rows_of(&open(copy.path())), found);
    }
}

#[test]
fn a_lost_page_of_the_journal_is_refused_and_salvaged() {
    let image = image();
    let pages = image.bytes.len().div_ceil(4096);
    let mut refusals = 0;
    for page in 0..pages {
        let mut bytes = image.bytes.clone();
        let lost = page * 4096..((page + 1) * 4096).min(bytes.len());
        bytes[lost.clone()].fill(0);
        let copy = image.with(&bytes, 100_000);
        let (found, refused) = recovered(copy.path());
        let mut start = 0;
        for (n, end) in &image.ends {
            let touched = start < lost.end && *end > lost.start;
            // Without the record of its user, written with the first message, a row has no user.
            let nobodys = lost.start < image.ends[0].1;
            assert!(touched || nobodys || found.contains(n), "message {n} was whole beside page {page}");
            start = *end;
        }
        refusals += u32::from(refused);
        // A page lost out of the middle is never taken for the end.
        assert!(refused || page + 2 >= pages, "page {page} of {pages}");
    }
    assert!(refusals > 0);
}

#[test]
fn flipped_bits_in_a_journal_never_yield_a_wrong_row() {
    let image = image();
    let len = image.bytes.len();
    for n in 0..24usize {
        let at = (n * 7_919 + n * n * 31) % len;
        let mut bytes = image.bytes.clone();
        bytes[at] ^= 1 << (n % 8);
        let copy = image.with(&bytes, if n % 2 == 0 { 100_000 } else { 0 });
        let (found, _) = recovered(copy.path());
        let mut start = 0;
        for (n, end) in &image.ends {
            let touched = start <= at && *end > at;
            assert!(touched || found.contains(n), "message {n} is whole, the flip is at {at}");
            start = *end;
        }
    }
}

/// A closed store with all rows but the last in tables and that one in its journal.
fn tables() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let store = open(dir.path());
    let mut port = port(&store);
    port.register(1, 2);
    for n in 1..=MESSAGES {
        let payload = vec![n as u8; 100 + (n as usize * 977) % 5_000].into();
        port.publish(Message { payload, ..message(1, 2, n) });
        if n == MESSAGES - 1 {
            let db = store.db.as_ref().expect("it is open");
            for keyspace in db.keyspaces() {
                keyspace.rotate_memtable_and_wait().expect("writable");
            }
        }
    }
    store.close();
    // As if the journals before the flush had been evicted, which takes fjall 64 MiB to do.
    let journal = journal::list(&dir.path().join("db")).expect("it is there").pop().expect("there is one");
    let bytes = fs::read(&journal).expect("readable");
    let last = journal::batches(&bytes).pop().expect("there are batches");
    fs::write(&journal, &bytes[last.span]).expect("writable");
    assert_eq!(rows_of(&open(dir.path())).len() as u64, MESSAGES);
    dir
}

#[test]
fn flipped_bits_in_any_file_are_refused_or_change_nothing() {
    let dir = tables();
    let files = listing(dir.path()).into_iter().filter(|(_, bytes)| !bytes.is_empty());
    let (mut refusals, mut unreadable) = (0, 0);
    for (nth, (path, bytes)) in files.enumerate() {
        let at = (nth % 3 * bytes.len() / 3 + nth * 7) % bytes.len();
        let copy = tempfile::tempdir().expect("a directory");
        copy_dir(dir.path(), copy.path(), &path);
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << (nth % 8);
        let inside = path.strip_prefix(dir.path()).expect("it is inside");
        fs::write(copy.path().join(inside), flipped).expect("writable");
        let data = ["db/keyspaces/1", "db/keyspaces/2"].iter().any(|keyspace| inside.starts_with(keyspace));
        match Embedded::open(copy.path(), patient()) {
            Ok(store) if data && port(&store).ask(StoreOp::LoadUser { uaid: uaid(1) }).is_err() => unreadable += 1,
            Ok(store) if data && reads_fail(&store) => unreadable += 1,
            Ok(store) => assert_eq!(rows_of(&store).len() as u64, MESSAGES, "{} at {at}", inside.display()),
            Err(fault) => {
                refusals += 1;
                let said = fault.to_string();
                assert!(said.contains(&copy.path().display().to_string()), "{said}");
                let dest = tempfile::tempdir().expect("a directory");
                let copied = salvage(copy.path(), &dest.path().join("new"), &mut |_| ()).expect("it salvages");
                let found = rows_of(&open(&dest.path().join("new"))).len() as u64;
                // A file that holds no users and no messages takes none of them with it.
                let whole = found == MESSAGES || data || inside.ends_with("0.jnl");
                assert!(whole, "{} at {at}: {copied:?}", inside.display());
            }
        }
    }
    assert!(refusals > 5 && unreadable > 0, "{refusals} and {unreadable}");
}

/// A damaged block is found when it is read: "not sure" is never "nothing".
fn reads_fail(store: &Embedded) -> bool {
    let op = StoreOp::Messages { uaid: uaid(1), after: Stamp::default(), limit: u16::MAX, now: NOW };
    matches!(port(store).ask(op), Err(StoreError::Transient))
}
