//! The way of a packet: interrupt, softirq, wakeup of the receiver, copy to it.

use super::text::{Table, head, moment, not_recorded, task, time, time_or_dash};
use super::{Activity, Asked, Happening, Spread};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};

/// Ways of packets to their receivers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Packets {
    /// Events that this would need and the capture does not hold: their stages are not known.
    pub not_recorded: Vec<String>,
    /// How many copies to receivers there are.
    pub count: u64,
    /// Delays between stages that follow one another, in the order of the stages.
    pub hops: Vec<Hop>,
    /// From the first to the last known stage.
    pub total: Spread,
    /// The slowest receives.
    pub receives: Vec<Receive>,
    /// What was given up as records were lost.
    pub given_up: u64,
}

/// Delays from one stage to the next that is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Hop {
    /// The stage before.
    pub from: &'static str,
    /// The stage after.
    pub to: &'static str,
    pub delays: Spread,
}

/// One copy to a receiver, and what came before. Times are nanoseconds of the trace's clock, `None` for what was not recorded or did
/// not happen: a receiver that runs is not woken.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Receive {
    /// The receiver.
    pub pid: i32,
    /// Its name.
    pub comm: Option<String>,
    /// Where it copied.
    pub cpu: u32,
    /// Bytes copied.
    pub bytes: u64,
    /// The device that the packet came from.
    pub device: Option<String>,
    /// The interrupt that announced it: its handler's name.
    pub handler: Option<String>,
    /// The handler began (`irq_handler_entry`).
    pub interrupt_ns: Option<u64>,
    /// A virtual device queued the packet (`netif_rx`).
    pub queued_ns: Option<u64>,
    /// NET_RX was asked for (`softirq_raise`).
    pub raised_ns: Option<u64>,
    /// NET_RX began (`softirq_entry`).
    pub softirq_ns: Option<u64>,
    /// The packet came to the network stack (`napi_gro_receive_entry`, `netif_receive_skb`).
    pub received_ns: Option<u64>,
    /// The receiver was made runnable (`sched_waking`).
    pub woken_ns: Option<u64>,
    /// It ran (`sched_switch`).
    pub running_ns: Option<u64>,
    /// It copied (`skb_copy_datagram_iovec`).
    pub copied_ns: Option<u64>,
    /// Its system call returned (`sys_exit`).
    pub returned_ns: Option<u64>,
}

impl Receive {
    /// Stages in their order.
    pub fn stages(&self) -> [(&'static str, Option<u64>); 9] {
        [
            ("interrupt", self.interrupt_ns),
            ("queued", self.queued_ns),
            ("raised", self.raised_ns),
            ("softirq", self.softirq_ns),
            ("received", self.received_ns),
            ("woken", self.woken_ns),
            ("running", self.running_ns),
            ("copied", self.copied_ns),
            ("returned", self.returned_ns),
        ]
    }

    /// Delays between stages that are known, and their places in the order.
    fn hops(&self) -> Vec<(usize, usize, u64)> {
        let known: Vec<(usize, u64)> =
            self.stages().iter().enumerate().filter_map(|(at, (_, ns))| Some((at, (*ns)?))).collect();
        known.windows(2).map(|pair| (pair[0].0, pair[1].0, pair[1].1.saturating_sub(pair[0].1))).collect()
    }

    fn total_ns(&self) -> u64 {
        self.hops().iter().map(|(_, _, ns)| ns).sum()
    }
}

/// The softirq of received packets.
const NET_RX: u64 = 3;

/// Events of the stages, and whether each was seen.
const EVENTS: [&str; 8] = [
    "irq_handler_entry",
    "softirq_raise",
    "softirq_entry",
    "netif_receive_skb",
    "sched_waking",
    "sched_switch",
    "skb_copy_datagram_iovec",
    "sys_exit",
];

/// An interrupt's handler: when it began, its name.
type Handler = (u64, String);

/// When NET_RX was asked for, and the handler that did it.
type Raised = (u64, Option<Handler>);

#[derive(Default)]
struct Cpu {
    /// The handler that runs.
    handler: Option<Handler>,
    /// NET_RX was asked for and has not begun.
    raised: Option<Raised>,
    /// NET_RX runs: since when, and how it came to that.
    softirq: Option<(u64, Option<Raised>)>,
    /// The packet that is being received.
    packet: Option<u64>,
}

#[derive(Default)]
struct Task {
    entered_ns: Option<u64>,
    woken_ns: Option<u64>,
    running_ns: Option<u64>,
    /// Copies of the system call that has not returned.
    copies: Vec<Receive>,
}

/// A packet that came to the network stack.
#[derive(Default)]
struct Packet {
    way: Receive,
    /// It went up the stack (`netif_receive_skb`).
    on_stack: bool,
    /// Whom it woke, and when.
    woke: Vec<(i32, u64)>,
}

#[derive(Default)]
struct Stitch {
    cpus: HashMap<u32, Cpu>,
    tasks: HashMap<i32, Task>,
    packets: HashMap<u64, Packet>,
    hops: BTreeMap<(usize, usize), Vec<u64>>,
    totals: Vec<u64>,
    report: Packets,
    seen: [bool; EVENTS.len()],
}

/// Ways of packets to their receivers. Packets are distinguished by the address of their `sk_buff`.
pub fn packets<'a>(events: impl Iterator<Item = Happening<'a>>, activity: &Activity, asked: &Asked) -> Packets {
    let mut stitch = Stitch::default();
    for event in events {
        if event.lost {
            let copies = stitch.tasks.values().map(|task| task.copies.len()).sum::<usize>();
            stitch.report.given_up += (copies + stitch.packets.len()) as u64;
            stitch.cpus.clear();
            stitch.tasks.clear();
            stitch.packets.clear();
        }
        stitch.take(&event, activity, asked);
    }
    for task in std::mem::take(&mut stitch.tasks).into_values() {
        task.copies.into_iter().for_each(|copy| stitch.done(copy, asked));
    }
    let mut report = stitch.report;
    keep_worst(&mut report.receives, asked.slowest);
    let stages = Receive::default().stages().map(|(name, _)| name);
    let hop = |((from, to), times)| Hop { from: stages[from], to: stages[to], delays: Spread::of(times) };
    report.hops = stitch.hops.into_iter().map(hop).collect();
    report.total = Spread::of(stitch.totals);
    let missing = EVENTS.into_iter().zip(stitch.seen).filter(|(_, seen)| !seen);
    report.not_recorded = missing.map(|(name, _)| name.to_owned()).collect();
    report
}

