//! What the agent polls against the programs and files that show the same, with a load that moves the number.

mod support;

use nix::fcntl::OFlag;
use nix::mount::{MsFlags, mount};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use support::agent::{Agent, Setup};
use support::disk::Disk;
use support::groups::Group;
use support::metrics::Metrics;
use support::netns::Netns;
use support::{Agreement, Folder, load, not_asked_for, not_run, output, wait_for, witnesses};

const LIMIT: Duration = Duration::from_secs(20);

/// Starts these shipped probes, in files of the library, with a reading every 200 ms in place of their own interval.
fn often(files: &[&str], probes: &str, under: &[&str]) -> Agent {
    let texts: Vec<(String, String)> = files.iter().map(|file| (stem(file), hurried(file))).collect();
    let own: Vec<(&str, &str)> = texts.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    Setup { probes: &own, arguments: &["--only", probes], under, ..Setup::default() }.start()
}

fn stem(file: &str) -> String {
    Path::new(file).file_name().unwrap().to_str().unwrap().to_owned()
}

fn hurried(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../probes/{file}.yaml"));
    let text = std::fs::read_to_string(path).unwrap();
    let line = |line: &str| match line.split_once(", every: ") {
        Some((start, _)) if line.starts_with("poll:") => format!("{start}, every: 200ms }}\n"),
        _ => format!("{line}\n"),
    };
    text.lines().map(line).collect()
}

/// The first scrape in which a number is at least so much.
#[track_caller]
fn at_least(agent: &Agent, name: &str, labels: &[(&str, &str)], least: f64) -> (Metrics, f64) {
    wait_for(&format!("{name} {labels:?} of {least}"), LIMIT, || {
        let metrics = agent.scrape();
        let now = metrics.sum(name, labels);
        (now >= least).then_some((metrics, now))
    })
}

