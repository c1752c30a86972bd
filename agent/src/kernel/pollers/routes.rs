//! Routes of IPv4 and IPv6, as `ip route show table all` reads them through rtnetlink. A route over several links has a row
//! for each.

use super::{Rows, Source, netlink, number, text};
use netlink_packet_core::Parseable;
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use std::io;

pub const SOURCE: Source = Source {
    name: "routes",
    summary: "routes of IPv4 and IPv6, one row for each link of a route; the main table is 254",
    columns: &[
        text("destination", 48),
        text("gateway", 48),
        number("interface"),
        number("table"),
        number("metric"),
        text("type", 16),
        text("protocol", 16),
    ],
    open: || Box::new(read),
};

#[derive(Clone, Debug, Default)]
struct Hop {
    gateway: String,
    interface: u32,
}

fn read(rows: &mut Rows) -> io::Result<()> {
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let mut request = RouteMessage::default();
        request.header.address_family = family;
        netlink::dump(NETLINK_ROUTE, RouteNetlinkMessage::GetRoute(request), &mut |payload| {
            push(rows, RouteMessage::parse(payload)?);
            Ok(())
        })?;
    }
    Ok(())
}

fn push(rows: &mut Rows, route: RouteMessage) {
    let (mut destination, mut table, mut metric) = ("default".to_owned(), u32::from(route.header.table), 0);
    let (mut single, mut several) = (Hop::default(), Vec::new());
    for attribute in route.attributes {
        match attribute {
            RouteAttribute::Destination(to) => {
                destination = format!("{}/{}", address(&to), route.header.destination_prefix_length);
            }
            RouteAttribute::Gateway(to) => single.gateway = address(&to),
            RouteAttribute::Oif(index) => single.interface = index,
            RouteAttribute::Table(number) => table = number,
            RouteAttribute::Priority(number) => metric = number,
            RouteAttribute::MultiPath(hops) => several = hops,
            _ => {}
        }
    }
    let mut hops: Vec<Hop> = several
        .iter()
        .map(|hop| {
            let gateway = hop.attributes.iter().find_map(|attribute| match attribute {
                RouteAttribute::Gateway(to) => Some(address(to)),
                _ => None,
            });
            Hop { gateway: gateway.unwrap_or_default(), interface: hop.interface_index }
        })
        .collect();
    if hops.is_empty() {
        hops.push(single);
    }
    for hop in hops {
        rows.push(&[
            destination.as_str().into(),
            hop.gateway.as_str().into(),
            hop.interface.into(),
            table.into(),
            metric.into(),
            words(route.header.kind).into(),
            route.header.protocol.to_string().to_lowercase().as_str().into(),
        ]);
    }
}

fn address(address: &RouteAddress) -> String {
    match address {
        RouteAddress::Inet(address) => address.to_string(),
        RouteAddress::Inet6(address) => address.to_string(),
        _ => String::new(),
    }
}

/// As `ip route` names them.
fn words(kind: RouteType) -> &'static str {
    match kind {
        RouteType::Unicast => "unicast",
        RouteType::Local => "local",
        RouteType::Broadcast => "broadcast",
        RouteType::Anycast => "anycast",
        RouteType::Multicast => "multicast",
        RouteType::BlackHole => "blackhole",
        RouteType::Unreachable => "unreachable",
        RouteType::Prohibit => "prohibit",
        RouteType::Throw => "throw",
        _ => "unknown",
    }
}
