//! The ioctl of drivers of network interfaces. `struct ethtool_drvinfo` and its like are UAPI.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const SIOCETHTOOL: libc::c_ulong = 0x8946;
const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSTATS: u32 = 0x1d;
/// The set of names that belong to statistics.
const ETH_SS_STATS: u32 = 1;
const NAME_BYTES: usize = 32;

/// `struct ethtool_drvinfo`.
#[repr(C)]
struct Info {
    command: u32,
    driver: [u8; 32],
    version: [u8; 32],
    firmware: [u8; 32],
    bus: [u8; 32],
    expansion_rom: [u8; 32],
    reserved: [u8; 12],
    private_flags: u32,
    statistics: u32,
    test_info: u32,
    eeprom: u32,
    registers: u32,
}

/// What a driver says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Driver {
    pub name: String,
    pub version: String,
    pub firmware: String,
    pub bus: String,
}

/// A socket through which interfaces of this network namespace are asked.
#[derive(Debug)]
pub struct Ethtool(OwnedFd);

impl Ethtool {
    pub fn open() -> io::Result<Ethtool> {
        // SAFETY: no pointers; the result is a new descriptor, or -1.
        let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: it is open and has no other owner.
        Ok(Ethtool(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub fn driver(&self, interface: &str) -> io::Result<Driver> {
        let info = self.info(interface)?;
        Ok(Driver {
            name: text(&info.driver),
            version: text(&info.version),
            firmware: text(&info.firmware),
            bus: text(&info.bus),
        })
    }

    /// Counters by name. A driver that adds some between the three calls gives those that it had before.
    pub fn statistics(&self, interface: &str) -> io::Result<Vec<(String, u64)>> {
        let count = self.info(interface)?.statistics as usize;
        if count == 0 {
            return Ok(Vec::new());
        }
        // The kernel writes as many as the driver has at that moment, whatever length it is given.
        let room = count * 4 + 4096;
        // `struct ethtool_gstrings`: command, set, length, then the names.
        let mut names = vec![0u32; 3 + room * NAME_BYTES / 4];
        names[..3].copy_from_slice(&[ETHTOOL_GSTRINGS, ETH_SS_STATS, count as u32]);
        // `struct ethtool_stats`: command, length, then the numbers.
        let mut numbers = vec![0u32; 2 + room * 2];
        numbers[..2].copy_from_slice(&[ETHTOOL_GSTATS, count as u32]);
        // SAFETY: both buffers begin with their command and have room for many times what the driver has just said.
        unsafe {
            self.ask(interface, names.as_mut_ptr().cast())?;
            self.ask(interface, numbers.as_mut_ptr().cast())?;
        }
        let bytes = |words: &[u32]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
        let names = bytes(&names[3..3 + count * NAME_BYTES / 4]);
        let numbers = bytes(&numbers[2..2 + count * 2]);
        let numbers = numbers.as_chunks().0.iter().map(|number| u64::from_ne_bytes(*number));
        Ok(names.chunks_exact(NAME_BYTES).map(text).zip(numbers).collect())
    }

    fn info(&self, interface: &str) -> io::Result<Info> {
        // SAFETY: all bytes 0 are a value of this structure of numbers.
        let mut info = Info { command: ETHTOOL_GDRVINFO, ..unsafe { std::mem::zeroed() } };
        // SAFETY: the kernel writes one structure of this size.
        unsafe { self.ask(interface, (&raw mut info).cast())? };
        Ok(info)
    }

    /// # Safety
    /// `data` must begin with a command and be valid for what this writes.
    unsafe fn ask(&self, interface: &str, data: *mut libc::c_char) -> io::Result<()> {
        // SAFETY: all bytes 0 are a value of this structure of numbers and null pointers.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        if interface.len() >= request.ifr_name.len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_data = data;
        // SAFETY: the request outlives the call; what it points to is the caller's promise.
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), SIOCETHTOOL as _, &raw mut request) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
}