fn json(command: &mut Command) -> Value {
    let text = output(command);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn file(path: &str) -> String {
    std::fs::read_to_string(path).unwrap()
}

/// The number after a name in a file of lines.
fn number(path: &str, name: &str) -> f64 {
    let text = file(path);
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(name));
    line.unwrap_or_else(|| panic!("no {name} in {path}")).split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// A pair of namespaces with nothing in them but what the test sends, so that all numbers are equal.
#[test]
#[ignore = "needs root"]
fn root_polled_networks_are_those_of_ip_and_tc() {
    if !witnesses("root_polled_networks_are_those_of_ip_and_tc", &["ip", "tc", "ss"]) {
        return;
    }
    let (a, b) = Netns::pair();
    let without_netem = a.delay_leaving(20).err();
    a.ip(&["route", "add", "192.0.2.0/24", "via", "10.99.0.2", "metric", "77"]);
    let listener = b.spawn("kst-listen", || TcpListener::bind("10.99.0.2:0").unwrap()).join().unwrap();
    let port = listener.local_addr().unwrap().port();
    let receiver = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut bytes = vec![0; 100_000];
        stream.read_exact(&mut bytes).unwrap();
        stream.write_all(b"done").unwrap();
        stream
    });
    let name = a.name.clone();
    // Mbit/s; sysfs shows the namespace to what `ip netns exec` started.
    let speed: f64 = output(a.command("cat").arg("/sys/class/net/eth0/speed")).trim().parse().unwrap();
    let inside = move || {
        let files = [
            "network/interfaces",
            "network/qdisc",
            "network/routes",
            "network/network_drivers",
            "network/tcp_connections",
        ];
        let probes =
            "interfaces,qdisc_counters,routes,network_drivers,network_driver_counters,tcp_connections,tcp_listeners";
        let agent = often(&files, probes, &["ip", "netns", "exec", &name]);
        let mut stream = TcpStream::connect(("10.99.0.2", port)).unwrap();
        stream.write_all(&[7; 100_000]).unwrap();
        stream.read_exact(&mut [0; 4]).unwrap();
        let socket = UdpSocket::bind("10.99.0.1:0").unwrap();
        (0..500).for_each(|_| assert_eq!(socket.send_to(&[1; 1000], "10.99.0.2:9").unwrap(), 1000));

        let eth0 = [("interface", "eth0")];
        at_least(&agent, "kstrobe_interface_sent_packets_total", &eth0, 500.0);
        // Packets that the delay holds back, answers to them and the protocol's own may follow: until two looks are the same.
        let (metrics, links) = wait_for("a quiet network", LIMIT, || {
            let before = json(Command::new("ip").args(["-s", "-j", "link", "show", "eth0"]));
            std::thread::sleep(Duration::from_millis(500));
            let metrics = agent.scrape();
            let after = json(Command::new("ip").args(["-s", "-j", "link", "show", "eth0"]));
            (before == after).then_some((metrics, after))
        });
        let link = &links[0];
        for (ours, [direction, field]) in [
            ("interface_sent_bytes_total", ["tx", "bytes"]),
            ("interface_sent_packets_total", ["tx", "packets"]),
            ("interface_received_bytes_total", ["rx", "bytes"]),
            ("interface_received_packets_total", ["rx", "packets"]),
            ("interface_receive_errors_total", ["rx", "errors"]),
            ("interface_receive_drops_total", ["rx", "dropped"]),
            ("interface_send_drops_total", ["tx", "dropped"]),
        ] {
            let theirs = link["stats64"][direction][field].as_f64().unwrap();
            let value = metrics.sum(&format!("kstrobe_{ours}"), &eth0);
            assert_eq!(value, theirs, "{ours}: {link}");
            Agreement::new("interfaces", ours, "ip", value, theirs).record();
        }
        let state = link["operstate"].as_str().unwrap().to_lowercase();
        let labels = [("interface", "eth0"), ("state", &state), ("qdisc", link["qdisc"].as_str().unwrap())];
        assert_eq!(metrics.sum("kstrobe_interface_mtu_bytes", &labels), link["mtu"].as_f64().unwrap());
        assert_eq!(metrics.sum("kstrobe_interface_speed_bytes", &eth0), speed * 1e6 / 8.0);

        if without_netem.is_none() {
            let qdiscs = json(Command::new("tc").args(["-s", "-j", "qdisc", "show", "dev", "eth0"]));
            let netem = qdiscs.as_array().unwrap().iter().find(|qdisc| qdisc["kind"] == "netem").unwrap();
            let labels = [
                ("interface", "eth0"),
                ("kind", "netem"),
                ("parent", "root"),
                ("handle", netem["handle"].as_str().unwrap()),
            ];
            for (ours, field) in [
                ("qdisc_sent_bytes_total", "bytes"),
                ("qdisc_sent_packets_total", "packets"),
                ("qdisc_drops_total", "drops"),
                ("qdisc_backlog_packets", "qlen"),
            ] {
                let (value, theirs) =
                    (metrics.sum(&format!("kstrobe_{ours}"), &labels), netem[field].as_f64().unwrap());
                assert_eq!(value, theirs, "{netem}");
                Agreement::new("qdisc_counters", ours, "tc", value, theirs).record();
            }
            let rtt = metrics.sum("kstrobe_tcp_connection_rtt_seconds", &[("remote", "10.99.0.2")]);
            assert!((0.02..1.0).contains(&rtt), "{rtt} s over a delay of 20 ms");
        }

        let route =
            [("destination", "192.0.2.0/24"), ("gateway", "10.99.0.2"), ("interface", "eth0"), ("table", "254")];
        assert_eq!(metrics.sum("kstrobe_route_metric", &route), 77.0);
        let routes = json(Command::new("ip").args(["-j", "-4", "route"])).as_array().unwrap().len();
        let main: Vec<_> = metrics.series("kstrobe_route_metric", &[("table", "254")]).collect();
        let of_4 = main.iter().filter(|(labels, _)| labels["destination"].contains('.')).count();
        assert_eq!(of_4, routes, "{main:?}");
        Agreement::new("routes", "route_metric", "ip", of_4 as f64, routes as f64).record();

        let driver = [("interface", "eth0"), ("driver", "veth")];
        assert_eq!(metrics.sum("kstrobe_network_driver_info", &driver), 1.0);
        // A cable's end knows the number of its other end.
        let peer = [("interface", "eth0"), ("name", "peer_ifindex")];
        let other = link["link_index"].as_f64().unwrap();
        let value = metrics.sum("kstrobe_network_driver_events_total", &peer);
        assert_eq!(value, other);
        Agreement::new("network_driver_counters", "network_driver_events_total", "ip", value, other).record();

        let local = stream.local_addr().unwrap().port().to_string();
        let comm = std::env::current_exe().unwrap();
        let comm: String = comm.file_name().unwrap().to_str().unwrap().chars().take(15).collect();
        let connection = [("local_port", local.as_str()), ("comm", &comm)];
        let acknowledged = metrics.sum("kstrobe_tcp_connection_acknowledged_bytes_total", &connection);
        // The kernel counts the SYN as a byte.
        assert!((100_000.0..=100_001.0).contains(&acknowledged), "{acknowledged}");
        assert_eq!(metrics.sum("kstrobe_tcp_connection_received_bytes_total", &connection), 4.0);
        let ss = output(Command::new("ss").args(["-tino", "state", "established", "sport", "=", &format!(":{local}")]));
        let window = ss.split_whitespace().find_map(|word| word.strip_prefix("cwnd:")).unwrap().parse::<f64>().unwrap();
        let value = metrics.sum("kstrobe_tcp_connection_window_segments", &connection);
        assert_eq!(value, window, "{ss}");
        Agreement::new("tcp_connections", "tcp_connection_window_segments", "ss", value, window).record();

        let listens = agent.address().port().to_string();
        let labels = [("port", listens.as_str()), ("comm", "kstrobe"), ("uid", "0")];
        assert!(metrics.has("kstrobe_tcp_listener_queue_depth", &labels), "{listens}");
        agent.stop();
    };
    a.spawn("kst-polled", inside).join().unwrap();
    receiver.join().unwrap();
}

