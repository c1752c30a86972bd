//! The rights of the systemd unit, for an agent that systemd does not start.

use std::path::Path;

/// The command under which a program has the rights that this unit gives, and no others.
#[track_caller]
pub fn rights(unit: &Path) -> Vec<String> {
    let unit = std::fs::read_to_string(unit).unwrap();
    let words = |key: &str| unit.lines().find_map(|line| line.strip_prefix(key)).unwrap().split(' ');
    let capabilities: Vec<String> =
        words("AmbientCapabilities=").map(|name| name.replace("CAP_", "+").to_lowercase()).collect();
    let capabilities = format!("-all,{}", capabilities.join(","));
    let bits: Vec<String> = words("SecureBits=").map(|bit| format!("+{}", bit.replace('-', "_"))).collect();
    // Nodes have tracefs mounted; a machine of tests may not.
    let script = "mount -t tracefs tracefs /sys/kernel/tracing; ulimit -l unlimited; exec \"$@\"";
    let mut under =
        vec!["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", "setpriv", "--nnp"];
    for flag in ["--inh-caps", "--ambient-caps", "--bounding-set"] {
        under.extend([flag, &capabilities]);
    }
    let bits = bits.join(",");
    under.extend(["--securebits", &bits]);
    under.into_iter().map(str::to_owned).collect()
}
