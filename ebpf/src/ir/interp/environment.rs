//! What a program can see of the kernel it runs in, as plain data.

use std::collections::BTreeMap;

/// The answers of the helpers, and readable memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Environment {
    /// `CLOCK_MONOTONIC` in nanoseconds.
    pub now_ns: u64,
    /// Added to `now_ns` after each reading, so that two readings in one run can differ.
    pub tick_ns: u64,
    /// What every random number is.
    pub random: u32,
    /// `tgid << 32 | tid` of the current task.
    pub pid_tgid: u64,
    /// `gid << 32 | uid` of the current task.
    pub uid_gid: u64,
    /// Name of the current task, NUL-padded.
    pub comm: [u8; 16],
    /// Id of the current task's cgroup (v2).
    pub cgroup_id: u64,
    /// The processor it runs on.
    pub cpu: u32,
    /// Address of the kernel function that the hook is at.
    pub function: u64,
    /// What the program was attached with.
    pub cookie: u64,
    /// Address of the current `task_struct`.
    pub task: u64,
    /// What `bpf_get_stackid` says of the kernel's stack, an id or a negative error number, in the first and in any further
    /// map of stacks.
    pub kernel_stack: [i64; 2],
    /// The same of the process's stack.
    pub user_stack: [i64; 2],
    /// Readable kernel memory.
    pub kernel: Memory,
    /// Readable memory of the current process.
    pub user: Memory,
}

/// Readable memory: bytes by start address. Everything else faults.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Memory {
    /// Regions that do not overlap.
    pub regions: BTreeMap<u64, Vec<u8>>,
}

impl Memory {
    /// Makes `bytes` readable at `address`.
    pub fn map(&mut self, address: u64, bytes: impl Into<Vec<u8>>) {
        self.regions.insert(address, bytes.into());
    }

    /// `length` bytes at `address`, if all of them lie in one region.
    pub fn read(&self, address: u64, length: usize) -> Option<&[u8]> {
        let bytes = self.from(address)?;
        bytes.get(..length)
    }

    /// From `address` to the end of its region.
    pub(super) fn from(&self, address: u64) -> Option<&[u8]> {
        let (&start, bytes) = self.regions.range(..=address).next_back()?;
        bytes.get(usize::try_from(address - start).ok()?..).filter(|rest| !rest.is_empty())
    }
}

/// Copies a NUL-terminated string of at most `out.len() - 1` bytes and ends it with NUL; gives its length with the NUL.
/// `None` is a fault. Bytes of `out` behind the NUL keep their value.
pub(super) fn copy_str(bytes: &[u8], out: &mut [u8]) -> Option<usize> {
    let room = out.len().checked_sub(1)?;
    let length = match bytes.iter().take(room).position(|&b| b == 0) {
        Some(length) => length,
        None if bytes.len() >= room => room,
        None => return None,
    };
    out[..length].copy_from_slice(&bytes[..length]);
    out[length] = 0;
    Some(length + 1)
}

#[cfg(test)]
mod tests {
    use super::{Memory, copy_str};

    #[test]
    fn reads_stay_inside_a_region() {
        let mut memory = Memory::default();
        memory.map(0x1000, *b"hello\0world");
        assert_eq!(memory.read(0x1006, 5), Some(&b"world"[..]));
        assert_eq!(memory.read(0x1006, 6), None);
        assert_eq!(memory.read(0xfff, 1), None);
        assert_eq!(memory.read(0x100b, 0), None);
        assert_eq!(memory.read(u64::MAX, 1), None);
    }

    #[test]
    fn strings_end_with_nul_and_fault_where_memory_ends() {
        let mut memory = Memory::default();
        memory.map(0x1000, *b"hello\0world");
        let read_str = |address, out: &mut [u8]| memory.from(address).and_then(|bytes| copy_str(bytes, out));
        let mut out = [9u8; 8];
        assert_eq!(read_str(0x1000, &mut out), Some(6));
        assert_eq!(&out, b"hello\0\x09\x09");
        let mut short = [9u8; 4];
        assert_eq!(read_str(0x1000, &mut short), Some(4));
        assert_eq!(&short, b"hel\0");
        assert_eq!(read_str(0x1006, &mut out), None, "no NUL before the region ends");
        assert_eq!(read_str(0x1006, &mut []), None);
    }
}