#[test]
#[ignore = "needs root"]
fn root_polled_cpu_times_are_those_of_procfs() {
    let agent = often(
        &["scheduler/cpu_times", "scheduler/pressure", "interrupts/interrupt_counts"],
        "cpu_times,load,pressure,interrupt_counts,softirq_counts",
        &[],
    );
    // Ticks of the kernel's clock, 100 a second, by column: user, nice, .., 8 guest, guest_nice.
    let cpu = |column: usize| {
        let text = file("/proc/stat");
        text.lines().next().unwrap().split_whitespace().nth(1 + column).unwrap().parse::<f64>().unwrap() / 100.0
    };
    // The load may be run with a niceness; times of guests are in both columns again.
    let user = || cpu(0) + cpu(1) - cpu(8) - cpu(9);
    let switches = || number("/proc/stat", "ctxt");
    let softirqs = || -> f64 {
        let text = file("/proc/softirqs");
        let line = text.lines().find(|line| line.trim().starts_with("NET_RX:")).unwrap().to_owned();
        line.split_whitespace().skip(1).map(|count| count.parse::<f64>().unwrap()).sum()
    };
    let stalled = || {
        let text = std::fs::read_to_string("/proc/pressure/cpu").ok()?;
        Some(text.lines().next()?.split("total=").nth(1)?.parse::<f64>().ok()? / 1e6)
    };
    let before = (user(), switches(), softirqs(), stalled());
    let until = Instant::now() + Duration::from_secs(1);
    std::thread::scope(|scope| {
        // More than there are CPUs, so that some wait.
        for _ in 0..std::thread::available_parallelism().unwrap().get() + 1 {
            scope.spawn(|| while Instant::now() < until {});
        }
    });
    load::pselect_sleeps(200, Duration::from_micros(100));
    load::datagrams(500);

    let name = "kstrobe_cpu_seconds_total";
    let (metrics, ours) = wait_for("time in user mode", LIMIT, || {
        let metrics = agent.scrape();
        let ours = metrics.sum(name, &[("mode", "user")]) + metrics.sum(name, &[("mode", "nice")]);
        (ours >= before.0 + 0.9).then_some((metrics, ours))
    });
    assert!(ours <= user() + 0.01, "{ours}, but the kernel has {}", user());
    let cpus: BTreeSet<_> = metrics.series(name, &[]).map(|(labels, _)| labels["cpu"].clone()).collect();
    assert_eq!(
        cpus.len(),
        file("/proc/stat").lines().filter(|line| line.starts_with("cpu") && !line.starts_with("cpu ")).count()
    );

    let (_, ours) = at_least(&agent, "kstrobe_load_context_switches_total", &[], before.1 + 200.0);
    assert!(ours <= switches());
    let (_, ours) = at_least(&agent, "kstrobe_softirqs_total", &[("softirq", "net_rx")], before.2 + 1.0);
    assert!(ours <= softirqs());
    let words = file("/proc/loadavg");
    let load = words.split(' ').nth(2).unwrap().parse::<f64>().unwrap();
    let ours = agent.scrape().sum("kstrobe_load15_percent", &[]) / 100.0;
    assert!((ours - load).abs() <= 0.05, "{ours}, {words}");
    match before.3 {
        Some(before) => {
            let labels = [("resource", "cpu"), ("kind", "some")];
            let (_, ours) = at_least(&agent, "kstrobe_pressure_seconds_total", &labels, before + 0.3);
            assert!(ours <= stalled().unwrap() + 1e-6);
        }
        None => not_run("root_polled_cpu_times_are_those_of_procfs", "this kernel records no pressure"),
    }
    // The kernel's own sum of all interrupts, to which /proc/interrupts adds those that a device has raised in vain.
    let all = || file("/proc/interrupts").lines().skip(1).flat_map(counts).sum::<f64>();
    let least = all();
    let (_, ours) = at_least(&agent, "kstrobe_interrupts_total", &[], least);
    assert!(ours <= all());
    agent.stop();
}

