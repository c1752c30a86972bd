//! Messages of the kernel, from /dev/kmsg.
//!
//! Format: Documentation/ABI/testing/dev-kmsg. Each read(2) gives one record: `PRIORITY,SEQUENCE,MICROSECONDS,FLAGS;TEXT`, then lines of
//! its context, each of which begins with a space.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;

/// `CONSOLE_EXT_LOG_MAX`: longer records do not exist, and a shorter buffer would be refused by EINVAL.
const RECORD: usize = 8192;

/// How severe a message is (`include/linux/kern_levels.h`), the most severe first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Level(u8);

impl Level {
    /// KERN_WARNING
    pub const WARNING: Level = Level(4);
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub level: Level,
    /// Its first line.
    pub text: String,
}

impl Message {
    /// Reads a record; `None` for one that is not of the kernel itself, or of another form.
    pub fn parse(record: &[u8]) -> Option<Message> {
        let record = String::from_utf8_lossy(record);
        let (head, text) = record.split_once(';')?;
        let priority: u32 = head.split(',').next()?.parse().ok()?;
        // The facility is above the level; 0 is the kernel's, and programs that write to /dev/kmsg cannot have it.
        let level = u8::try_from(priority).ok().filter(|priority| *priority < 8).map(Level)?;
        let text = text.lines().next().unwrap_or_default().trim();
        (!text.is_empty()).then(|| Message { level, text: text.to_owned() })
    }
}

/// The messages from now on. Reads do not block.
#[derive(Debug)]
pub struct KernelLog(File);

#[derive(Debug)]
pub enum Reading {
    Message(Message),
    /// A record of a program.
    Other,
    /// Records were overwritten before they were read.
    Overwritten,
}

impl KernelLog {
    /// EPERM without CAP_SYSLOG where `kernel.dmesg_restrict` is set.
    pub fn open() -> io::Result<KernelLog> {
        let mut file =
            OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open("/dev/kmsg")?;
        file.seek(SeekFrom::End(0))?;
        Ok(KernelLog(file))
    }

    /// Blocks until there is a record.
    pub fn wait(&self) -> io::Result<()> {
        poll(&mut [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE)?;
        Ok(())
    }

    /// The next record. `WouldBlock` when there is none yet.
    pub fn read(&mut self) -> io::Result<Reading> {
        let mut record = [0; RECORD];
        match self.0.read(&mut record) {
            Ok(length) => Ok(Message::parse(&record[..length]).map_or(Reading::Other, Reading::Message)),
            // EPIPE
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Reading::Overwritten),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_a_level_and_a_text() {
        let oom = b"3,1204,5140900,-;Out of memory: Killed process 7 (mysqld)\n SUBSYSTEM=memory\n";
        let message = Message::parse(oom).unwrap();
        assert_eq!(message, Message { level: Level(3), text: "Out of memory: Killed process 7 (mysqld)".into() });
        assert!(message.level < Level::WARNING);
        assert!(Message::parse(b"6,1,2,-;loop0: detected capacity change\n").unwrap().level > Level::WARNING);
    }

    #[test]
    fn records_of_programs_are_no_messages_of_the_kernel() {
        for other in [&b"11,1,2,-;systemd: failed\n"[..], b"", b"x;y", b"4,1,2,-;\n", b"4,1,2,-"] {
            assert_eq!(Message::parse(other), None);
        }
    }
}
