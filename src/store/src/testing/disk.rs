//! A file system that is really small.

use std::path::PathBuf;
use std::process::Command;

/// A file system in memory, mounted for one test. Mounting needs root; a refusal fails the test.
pub struct SmallDisk {
    dir: tempfile::TempDir,
}

impl SmallDisk {
    pub fn mount(mib: u64) -> SmallDisk {
        let dir = tempfile::tempdir().expect("a directory");
        let size = format!("size={mib}m");
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "none"]).arg(dir.path()).output();
        let mount = mount.expect("mount is there");
        assert!(mount.status.success(), "{}", String::from_utf8_lossy(&mount.stderr));
        SmallDisk { dir }
    }

    /// A directory on it that is not there yet.
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// A file of another program that takes all but this much.
    pub fn fill_up_to(&self, bytes_left: u64) -> PathBuf {
        let path = self.dir.path().join("filler");
        let stat = rustix::fs::statvfs(self.dir.path()).expect("it is mounted");
        let free = stat.f_bavail * stat.f_frsize;
        let file = std::fs::File::create(&path).expect("there is an inode");
        let take = free.saturating_sub(bytes_left);
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, take).expect("it was free");
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.dir.path()).status();
    }
}