/// The numbers of a line of /proc/interrupts, before the words for people.
fn counts(line: &str) -> Vec<f64> {
    let cpus = file("/proc/interrupts").lines().next().unwrap().split_whitespace().count();
    line.split_whitespace().skip(1).take(cpus).map_while(|word| word.parse().ok()).collect()
}

#[test]
#[ignore = "needs root"]
fn root_polled_memory_is_that_of_free_and_procfs() {
    if !witnesses("root_polled_memory_is_that_of_free_and_procfs", &["free"]) {
        return;
    }
    const SHARED: usize = 64 << 20;
    const TOUCHED: usize = 3000;
    const FILES: usize = 5000;
    let agent = often(&["memory/memory", "memory/slab"], "memory,vmstat,slabs", &[]);
    // total used free shared buff/cache available
    let free = |column: usize| {
        let text = output(Command::new("free").arg("-b"));
        text.lines().nth(1).unwrap().split_whitespace().nth(column).unwrap().parse::<f64>().unwrap()
    };
    let faults = || number("/proc/vmstat", "pgfault");
    // Without a folder of its own, which other tests use too.
    let folder = Folder::new();
    assert!(mount(Some("none"), &folder.0, Some("tmpfs"), MsFlags::empty(), Some("size=128m")).is_ok());
    let before = (free(4), faults(), number("/proc/slabinfo", "dentry"));
    std::fs::write(folder.0.join("shared"), vec![1; SHARED]).unwrap();
    (0..FILES).for_each(|n| drop(File::create(folder.0.join(n.to_string())).unwrap()));
    assert!(load::touch_pages(TOUCHED) >= 0);

    let name = "kstrobe_memory_bytes";
    let (metrics, _) = at_least(&agent, name, &[("use", "shared")], before.0 + (SHARED as f64) * 0.9);
    assert_eq!(metrics.sum(name, &[("use", "total")]), free(1));
    Agreement::new("memory", "memory_bytes", "free", metrics.sum(name, &[("use", "total")]), free(1)).record();
    let (ours, theirs) = (metrics.sum(name, &[("use", "available")]), free(6));
    assert!((ours - theirs).abs() <= 0.1 * theirs, "{ours}, but free shows {theirs}");
    let (_, ours) = at_least(&agent, "kstrobe_vmstat_events_total", &[("name", "pgfault")], before.1 + TOUCHED as f64);
    assert!(ours <= faults());
    let (_, objects) = at_least(&agent, "kstrobe_slab_objects", &[("cache", "dentry")], before.2 + FILES as f64 * 0.9);
    let theirs = number("/proc/slabinfo", "dentry");
    assert!((objects - theirs).abs() <= 0.1 * theirs, "{objects} of {theirs}");
    Agreement::new("slabs", "slab_objects", "/proc/slabinfo", objects, theirs).record();
    agent.stop();
    nix::mount::umount2(&folder.0, nix::mount::MntFlags::MNT_DETACH).unwrap();
}