impl Stitch {
    fn take(&mut self, event: &Happening<'_>, activity: &Activity, asked: &Asked) {
        let (time_ns, name) = (event.time_ns, event.name());
        let kind = if name.starts_with("sys_exit_") { "sys_exit" } else { name };
        if let Some(at) = EVENTS.iter().position(|one| *one == kind) {
            self.seen[at] = true;
        }
        let cpu = self.cpus.entry(event.cpu).or_default();
        let net_rx = || event.number("vec") == Some(NET_RX);
        match kind {
            "irq_handler_entry" => cpu.handler = Some((time_ns, event.text("name").unwrap_or_default().into_owned())),
            "irq_handler_exit" => cpu.handler = None,
            "softirq_raise" if net_rx() => {
                let by = cpu.handler.clone();
                cpu.raised.get_or_insert((time_ns, by));
            }
            "softirq_entry" if net_rx() => cpu.softirq = Some((time_ns, cpu.raised.take())),
            "softirq_exit" if net_rx() => (cpu.softirq, cpu.packet) = (None, None),
            "netif_rx" => {
                if let Some(address) = event.number("skbaddr") {
                    let way = Receive { queued_ns: Some(time_ns), ..Receive::default() };
                    self.packets.insert(address, Packet { way, woke: Vec::new(), on_stack: false });
                }
            }
            "napi_gro_receive_entry" | "netif_receive_skb_entry" | "netif_receive_skb" => self.received(event),
            "sched_waking" => self.waking(event),
            "sched_switch" => {
                let task = event.pid_in("next_pid").and_then(|pid| self.tasks.get_mut(&pid));
                if let Some(task) = task.filter(|task| task.woken_ns.is_some()) {
                    task.running_ns.get_or_insert(time_ns);
                }
            }
            "skb_copy_datagram_iovec" => self.copied(event, activity),
            "sys_exit" => {
                let task = event.pid.and_then(|pid| self.tasks.get_mut(&pid));
                for mut copy in task.map(|task| std::mem::take(&mut task.copies)).unwrap_or_default() {
                    copy.returned_ns = Some(time_ns);
                    self.done(copy, asked);
                }
            }
            _ if kind.starts_with("sys_enter") => {
                if let Some(pid) = event.pid {
                    self.tasks.entry(pid).or_default().entered_ns = Some(time_ns);
                }
            }
            _ => {}
        }
    }

    fn received(&mut self, event: &Happening<'_>) {
        let Some(address) = event.number("skbaddr") else { return };
        let cpu = self.cpus.entry(event.cpu).or_default();
        cpu.packet = Some(address);
        let softirq_ns = cpu.softirq.as_ref().map(|(ns, _)| *ns);
        let on_stack = event.name() == "netif_receive_skb";
        // Packets are gathered before they go up the stack: each has two events, and others may lie between them.
        if let Some(packet) = self.packets.get_mut(&address)
            && on_stack
            && !packet.on_stack
            && packet.way.received_ns.is_some()
            && packet.way.softirq_ns == softirq_ns
        {
            packet.on_stack = true;
            return;
        }
        let old = self.packets.remove(&address);
        let mut way = Receive { queued_ns: old.and_then(|old| old.way.queued_ns), ..Receive::default() };
        way.device = event.text("name").map(|name| name.into_owned());
        way.received_ns = Some(event.time_ns);
        if let Some((softirq_ns, raised)) = &cpu.softirq {
            way.softirq_ns = Some(*softirq_ns);
            // NET_RX may have been asked for by packets before this one was queued.
            if let Some((raised_ns, handler)) =
                raised.as_ref().filter(|(ns, _)| way.queued_ns.is_none_or(|queued_ns| queued_ns <= *ns))
            {
                way.raised_ns = Some(*raised_ns);
                if let Some((interrupt_ns, name)) = handler.as_ref().filter(|_| way.queued_ns.is_none()) {
                    (way.interrupt_ns, way.handler) = (Some(*interrupt_ns), Some(name.clone()));
                }
            }
        }
        self.packets.insert(address, Packet { way, woke: Vec::new(), on_stack });
    }

