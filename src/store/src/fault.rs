//! Kinds of faults, which stay with an error on its way to the exit status of the process: a disk that is full, a file
//! that may not be written and a file that is damaged need different actions.

use std::io;

/// Kind of a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultKind {
    /// There is no room; it may be there later.
    Full,
    /// The path is not there, or this user may not use it so, or another process does.
    Denied,
    /// The content of a file is not what it must be.
    Damaged,
    /// The next try may find nothing wrong.
    Passing,
    /// Something must be changed first: the configuration, the command, or the version.
    Lasting,
}

impl FaultKind {
    /// Kind of an error of the host.
    pub fn of(error: &io::Error) -> FaultKind {
        use io::ErrorKind::{
            AlreadyExists, FileTooLarge, InvalidData, InvalidFilename, IsADirectory, NotADirectory, NotFound,
            PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull, UnexpectedEof,
        };
        match error.kind() {
            StorageFull | QuotaExceeded | FileTooLarge => FaultKind::Full,
            PermissionDenied | ReadOnlyFilesystem | NotFound | NotADirectory | IsADirectory | AlreadyExists
            | InvalidFilename => FaultKind::Denied,
            InvalidData | UnexpectedEof => FaultKind::Damaged,
            _ => FaultKind::Passing,
        }
    }

    /// Action that helps, as the end of a sentence about this directory.
    pub fn advice(self) -> &'static str {
        match self {
            FaultKind::Full => ": free disk space there",
            FaultKind::Denied => ": make the data directory writable for the user that runs murre",
            FaultKind::Damaged | FaultKind::Passing | FaultKind::Lasting => "",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_host_are_told_apart_by_what_helps() {
        let kind = |errno| FaultKind::of(&io::Error::from_raw_os_error(errno));
        // ENOSPC, EDQUOT, EFBIG.
        assert!([28, 122, 27].into_iter().all(|errno| kind(errno) == FaultKind::Full));
        // EACCES, EPERM, EROFS, ENOENT, ENOTDIR.
        assert!([13, 1, 30, 2, 20].into_iter().all(|errno| kind(errno) == FaultKind::Denied));
        // EIO, EMFILE, ENFILE, ENOMEM, EINTR.
        assert!([5, 24, 23, 12, 4].into_iter().all(|errno| kind(errno) == FaultKind::Passing));
        assert_eq!(FaultKind::of(&io::ErrorKind::InvalidData.into()), FaultKind::Damaged);
    }
}
