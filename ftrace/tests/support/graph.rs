//! Traces of the function_graph tracer, made by hand.

use super::made::{Page, page_format};
use kstrobe_ftrace::format::{EventFormat, Formats, PageFormat};
use kstrobe_ftrace::symbols::Symbols;
use kstrobe_ftrace::trace::{About, Buffer, CpuPages, CpuStats, Trace};
use std::collections::BTreeMap;

const COMMON: &str = "\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
     \tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n\
     \tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n\
     \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
     \tfield:unsigned long func;\toffset:8;\tsize:8;\tsigned:0;\n";
const ENTRY: &str = "\tfield:unsigned long depth;\toffset:16;\tsize:8;\tsigned:0;\n\
     \tfield:unsigned long args[];\toffset:24;\tsize:0;\tsigned:0;\n";
const RETADDR: &str = "\tfield:unsigned long depth;\toffset:16;\tsize:8;\tsigned:0;\n\
     \tfield:unsigned long retaddr;\toffset:24;\tsize:8;\tsigned:0;\n";
const EXIT: &str = "\tfield:int depth;\toffset:16;\tsize:4;\tsigned:1;\n\
     \tfield:unsigned int overrun;\toffset:20;\tsize:4;\tsigned:0;\n\
     \tfield:unsigned long long calltime;\toffset:24;\tsize:8;\tsigned:0;\n\
     \tfield:unsigned long long rettime;\toffset:32;\tsize:8;\tsigned:0;\n";
/// Without the times, with the result.
const NEW_EXIT: &str = "\tfield:int depth;\toffset:16;\tsize:4;\tsigned:1;\n\
     \tfield:unsigned int overrun;\toffset:20;\tsize:4;\tsigned:0;\n\
     \tfield:unsigned long retval;\toffset:24;\tsize:8;\tsigned:0;\n";
const SWITCH: &str =
    "\tfield:char next[16];\toffset:16;\tsize:16;\tsigned:0;\n\tfield:int to;\toffset:32;\tsize:4;\tsigned:1;\n";
const PRINT: &str = "\tfield:char buf[];\toffset:16;\tsize:0;\tsigned:0;\n";

const EVENTS: [(&str, &str, u16, &str); 6] = [
    ("ftrace", "funcgraph_entry", 11, ENTRY),
    ("ftrace", "funcgraph_exit", 10, EXIT),
    ("ftrace", "fgraph_retaddr_entry", 20, RETADDR),
    ("sched", "sched_switch", 300, SWITCH),
    ("ftrace", "print", 5, PRINT),
    ("ftrace", "user_stack", 12, ""),
];

const SYMBOLS: &str = "1000 t a\n2000 t b\n3000 t c\n4000 t irq_enter_rcu\n5000 t veth_xmit\t[veth]\n\
     6000 t __irqentry_text_start\n6010 t do_interrupt\n6100 t __irqentry_text_end\n";
pub const VETH: u64 = 0x5000;

/// Of functions by the first letter of their name.
pub fn address(name: char) -> u64 {
    match name {
        'a' => 0x1000,
        'b' => 0x2000,
        'c' => 0x3000,
        'i' => 0x4000,
        'd' => 0x6010,
        _ => VETH,
    }
}

/// A record of the common fields, the function and more.
pub fn record(id: u16, flags: u8, pid: i32, function: u64, more: &[u8]) -> Vec<u8> {
    let mut bytes = id.to_le_bytes().to_vec();
    bytes.extend([flags, 0]);
    bytes.extend(pid.to_le_bytes());
    bytes.extend(function.to_le_bytes());
    bytes.extend(more);
    bytes
}

/// Two CPUs that are being recorded.
pub struct Made {
    pub clock: &'static str,
    exit: &'static str,
    pub stats: [CpuStats; 2],
    pages: [Vec<u8>; 2],
    open: [Page; 2],
    time: [u64; 2],
    format: PageFormat,
}

impl Made {
    pub fn new() -> Made {
        Made {
            clock: "local",
            exit: EXIT,
            stats: Default::default(),
            pages: Default::default(),
            open: [Page::at(0), Page::at(0)],
            time: [0, 0],
            format: page_format(4080),
        }
    }

    /// A kernel whose exits have no times.
    pub fn new_kernel() -> Made {
        Made { exit: NEW_EXIT, ..Made::new() }
    }

    pub fn put(&mut self, cpu: usize, time: u64, bytes: &[u8]) -> &mut Made {
        let delta = time - self.time[cpu];
        self.time[cpu] = time;
        self.open[cpu] = std::mem::take(&mut self.open[cpu]).extend(delta).record(0, bytes);
        self
    }

    pub fn lose(&mut self, cpu: usize, count: Option<u64>) -> &mut Made {
        let next = Page::at(self.time[cpu]).lost(count);
        let page = std::mem::replace(&mut self.open[cpu], next);
        self.pages[cpu].extend(page.whole(&self.format));
        self
    }

    pub fn enter(&mut self, cpu: usize, time: u64, pid: i32, depth: u64, name: char) -> &mut Made {
        self.put(cpu, time, &record(11, 0, pid, address(name), &depth.to_le_bytes()))
    }

    /// An exit with the times that the kernel kept.
    pub fn exit(&mut self, cpu: usize, time: u64, pid: i32, depth: u32, name: char, span: (u64, u64)) -> &mut Made {
        let times = [depth.to_le_bytes(), [0; 4]].concat();
        let times = [times, span.0.to_le_bytes().to_vec(), span.1.to_le_bytes().to_vec()].concat();
        self.put(cpu, time, &record(10, 0, pid, address(name), &times))
    }

    pub fn new_exit(&mut self, cpu: usize, time: u64, pid: i32, depth: u32, name: char, returned: u64) -> &mut Made {
        let more = [depth.to_le_bytes().to_vec(), vec![0; 4], returned.to_le_bytes().to_vec()].concat();
        self.put(cpu, time, &record(10, 0, pid, address(name), &more))
    }

    pub fn trace(&self) -> Trace {
        let mut formats = Formats::default();
        for (system, name, id, fields) in EVENTS {
            let fields = if id == 10 { self.exit } else { fields };
            let text = format!("name: {name}\nID: {id}\nformat:\n{COMMON}{fields}\nprint fmt: \"\"\n");
            formats.add(EventFormat::parse(system, &text).unwrap());
        }
        let cpu = |cpu: usize| CpuPages {
            cpu: cpu as u32,
            pages: [self.pages[cpu].clone(), self.open[cpu].whole(&self.format)].concat(),
            stats: Some(self.stats[cpu]),
        };
        Trace {
            page: self.format.clone(),
            header_event: String::new(),
            formats,
            symbols: Symbols::parse(SYMBOLS),
            printk: BTreeMap::new(),
            comms: BTreeMap::from([(7, "seven".to_owned())]),
            tgids: BTreeMap::new(),
            buffers: vec![Buffer { name: String::new(), clock: self.clock.to_owned(), cpus: vec![cpu(0), cpu(1)] }],
            about: About::default(),
        }
    }
}
