//! TCP sockets with what the kernel knows of their connections (`struct tcp_info`) and the process that has them, as
//! `ss -tiemp` shows them.

use super::sock_diag::{self, Socket};
use super::{Rows, Source, number, text};
use netlink_packet_sock_diag::inet::nlas::TcpInfo;
use netlink_packet_sock_diag::inet::{ExtensionFlags, StateFlags};
use procfs::process::{FDTarget, Process, all_processes};
use std::collections::HashMap;
use std::io;

pub const SOURCE: Source = Source {
    name: "tcp_sockets",
    summary: "TCP sockets with tcp_info and their owners, as `ss -tiemp` shows them; times in ns",
    columns: &[
        text("local", 48),
        number("local_port"),
        text("remote", 48),
        number("remote_port"),
        number("state"),
        number("uid"),
        number("inode"),
        number("pid"),
        text("comm", 16),
        number("receive_queue"),
        number("send_queue"),
        text("congestion", 16),
        number("rtt"),
        number("rtt_variance"),
        number("min_rtt"),
        number("rto"),
        number("window"),
        number("mss"),
        number("path_mtu"),
        number("unacked"),
        number("lost"),
        number("retransmits"),
        number("bytes_acked"),
        number("bytes_received"),
        number("delivery_rate"),
        number("app_limited"),
        number("busy"),
        number("receiver_limited"),
        number("buffer_limited"),
        number("receive_memory"),
        number("send_memory"),
    ],
    open: || Box::new(read),
};

fn read(rows: &mut Rows) -> io::Result<()> {
    let extensions = ExtensionFlags::INFO | ExtensionFlags::CONG | ExtensionFlags::SKMEMINFO;
    let mut sockets = Vec::new();
    sock_diag::each(StateFlags::all(), extensions, &mut |socket| sockets.push(socket))?;
    let owners = owners()?;
    for socket in sockets {
        push(rows, &socket, owners.get(&u64::from(socket.header.inode)));
    }
    Ok(())
}

/// The first process that has each socket, by the socket's inode number. Without the right to look into other processes
/// (`CAP_SYS_PTRACE`) theirs are absent.
fn owners() -> io::Result<HashMap<u64, (i32, String)>> {
    let mut owners = HashMap::new();
    // Processes may end while they are looked at.
    for process in all_processes().map_err(super::io_error)?.flatten() {
        let inodes: Vec<u64> = socket_inodes(&process).collect();
        if let (false, Ok(stat)) = (inodes.is_empty(), process.stat()) {
            inodes.into_iter().for_each(|inode| _ = owners.entry(inode).or_insert((stat.pid, stat.comm.clone())));
        }
    }
    Ok(owners)
}

fn socket_inodes(process: &Process) -> impl Iterator<Item = u64> + use<> {
    process.fd().into_iter().flatten().flatten().filter_map(|file| match file.target {
        FDTarget::Socket(inode) => Some(inode),
        _ => None,
    })
}

fn push(rows: &mut Rows, socket: &Socket, owner: Option<&(i32, String)>) {
    let header = &socket.header;
    let (local, remote) = (header.socket_id.source_address, header.socket_id.destination_address);
    let info = |value: fn(&TcpInfo) -> u64| socket.info.as_ref().map_or(0, value);
    let memory = |at: usize| socket.memory.get(at).map_or(0, |bytes| u64::from(*bytes));
    // The kernel counts microseconds.
    let time = |value: fn(&TcpInfo) -> u64| info(value) * 1000;
    rows.push(&[
        local.to_string().as_str().into(),
        header.socket_id.source_port.into(),
        remote.to_string().as_str().into(),
        header.socket_id.destination_port.into(),
        header.state.into(),
        header.uid.into(),
        header.inode.into(),
        owner.map_or(0, |owner| owner.0 as u64).into(),
        owner.map_or("", |owner| &owner.1).into(),
        header.recv_queue.into(),
        header.send_queue.into(),
        socket.congestion.as_str().into(),
        time(|info| info.rtt.into()).into(),
        time(|info| info.rttvar.into()).into(),
        // The kernel's own sign of none yet is all ones.
        time(|info| if info.min_rtt == u32::MAX { 0 } else { info.min_rtt.into() }).into(),
        time(|info| info.rto.into()).into(),
        info(|info| info.snd_cwnd.into()).into(),
        info(|info| info.snd_mss.into()).into(),
        info(|info| info.pmtu.into()).into(),
        info(|info| info.unacked.into()).into(),
        info(|info| info.lost.into()).into(),
        info(|info| info.total_retrans.into()).into(),
        info(|info| info.bytes_acked).into(),
        info(|info| info.bytes_received).into(),
        info(|info| info.delivery_rate).into(),
        info(|info| u64::from(info.delivery_rate_app_limited & 1)).into(),
        time(|info| info.busy_time).into(),
        time(|info| info.rwnd_limited).into(),
        time(|info| info.sndbuf_limited).into(),
        memory(0).into(),
        memory(2).into(),
    ]);
}
