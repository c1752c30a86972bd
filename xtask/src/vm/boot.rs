//! A guest's run in QEMU: software emulation, or the processor's own virtualisation where it works.

use super::kernel::Kernel;
use crate::arch::Arch;
use anyhow::{Context, Result, bail};
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The emulator.
pub fn qemu(arch: Arch) -> &'static str {
    match arch {
        Arch::Amd64 => "qemu-system-x86_64",
        Arch::Arm64 => "qemu-system-aarch64",
    }
}

/// The machine, and the device of the kernel's console.
fn machine(arch: Arch) -> (&'static [&'static str], &'static str) {
    match arch {
        Arch::Amd64 => (&["-M", "q35", "-cpu", "max"], "ttyS0"),
        // Signed pointers by the architecture's own algorithm take the emulator several times longer.
        Arch::Arm64 => (&["-M", "virt,gic-version=3", "-cpu", "max,pauth-impdef=on"], "ttyAMA0"),
    }
}

/// A disk of the guest that holds nothing; NVMe is built into all of the lab's kernels.
pub const SPARE_DISK: &str = "nvme0n1";
const SPARE_DISK_BYTES: u64 = 64 << 20;
/// So that requests take a known time: 5 ms when they come one after another.
pub const SPARE_DISK_IOPS: u32 = 200;

/// How a guest runs.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// After which it is killed.
    pub limit: Duration,
    /// The emulator runs the guest's CPUs in turn, in one thread. In parallel it can keep a translation of an instruction that another CPU
    /// has just patched: a CPU that runs so much code of BPF while jumps in it change that it meets this dies of a breakpoint (`int3`) that
    /// is no longer in memory.
    pub in_turn: bool,
}

/// What a guest left.
pub struct Ended {
    /// Exit status of its command.
    pub status: i32,
    /// Files of its `/out`.
    pub files: Vec<(String, Vec<u8>)>,
}

/// Boots a kernel with this archive as its file system and waits for its command's end. The command's output goes to ours.
pub fn boot(kernel: &Kernel, archive: &[u8], work: &Path, settings: Settings) -> Result<Ended> {
    let at = |name: &str| work.join(name);
    for old in ["console", "status", "out"] {
        File::create(at(old))?;
    }
    fs::write(at("initrd"), archive)?;
    // A guest that hurts itself must end, not hang; but to patch every function of the kernel at once takes an emulated CPU of
    // a busy machine longer than the 20 s after which the kernel calls it stuck. Without `tsc=reliable` it distrusts the emulated clock, and tracefs falls
    // back to a coarse one. With multipath, requests belong to a hidden disk under the spare one.
    let (machine, console) = machine(kernel.arch);
    let parameters = format!(
        "console={console} panic=-1 oops=panic softlockup_panic=1 watchdog_thresh=60 tsc=reliable nvme_core.multipath=0 quiet"
    );
    let mut command = Command::new(qemu(kernel.arch));
    command
        .args(["-accel", accelerator(kernel.arch, settings.in_turn)])
        .args(machine)
        .args(["-smp", "2", "-m", "2G"])
        .args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"])
        .arg("-kernel")
        .arg(&kernel.image)
        .arg("-initrd")
        .arg(at("initrd"))
        .args(["-append", &parameters]);
    File::create(at("disk"))?.set_len(SPARE_DISK_BYTES)?;
    let disk = format!(
        "file={},format=raw,snapshot=on,if=none,id=spare,throttling.iops-total={SPARE_DISK_IOPS}",
        at("disk").display()
    );
    command.args(["-drive", &disk]).args(["-device", "nvme,drive=spare,serial=spare"]);
    command.args(["-serial", &format!("file:{}", at("console").display())]);
    let ports = ["stdio".into(), format!("file:{}", at("status").display()), format!("file:{}", at("out").display())];
    serial_ports(&mut command, kernel.arch, &ports);
    let complaints = File::create(at("qemu"))?;
    let mut child = command
        .stdin(Stdio::null())
        .stderr(complaints)
        .spawn()
        .with_context(|| format!("starting {}", qemu(kernel.arch)))?;
    let in_time = wait(&mut child, settings.limit)?;
    let status = fs::read_to_string(at("status"))?;
    if let Ok(status) = status.trim().parse() {
        return Ok(Ended { status, files: files(&fs::read(at("out"))?) });
    }
    let shown = |name: &str| -> Result<String> {
        let text = String::from_utf8_lossy(&fs::read(at(name))?).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        Ok(lines[lines.len().saturating_sub(40)..].join("\n"))
    };
    let what = if in_time { "the guest died" } else { "out of time" };
    bail!("{what}; its console:\n{}\n{}", shown("console")?, shown("qemu")?)
}