#[test]
#[ignore = "needs root"]
fn root_polled_disks_are_those_of_sysfs() {
    const REQUESTS: usize = 64;
    let disk = Disk::new();
    let agent = often(&["block/disks"], "disks", &[]);
    // reads, merges, sectors, ms; writes, merges, sectors, ms; in flight, busy, queued
    let sysfs = |column: usize| {
        let text = file(&format!("/sys/block/{}/stat", disk.name));
        text.split_whitespace().nth(column).unwrap().parse::<f64>().unwrap()
    };
    let mut options = std::fs::OpenOptions::new();
    let mut file =
        options.write(true).custom_flags((OFlag::O_DIRECT | OFlag::O_SYNC).bits()).open(disk.device()).unwrap();
    // Aligned as direct writes must be.
    let memory = vec![0u8; 8192];
    let page = &memory[memory.as_ptr().align_offset(4096)..][..4096];
    let before = sysfs(4);
    (0..REQUESTS).for_each(|_| file.write_all(page).unwrap());
    let labels = [("disk", disk.name.as_str())];
    at_least(&agent, "kstrobe_disk_writes_total", &labels, before + REQUESTS as f64);
    let metrics = wait_for("a quiet disk", LIMIT, || {
        let writes = sysfs(4);
        std::thread::sleep(Duration::from_millis(500));
        let metrics = agent.scrape();
        (sysfs(4) == writes).then_some(metrics)
    });
    for (name, column, unit) in [
        ("disk_reads_total", 0, 1.0),
        ("disk_writes_total", 4, 1.0),
        ("disk_read_bytes_total", 2, 512.0),
        ("disk_written_bytes_total", 6, 512.0),
        ("disk_writes_merged_total", 5, 1.0),
        ("disk_write_seconds_total", 7, 0.001),
        ("disk_busy_seconds_total", 9, 0.001),
        ("disk_in_flight", 8, 1.0),
    ] {
        let (ours, theirs) = (metrics.sum(&format!("kstrobe_{name}"), &labels), sysfs(column) * unit);
        assert!((ours - theirs).abs() < 1e-6, "{name}: {ours}, but sysfs has {theirs}");
        Agreement::new("disks", name, "/sys/block", ours, theirs).record();
    }
    agent.stop();
}