    fn waking(&mut self, event: &Happening<'_>) {
        let Some(pid) = event.pid_in("pid") else { return };
        let task = self.tasks.entry(pid).or_default();
        (task.woken_ns, task.running_ns) = (Some(event.time_ns), None);
        let packet = self.cpus.get(&event.cpu).and_then(|cpu| cpu.packet);
        if let Some(packet) = packet.and_then(|address| self.packets.get_mut(&address)) {
            packet.woke.push((pid, event.time_ns));
        }
    }

    fn copied(&mut self, event: &Happening<'_>, activity: &Activity) {
        let Some(pid) = event.pid else { return };
        let packet = event.number("skbaddr").and_then(|address| self.packets.get(&address));
        let task = self.tasks.entry(pid).or_default();
        let woken_ns = match packet {
            Some(packet) => packet.woke.iter().rev().find(|(woken, _)| *woken == pid).map(|(_, ns)| *ns),
            // Events of the interrupt were not recorded: a wakeup during the system call was for what it copies.
            None => task.woken_ns.filter(|woken_ns| task.entered_ns.is_some_and(|entered_ns| entered_ns <= *woken_ns)),
        };
        let mut copy = packet.map(|packet| packet.way.clone()).unwrap_or_default();
        copy.pid = pid;
        copy.comm = activity.comm(pid).map(str::to_owned);
        copy.cpu = event.cpu;
        copy.bytes = event.number("len").unwrap_or_default();
        copy.woken_ns = woken_ns;
        copy.running_ns = task.running_ns.filter(|_| woken_ns.is_some() && woken_ns == task.woken_ns);
        copy.copied_ns = Some(event.time_ns);
        task.copies.push(copy);
    }

    fn done(&mut self, receive: Receive, asked: &Asked) {
        if !asked.keeps(Some(receive.pid), receive.comm.as_deref(), Some(receive.cpu)) {
            return;
        }
        self.report.count += 1;
        for (from, to, ns) in receive.hops() {
            self.hops.entry((from, to)).or_default().push(ns);
        }
        self.totals.push(receive.total_ns());
        self.report.receives.push(receive);
        if self.report.receives.len() > 2 * asked.slowest + 1000 {
            keep_worst(&mut self.report.receives, asked.slowest);
        }
    }
}

fn keep_worst(receives: &mut Vec<Receive>, count: usize) {
    receives.sort_by_key(|receive| (std::cmp::Reverse(receive.total_ns()), receive.copied_ns));
    receives.truncate(count);
}

impl Packets {
    /// As text for a terminal.
    pub fn render(&self, out: &mut String) {
        head(out, &format!("Ways of packets to their receivers: {}", self.count));
        not_recorded(out, &self.not_recorded);
        if self.count == 0 {
            return;
        }
        let mut table = Table::new(&["from", "to", ">count", ">p50", ">p90", ">p99", ">max"]);
        let all = Hop { from: "first", to: "last", delays: self.total.clone() };
        for hop in self.hops.iter().chain([&all]) {
            let mut cells = vec![hop.from.to_owned(), hop.to.to_owned(), hop.delays.count.to_string()];
            cells.extend([hop.delays.p50_ns, hop.delays.p90_ns, hop.delays.p99_ns, hop.delays.max_ns].map(time));
            table.row(cells);
        }
        table.render(out);
        if self.given_up > 0 {
            head(out, &format!("  {} packets were given up, as records were lost", self.given_up));
        }
        head(out, "The slowest, each stage with its delay after the stage before");
        let mut table = Table::new(&[
            ">first s",
            "receiver",
            ">bytes",
            "device",
            "handler",
            ">queued",
            ">raised",
            ">softirq",
            ">received",
            ">woken",
            ">running",
            ">copied",
            ">returned",
            ">total",
        ]);
        for receive in &self.receives {
            let first_ns = receive.stages().into_iter().find_map(|(_, ns)| ns);
            let hops = receive.hops();
            let text = |name: &Option<String>| name.clone().unwrap_or_else(|| "-".to_owned());
            let receiver = task(receive.comm.as_deref(), Some(receive.pid));
            let mut cells = vec![
                moment(first_ns),
                receiver,
                receive.bytes.to_string(),
                text(&receive.device),
                text(&receive.handler),
            ];
            for at in 1..receive.stages().len() {
                cells.push(time_or_dash(hops.iter().find(|(_, to, _)| *to == at).map(|(_, _, ns)| *ns)));
            }
            cells.push(time(receive.total_ns()));
            table.row(cells);
        }
        table.render(out);
    }
}