/// Connects the guest's ttyS1 and those after it. arm64's console is a device of its own kind, so that ttyS0 is left over.
fn serial_ports(command: &mut Command, arch: Arch, ports: &[String]) {
    if arch == Arch::Amd64 {
        for port in ports {
            command.args(["-serial", port]);
        }
        return;
    }
    let mut device = "pci-serial-4x".to_owned();
    for (number, port) in [String::from("null")].iter().chain(ports).enumerate() {
        let (kind, path) = port.split_once(':').unwrap_or((port, ""));
        let rest = match kind {
            "file" => format!(",path={path}"),
            "stdio" => ",signal=off".to_owned(),
            _ => String::new(),
        };
        command.args(["-chardev", &format!("{kind},id=port{number}{rest}")]);
        device += &format!(",chardev{}=port{number}", number + 1);
    }
    command.args(["-device", &device]);
}

fn accelerator(arch: Arch, in_turn: bool) -> &'static str {
    match (is_hardware(arch), in_turn) {
        (true, _) => "kvm",
        (false, false) => "tcg,thread=multi",
        (false, true) => "tcg,thread=single",
    }
}

/// Whether guests run on an emulated processor: slow, and at times late.
pub fn emulates(arch: Arch) -> bool {
    !is_hardware(arch)
}

/// Whether the processor's own virtualisation is there and we may use it. A device file alone is not enough: some machines have
/// one without the processor's part, and guests die in it.
fn is_hardware(arch: Arch) -> bool {
    let flags = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let hardware = flags.split_whitespace().any(|flag| flag == "vmx" || flag == "svm");
    let allowed = || File::options().read(true).write(true).open("/dev/kvm").is_ok();
    arch == Arch::here() && hardware && allowed()
}

/// Waits for the end; kills what takes longer than it may and says false.
fn wait(child: &mut Child, limit: Duration) -> Result<bool> {
    let begin = Instant::now();
    while child.try_wait()?.is_none() {
        if begin.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(true)
}

/// `name size`, a line feed, so many bytes; again and again.
fn files(mut stream: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    while let Some(end) = stream.iter().position(|byte| *byte == b'\n') {
        let header = String::from_utf8_lossy(&stream[..end]).into_owned();
        let Some((name, size)) = header.rsplit_once(' ') else { break };
        let (Ok(size), rest) = (size.parse::<usize>(), &stream[end + 1..]) else { break };
        found.push((name.to_owned(), rest[..size.min(rest.len())].to_vec()));
        stream = &rest[size.min(rest.len())..];
    }
    found
}

#[cfg(test)]
mod tests {
    use super::files;

    #[test]
    fn files_come_back_whole_or_as_far_as_they_came() {
        let stream = b"a 3\nx\nyb c 0\nlast 10\ncut";
        let expected = [("a", &b"x\ny"[..]), ("b c", b""), ("last", b"cut")];
        let expected: Vec<_> = expected.map(|(name, bytes)| (name.to_owned(), bytes.to_vec())).into();
        assert_eq!(files(stream), expected);
        assert!(files(b"garbage").is_empty());
    }
}