#[test]
#[ignore = "needs root"]
fn root_polled_file_systems_are_those_of_df() {
    if !witnesses("root_polled_file_systems_are_those_of_df", &["df"]) {
        return;
    }
    let folder = Folder::new();
    let place = folder.0.to_str().unwrap();
    // A name that no other mount has, which the label carries whole.
    mount(Some("kst-disk"), place, Some("tmpfs"), MsFlags::MS_NOSUID, Some("size=8m,nr_inodes=100")).unwrap();
    let agent = often(&["filesystem/disk_space"], "disk_space,mount_points", &[]);
    let labels = [("device", "kst-disk"), ("type", "tmpfs"), ("mount", place)];
    at_least(&agent, "kstrobe_filesystem_size_bytes", &labels, 1.0);
    std::fs::write(folder.0.join("half"), vec![1; 3 << 20]).unwrap();
    let metrics = wait_for("less space", LIMIT, || {
        let metrics = agent.scrape();
        (metrics.sum("kstrobe_filesystem_free_bytes", &labels) <= (5 << 20) as f64).then_some(metrics)
    });
    let df = output(Command::new("df").args(["-B1", "--output=size,avail,itotal,iavail", place]));
    let theirs: Vec<f64> = df.lines().nth(1).unwrap().split_whitespace().map(|n| n.parse().unwrap()).collect();
    let ours = ["size_bytes", "available_bytes", "inodes", "free_inodes"]
        .map(|name| metrics.sum(&format!("kstrobe_filesystem_{name}"), &labels));
    assert_eq!(ours.as_slice(), theirs, "{df}");
    Agreement::new("disk_space", "filesystem_available_bytes", "df", ours[1], theirs[1]).record();
    assert_eq!(metrics.sum("kstrobe_filesystem_read_only", &labels), 0.0);
    // Process 1 may be in another namespace of mounts than this test.
    if file("/proc/1/mountinfo").contains(place) {
        let here = [("device", "kst-disk"), ("mount", place)];
        let mounted: Vec<_> = metrics.series("kstrobe_mount_info", &here).collect();
        assert_eq!(mounted.len(), 1, "{mounted:?}");
        let options = &mounted[0].0["options"];
        assert!(options.contains("nosuid") && options.contains("size=8192k"), "{options}");
    } else {
        let reason = "mounts are those of process 1, which does not see this test's";
        not_asked_for("root_polled_file_systems_are_those_of_df", reason);
    }

    let flags = MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    mount(Some("kst-disk"), place, Some("tmpfs"), flags, None::<&str>).unwrap();
    at_least(&agent, "kstrobe_filesystem_read_only", &labels, 1.0);
    agent.stop();
    nix::mount::umount2(&folder.0, nix::mount::MntFlags::MNT_DETACH).unwrap();
}

#[test]
#[ignore = "needs root"]
fn root_polled_control_groups_are_those_of_their_files() {
    let path = format!("kstrobe-test-{}-polled", std::process::id());
    let group = Group::new(&path);
    let agent = often(&["cgroups/cgroup_usage"], "cgroup_usage", &[]);
    let shell = "sh -c 'i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done'";
    assert!(group.spawn(shell).wait().unwrap().success());
    let used = number(group.folder().join("cpu.stat").to_str().unwrap(), "usage_usec") / 1e6;
    assert!(used > 0.02, "{used} s");
    let place = format!("/{path}");
    let labels = [("path", place.as_str())];
    // The microseconds that the kernel has not added yet when the process ends.
    let (_, ours) = at_least(&agent, "kstrobe_cgroup_usage_cpu_seconds_total", &labels, used);
    assert!(ours <= number(group.folder().join("cpu.stat").to_str().unwrap(), "usage_usec") / 1e6);
    agent.stop();
}

