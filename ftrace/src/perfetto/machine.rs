//! One machine among several in a trace.

use super::proto::Packet;

/// Sequences of packets that each machine may have: one for the whole, one for each of its buffers.
const SEQUENCES: u32 = 1 << 12;

/// One machine among several in a trace.
///
/// Perfetto keeps processes, threads and CPUs of machines apart by a number on each packet. Times are written by the clock of the
/// first machine: readers of all versions take them as they are, and those that look at wall clocks find the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Machine<'a> {
    /// Another one for each; 0 is the machine whose clock all times are of.
    pub number: u32,
    /// As it is shown; without one, by its host name.
    pub name: Option<&'a str>,
    /// Nanoseconds to add to the times of its trace for those of the first machine's clock.
    pub shift_ns: i64,
}

impl<'a> Machine<'a> {
    /// One whose clock differs from the wall clock by `epoch_offset_ns`, beside a first one that differs by `first_offset_ns`.
    pub fn beside(number: u32, name: &'a str, epoch_offset_ns: i64, first_offset_ns: i64) -> Machine<'a> {
        Machine { number, name: Some(name), shift_ns: epoch_offset_ns.saturating_sub(first_offset_ns) }
    }

    /// A time of its trace by the first machine's clock.
    pub(super) fn time(self, time: u64) -> u64 {
        time.saturating_add_signed(self.shift_ns)
    }

    /// A packet as one of this machine.
    pub(super) fn own(self, packet: Packet) -> Packet {
        if self.number == 0 {
            return packet;
        }
        let first = self.number.saturating_mul(SEQUENCES);
        Packet {
            machine_id: Some(self.number),
            trusted_packet_sequence_id: packet.trusted_packet_sequence_id.map(|id| first.saturating_add(id)),
            ..packet
        }
    }
}
