//! Metrics of walks of user stacks by tables.

use super::{UnwindUse, family, single};
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::fmt;

pub(super) fn encode(out: &mut DescriptorEncoder, used: &UnwindUse) -> fmt::Result {
    let walks = used.walks.iter().map(|(outcome, n)| ([("outcome", (*outcome).to_owned())], ConstCounter::new(*n)));
    family(out, "user_stacks", "User stacks of probes that take them, by how the walk by tables ended.", None, walks)?;
    let help = "Processes whose stacks are walked by tables.";
    single(out, "unwind_processes", help, None, ConstGauge::new(used.processes))?;
    single(out, "unwind_files", "Files with tables for walks.", None, ConstGauge::new(used.files))?;
    single(out, "unwind_rows", "Rows of these tables.", None, ConstGauge::new(used.rows))?;
    let help = "Tables of files and processes that had no room.";
    single(out, "unwind_no_room", help, None, ConstCounter::new(used.no_room))
}