/// A program of the agent's own, whose runs the load makes, is one of all.
#[test]
#[ignore = "needs root"]
fn root_polled_bpf_programs_are_those_of_bpftool() {
    if !witnesses("root_polled_bpf_programs_are_those_of_bpftool", &["bpftool"]) {
        return;
    }
    const CALLS: u32 = 2000;
    let own = "probe: calls\nsummary: Calls of getppid.\nat: rawtracepoint:sched_process_fork\nmetrics: { forks_seen_total: { type: counter } }\n";
    let text = hurried("scheduler/bpf_programs");
    let probes = [("calls", own), ("bpf_programs", text.as_str())];
    let agent = Setup { probes: &probes, arguments: &["--only", "calls,bpf_programs"], ..Setup::default() }.start();
    let programs = || {
        let all = json(Command::new("bpftool").args(["-j", "prog", "show"]));
        all.as_array().unwrap().clone()
    };
    let before: Vec<u64> = programs().iter().map(|program| program["id"].as_u64().unwrap()).collect();
    let at_start = agent.scrape();
    (0..CALLS / 100).for_each(|_| {
        std::thread::scope(|scope| (0..100).for_each(|_| drop(scope.spawn(|| ()))));
    });
    let metrics = wait_for("runs", LIMIT, || {
        let metrics = agent.scrape();
        let grown =
            metrics.sum("kstrobe_bpf_program_runs_total", &[]) - at_start.sum("kstrobe_bpf_program_runs_total", &[]);
        (grown >= f64::from(CALLS)).then_some(metrics)
    });
    let mut compared = 0;
    for program in programs().iter().filter(|program| before.contains(&program["id"].as_u64().unwrap())) {
        let id = program["id"].to_string();
        let labels = [("id", id.as_str())];
        let runs = metrics.sum("kstrobe_bpf_program_runs_total", &labels);
        let theirs = program["run_cnt"].as_f64().unwrap_or(0.0);
        assert!(runs <= theirs, "{id}: {runs}, but bpftool shows {theirs}");
        if runs > f64::from(CALLS) / 2.0 {
            compared += 1;
            assert!(metrics.sum("kstrobe_bpf_program_run_seconds_total", &labels) > 0.0);
            let memory = metrics.sum("kstrobe_bpf_program_memory_bytes", &labels);
            let theirs = program["bytes_memlock"].as_f64().unwrap();
            assert_eq!(memory, theirs);
            Agreement::new("bpf_programs", "bpf_program_memory_bytes", "bpftool", memory, theirs).record();
        }
    }
    assert!(compared >= 1, "{:?}", metrics.series("kstrobe_bpf_program_runs_total", &[]).collect::<Vec<_>>());
    agent.stop();
}

#[test]
#[ignore = "needs root"]
fn root_polled_threads_are_in_the_calls_that_they_wait_in() {
    let agent = often(&["syscalls/thread_waits"], "thread_waits", &[]);
    let (mut reader, writer) = std::io::pipe().unwrap();
    let fd = std::os::fd::AsRawFd::as_raw_fd(&reader).to_string();
    let waiting = std::thread::Builder::new().name("kst-waits".to_owned());
    let waiting = waiting.spawn(move || reader.read(&mut [0; 1]).unwrap()).unwrap();
    let pid = std::process::id().to_string();
    let labels = [("comm", "kst-waits"), ("pid", &pid), ("syscall", "read"), ("argument", &fd)];
    let name = "kstrobe_thread_waiting_seconds";
    let (metrics, waited) = at_least(&agent, name, &labels, 1.0);
    assert!(waited < 15.0, "{waited} s");
    // Where the kernel names functions to root, the one that it sleeps in.
    let functions: Vec<_> = metrics.series(name, &labels).map(|(labels, _)| labels["function"].clone()).collect();
    assert!(functions.iter().all(|function| function.is_empty() || function.contains("pipe_read")), "{functions:?}");
    drop(writer);
    assert_eq!(waiting.join().unwrap(), 0);
    wait_for("an end of the wait", LIMIT, || (!agent.scrape().has(name, &labels)).then_some(()));
    agent.stop();
}
