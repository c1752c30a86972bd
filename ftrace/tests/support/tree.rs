//! Calls written by hand: a call a line, two blanks a level, `name[module] microseconds [marks]`.
//!
//! Marks: `!` an interrupt began it, `{` its end was not recorded (its time is not given then). A call begins where the one before ended.

use kstrobe_ftrace::calls::{Call, CallId, Calls, Ends, Task};

/// Reads calls of one thread, `pid` and `comm`, from `start_ns` on.
pub fn tree(text: &str, pid: i32, comm: &str, start_ns: u64) -> Calls {
    let mut calls = Calls::default();
    let comm = Some(calls.names.id(comm));
    // The way to the present call, and when the next call below each begins.
    let mut path: Vec<(CallId, u64)> = Vec::new();
    let mut root_ns = start_ns;
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let depth = (line.len() - line.trim_start().len()) / 2;
        let words: Vec<&str> = line.split_whitespace().collect();
        let (name, module) = words[0]
            .split_once('[')
            .map_or((words[0], None), |(name, module)| (name, Some(module.trim_end_matches(']'))));
        let duration_ns = words.get(1).filter(|word| word.as_bytes()[0].is_ascii_digit()).map(|word| ns(word));
        path.truncate(depth);
        let start_ns = path.last().map_or(root_ns, |(_, next_ns)| *next_ns);
        let id = CallId(calls.calls.len() as u32);
        let parent = path.last().map(|(id, _)| *id);
        let function = Some(calls.names.id(name));
        let module = module.map(|module| calls.names.id(module));
        calls.calls.push(Call {
            function,
            module,
            task: Some(Task { pid, comm }),
            cpu: Some(0),
            start_ns: Some(start_ns),
            duration_ns,
            parent,
            children: Vec::new(),
            ends: if words.contains(&"{") { Ends::Entry } else { Ends::Both },
            interrupt: words.contains(&"!"),
            arguments: None,
            returned: None,
        });
        let end_ns = start_ns + duration_ns.unwrap_or_default();
        match parent {
            Some(parent) => calls.calls[parent.0 as usize].children.push(id),
            None => {
                calls.roots.push(id);
                root_ns = end_ns;
            }
        }
        if let Some((_, next_ns)) = path.last_mut() {
            *next_ns = end_ns;
        }
        path.push((id, start_ns));
    }
    calls
}

/// Microseconds with up to three digits as nanoseconds.
pub fn ns(microseconds: &str) -> u64 {
    let (whole, part) = microseconds.split_once('.').unwrap_or((microseconds, ""));
    whole.parse::<u64>().unwrap() * 1000 + format!("{part:0<3}").parse::<u64>().unwrap()
}
