//! Queueing disciplines with their queues and drops, as `tc -s qdisc` reads them through rtnetlink.

use super::{Rows, Source, netlink, number, text};
use netlink_packet_core::Parseable;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage, TcStats2, TcStatsBasic, TcStatsQueue};
use netlink_sys::protocols::NETLINK_ROUTE;
use std::io;

pub const SOURCE: Source = Source {
    name: "qdiscs",
    summary: "queueing disciplines of interfaces, as `tc -s qdisc` shows them; the kernel's 32-bit counters wrap, bytes aside",
    columns: &[
        number("interface"),
        text("kind", 16),
        text("handle", 16),
        text("parent", 16),
        number("bytes"),
        number("packets"),
        number("drops"),
        number("overlimits"),
        number("requeues"),
        number("backlog_bytes"),
        number("backlog_packets"),
    ],
    open: || Box::new(read),
};

fn read(rows: &mut Rows) -> io::Result<()> {
    let request = RouteNetlinkMessage::GetQueueDiscipline(TcMessage::default());
    netlink::dump(NETLINK_ROUTE, request, &mut |payload| {
        push(rows, TcMessage::parse(payload)?);
        Ok(())
    })
}

fn push(rows: &mut Rows, message: TcMessage) {
    let (mut kind, mut sent, mut queue) = (String::new(), TcStatsBasic::default(), TcStatsQueue::default());
    for attribute in message.attributes {
        match attribute {
            TcAttribute::Kind(name) => kind = name,
            TcAttribute::Stats2(stats) => {
                for part in stats {
                    match part {
                        TcStats2::Basic(basic) => sent = basic,
                        TcStats2::Queue(of_queue) => queue = of_queue,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    rows.push(&[
        (message.header.index as u32).into(),
        kind.as_str().into(),
        words(message.header.handle).as_str().into(),
        words(message.header.parent).as_str().into(),
        sent.bytes.into(),
        sent.packets.into(),
        queue.drops.into(),
        queue.overlimits.into(),
        queue.requeues.into(),
        queue.backlog.into(),
        queue.qlen.into(),
    ]);
}

/// As `tc` writes them, in hexadecimal.
fn words(handle: TcHandle) -> String {
    match (handle, handle.minor) {
        (TcHandle::ROOT, _) => "root".to_owned(),
        (TcHandle::INGRESS, _) => "ingress".to_owned(),
        (_, 0) => format!("{:x}:", handle.major),
        (_, minor) => format!("{:x}:{minor:x}", handle.major),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_those_of_tc() {
        assert_eq!(words(TcHandle { major: 0x8001, minor: 0 }), "8001:");
        assert_eq!(words(TcHandle { major: 1, minor: 0x10 }), "1:10");
        assert_eq!((words(TcHandle::ROOT), words(TcHandle::INGRESS)), ("root".into(), "ingress".into()));
    }
}
