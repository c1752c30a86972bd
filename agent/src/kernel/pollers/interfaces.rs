//! Network interfaces with their counters, as `ip -s link` reads them through rtnetlink, and the speed of their links.

use super::{Rows, Source, netlink, number, text};
use netlink_packet_core::{DecodeError, Parseable};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkMessage, State, Stats64};
use netlink_sys::protocols::NETLINK_ROUTE;
use std::{fs, io};

pub const SOURCE: Source = Source {
    name: "interfaces",
    summary: "network interfaces and their counters, as `ip -s link` shows them; speed in bits a second, 0 if it has none",
    columns: &[
        number("index"),
        text("name", 16),
        text("state", 16),
        text("qdisc", 16),
        number("mtu"),
        number("queue_length"),
        number("carrier_changes"),
        number("speed"),
        number("rx_bytes"),
        number("rx_packets"),
        number("rx_errors"),
        number("rx_dropped"),
        number("rx_missed"),
        number("rx_overruns"),
        number("multicast"),
        number("tx_bytes"),
        number("tx_packets"),
        number("tx_errors"),
        number("tx_dropped"),
        number("tx_carrier"),
        number("collisions"),
    ],
    open: || Box::new(read),
};

#[derive(Debug, Default)]
struct Interface {
    index: u32,
    name: String,
    state: String,
    qdisc: String,
    mtu: u32,
    queue_length: u32,
    carrier_changes: u32,
    counters: Stats64,
}

fn read(rows: &mut Rows) -> io::Result<()> {
    let request = RouteNetlinkMessage::GetLink(LinkMessage::default());
    netlink::dump(NETLINK_ROUTE, request, &mut |payload| {
        let interface = parse(payload)?;
        push(rows, &interface, speed(&interface.name));
        Ok(())
    })
}

fn parse(payload: &[u8]) -> Result<Interface, DecodeError> {
    let message = LinkMessage::parse(payload)?;
    let mut interface = Interface { index: message.header.index, ..Interface::default() };
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => interface.name = name,
            LinkAttribute::OperState(state) => interface.state = words(state).to_owned(),
            LinkAttribute::Qdisc(name) => interface.qdisc = name,
            LinkAttribute::Mtu(bytes) => interface.mtu = bytes,
            LinkAttribute::TxQueueLen(packets) => interface.queue_length = packets,
            LinkAttribute::CarrierChanges(count) => interface.carrier_changes = count,
            LinkAttribute::Stats64(counters) => interface.counters = counters,
            _ => {}
        }
    }
    Ok(interface)
}

/// As in `/sys/class/net/*/operstate`.
fn words(state: State) -> &'static str {
    match state {
        State::Up => "up",
        State::Down => "down",
        State::LowerLayerDown => "lowerlayerdown",
        State::NotPresent => "notpresent",
        State::Dormant => "dormant",
        State::Testing => "testing",
        _ => "unknown",
    }
}

/// Bits a second. The file counts Mbit/s; it is -1 or cannot be read where the driver knows no speed or the link is down.
fn speed(name: &str) -> u64 {
    let text = fs::read_to_string(format!("/sys/class/net/{name}/speed")).unwrap_or_default();
    text.trim().parse::<u64>().unwrap_or(0) * 1_000_000
}

fn push(rows: &mut Rows, interface: &Interface, speed: u64) {
    let n = &interface.counters;
    rows.push(&[
        interface.index.into(),
        interface.name.as_str().into(),
        interface.state.as_str().into(),
        interface.qdisc.as_str().into(),
        interface.mtu.into(),
        interface.queue_length.into(),
        interface.carrier_changes.into(),
        speed.into(),
        n.rx_bytes.into(),
        n.rx_packets.into(),
        n.rx_errors.into(),
        n.rx_dropped.into(),
        n.rx_missed_errors.into(),
        n.rx_over_errors.into(),
        n.multicast.into(),
        n.tx_bytes.into(),
        n.tx_packets.into(),
        n.tx_errors.into(),
        n.tx_dropped.into(),
        n.tx_carrier_errors.into(),
        n.collisions.into(),
    ]);
}
