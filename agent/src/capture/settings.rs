//! Makes a ring buffer ready for a request: everything is set, and nothing is recorded yet.

use super::error::{Error, RequestError, Setting};
use super::request::Request;
use super::select_events::{SelectedEvent, select_events};
use crate::kernel::instance::Instance;
use crate::kernel::instance::global::{Global, Part};
use crate::kernel::tracefs::Tracefs;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Default size of the ring buffers of all CPUs together.
const DEFAULT_BUFFERS_KIB: u64 = 64 << 10;
/// Of one CPU at least: readers need some time.
const MIN_BUFFER_KIB: u64 = 64;
/// The default clock: user programs can read it too, and it is the same on all CPUs.
const DEFAULT_CLOCK: &str = "mono";
const FUNCTION_TRACERS: [&str; 2] = ["function", "function_graph"];
/// Functions that reading the clock calls. Where they can be traced, each record would cause further records: arm64's is
/// not marked `notrace` in Linux 7.2 (drivers/clocksource/arm_arch_timer.c).
const CLOCK_FUNCTIONS: [&str; 1] = ["arch_counter_read"];

/// A ring buffer that is ready.
#[derive(Debug)]
pub struct Ready {
    /// The buffer.
    pub instance: Arc<Instance>,
    /// Roots and depth, where they are settings of all.
    _graph: Option<Global>,
    /// The events it records.
    pub events: Vec<SelectedEvent>,
    pub clock: String,
    /// Whether functions are recorded.
    functions: bool,
    /// Sees the events after which a flight recorder goes on for a while.
    pub watch: Option<Instance>,
    /// Notes for the user about choices of the recorder.
    pub notes: Vec<String>,
}

pub fn prepare(tracefs: &Arc<Tracefs>, request: &Request) -> Result<Ready, Error> {
    check(request)?;
    let tracer = request.tracer.as_deref().unwrap_or("nop");
    let mut notes = Vec::new();
    let instance = place(tracefs, tracer, &mut notes)?;
    let there = instance.events()?;
    let events = select_events(&request.events, &there)?;
    let clock = set_clock(&instance, request, &mut notes)?;
    set_buffers(&instance, request)?;
    if !request.cpus.is_empty() {
        let mask = cpu_mask(&request.cpus, &instance.cpus()?)?;
        instance.write("tracing_cpumask", &mask)?;
    }
    leave_out_clock(&instance, tracer, request, &mut notes);
    let graph = set_tracer(&instance, tracer, request)?;
    let graph_functions = FUNCTION_TRACERS.contains(&tracer);
    if request.stacks {
        instance.set_option("stacktrace", "1")?;
    }
    set_options(&instance, &request.options)?;
    // Without it the trace does not say which threads are of one process; recordings are of use without.
    let _ = instance.write("options/record-tgid", "1");
    let ready = Ready {
        instance: Arc::new(instance),
        _graph: graph,
        clock,
        functions: graph_functions,
        watch: None,
        notes,
        events: Vec::new(),
    };
    ready.set_events(&events, &there)?;
    let watch = ready.set_stops(request, &there)?;
    Ok(Ready { watch, events, ..ready })
}

/// What is wrong whatever the kernel.
fn check(request: &Request) -> Result<(), Error> {
    let tracer = request.tracer.as_deref().unwrap_or("nop");
    if tracer == "nop" && request.events.is_empty() {
        return Err(RequestError::Nothing.into());
    }
    if tracer != "function_graph" && (!request.graph_roots.is_empty() || request.max_graph_depth.is_some()) {
        return Err(RequestError::NoGraph.into());
    }
    let functions = !request.functions.is_empty() || !request.not_functions.is_empty();
    if functions && !FUNCTION_TRACERS.contains(&tracer) {
        return Err(RequestError::NoFunctions.into());
    }
    if request.function_stacks && (tracer != "function" || request.functions.is_empty()) {
        return Err(RequestError::UnboundedStacks.into());
    }
    let commands = request.functions.iter().chain(&request.not_functions).chain(&request.graph_roots);
    for function in commands {
        let plain = function.replacen(":mod:", "", 1);
        if plain.is_empty() || plain.contains(|c: char| c == ':' || c.is_whitespace() || c.is_control()) {
            return Err(RequestError::FunctionName(function.clone()).into());
        }
    }
    let of_keys = request.options.iter().find_map(|(name, _)| Some((name, kstrobe_config::option_setter(name)?)));
    if let Some((option, setter)) = of_keys {
        return Err(RequestError::OptionOfKey { option: option.clone(), setter }.into());
    }
    Ok(request.scope.check()?)
}

/// Sets options when the tracer is set: before that, the kernel may not have those of the tracer.
fn set_options(instance: &Instance, options: &[(String, bool)]) -> Result<(), Error> {
    for (option, on) in options {
        if !instance.has(&format!("options/{option}")) {
            let there = instance.tracefs().list(&instance.path("options"))?;
            let near = kstrobe_config::did_you_mean(option, there.iter().map(String::as_str));
            return Err(RequestError::NoOption { option: option.clone(), hint: near.map(str::to_owned) }.into());
        }
        instance.set_option(option, if *on { "1" } else { "0" })?;
    }
    Ok(())
}

/// An instance, or the global buffer where the tracer runs nowhere else.
fn place(tracefs: &Arc<Tracefs>, tracer: &str, notes: &mut Vec<String>) -> Result<Instance, Error> {
    let instance = Instance::create(tracefs)?;
    if instance.has_tracer(tracer)? {
        return Ok(instance);
    }
    drop(instance);
    let there = tracefs.read("available_tracers")?;
    if !there.split_whitespace().any(|name| name == tracer) {
        return Err(RequestError::NoTracer { tracer: tracer.to_owned(), there: there.trim().to_owned() }.into());
    }
    notes.push(format!("`{tracer}` runs in the global buffer only on this kernel: it is put back afterwards"));
    Ok(Instance::global(tracefs)?)
}

fn set_clock(instance: &Instance, request: &Request, notes: &mut Vec<String>) -> Result<String, Error> {
    let there = instance.read("trace_clock")?.replace(['[', ']'], "");
    let has = |clock: &str| there.split_whitespace().any(|name| name == clock);
    match &request.clock {
        Some(clock) if !has(clock) => {
            return Err(RequestError::NoClock { clock: clock.clone(), there: there.trim().to_owned() }.into());
        }
        None if !has(DEFAULT_CLOCK) => {
            let clock = instance.clock()?;
            notes.push(format!("this kernel has no clock `{DEFAULT_CLOCK}`: times are of `{clock}`"));
            return Ok(clock);
        }
        clock => instance.set_clock(clock.as_deref().unwrap_or(DEFAULT_CLOCK))?,
    }
    Ok(instance.clock()?)
}

fn set_buffers(instance: &Instance, request: &Request) -> Result<(), Error> {
    let cpus = instance.cpus()?.len().max(1) as u64;
    let default = (DEFAULT_BUFFERS_KIB / cpus).max(MIN_BUFFER_KIB);
    let kib = request.buffer_kib.unwrap_or(default);
    let free = std::fs::read_to_string("/proc/meminfo")?;
    let free =
        free.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB")?.parse().ok());
    // The kernel accepts any size, and its OOM killer then ends processes.
    let most = free.map_or(u64::MAX, |free: u64| free / 2 / cpus);
    match request.buffer_kib {
        Some(0) => return Err(RequestError::EmptyBuffer.into()),
        Some(kib) if kib > most => return Err(RequestError::BufferTooLarge { kib, cpus, most }.into()),
        _ => instance.set_buffer_kib(kib.min(most))?,
    }
    if instance.has("buffer_percent") {
        // Readers are woken early enough to be done before the rest is full.
        instance.write("buffer_percent", "25")?;
    }
    Ok(())
}

/// Leaves out the functions that the clock itself calls, unless the request names them.
fn leave_out_clock(instance: &Instance, tracer: &str, request: &Request, notes: &mut Vec<String>) {
    if !FUNCTION_TRACERS.contains(&tracer) {
        return;
    }
    let asked = [&request.functions, &request.graph_roots];
    for function in CLOCK_FUNCTIONS.iter().filter(|name| !asked.iter().any(|list| list.iter().any(|one| one == *name)))
    {
        // EINVAL where the kernel has no such function, or cannot trace it.
        if instance.append("set_ftrace_notrace", &format!("{function}\n")).is_ok() {
            notes.push(format!("`{function}` is left out: reading the clock calls it for each record"));
        }
    }
}

/// Sets functions, roots and depth, then the tracer.
fn set_tracer(instance: &Instance, tracer: &str, request: &Request) -> Result<Option<Global>, Error> {
    let lists = [("set_ftrace_filter", &request.functions), ("set_ftrace_notrace", &request.not_functions)];
    for (file, functions) in lists {
        add_functions(functions, |text| instance.append(file, text))?;
    }
    let mut graph = None;
    if tracer == "function_graph" {
        let depth = request.max_graph_depth.unwrap_or(0).to_string();
        let asked = !request.graph_roots.is_empty() || request.max_graph_depth.is_some();
        if instance.is_global() || instance.has("set_graph_function") {
            add_functions(&request.graph_roots, |text| instance.append("set_graph_function", text))?;
            instance.write("max_graph_depth", &depth)?;
        } else {
            // Roots and depth hold for all buffers: even without any of ours there must be none of others.
            let taken = Global::take(instance.tracefs(), Part::Graph)?;
            if asked {
                let tracefs = instance.tracefs();
                add_functions(&request.graph_roots, |text| tracefs.append("set_graph_function", text))?;
                tracefs.write("max_graph_depth", &depth)?;
            }
            graph = Some(taken);
        }
    }
    if request.function_stacks {
        // The option is there from when the tracer is; functions are chosen already.
        instance.set_tracer(tracer)?;
        instance.set_option("func_stack_trace", "1")?;
    } else if tracer != "nop" {
        instance.set_tracer(tracer)?;
    }
    Ok(graph)
}

/// The kernel takes a name when white space follows, and says so then.
fn add_functions(functions: &[String], write: impl Fn(&str) -> std::io::Result<()>) -> Result<(), Error> {
    for function in functions {
        write(&format!("{function}\n")).map_err(|error| match error.kind() {
            std::io::ErrorKind::InvalidInput => Error::from(RequestError::NoFunction(function.clone())),
            _ => error.into(),
        })?;
    }
    Ok(())
}

/// Numbers as the kernel's mask: hexadecimal, 32 bits between commas.
fn cpu_mask(cpus: &[u32], there: &[u32]) -> Result<String, Error> {
    if let Some(cpu) = cpus.iter().find(|cpu| !there.contains(cpu)) {
        return Err(RequestError::NoCpu(*cpu).into());
    }
    let mut words = vec![0u32; cpus.iter().max().map_or(0, |most| *most as usize / 32) + 1];
    cpus.iter().for_each(|cpu| words[*cpu as usize / 32] |= 1 << (cpu % 32));
    Ok(words.iter().rev().map(|word| format!("{word:08x}")).collect::<Vec<_>>().join(","))
}

impl Ready {
    /// Sets filters and triggers, then switches the events on; with tracing off none is recorded yet.
    fn set_events(&self, events: &[SelectedEvent], there: &[(String, String)]) -> Result<(), Error> {
        let mut systems: BTreeMap<&str, Vec<&SelectedEvent>> = BTreeMap::new();
        for event in events {
            set_event(&self.instance, event)?;
            systems.entry(&event.system).or_default().push(event);
        }
        for (system, chosen) in systems {
            let all = there.iter().filter(|(of, _)| of == system).count() == chosen.len();
            if all && self.instance.write(&format!("events/{system}/enable"), "1").is_ok() {
                continue;
            }
            for event in chosen {
                self.instance.write(&format!("events/{system}/{}/enable", event.event), "1")?;
            }
        }
        Ok(())
    }

    /// Sets the events that end a flight recorder: by a trigger of the kernel at once, or with `after` by the loop of `run`.
    fn set_stops(&self, request: &Request, there: &[(String, String)]) -> Result<Option<Instance>, Error> {
        let Some(flight) = &request.flight else { return Ok(None) };
        let mut stops = Vec::new();
        for (pattern, filter) in &flight.stop_on {
            let pattern = pattern.clone();
            let asked = super::request::EventRequest { pattern, filter: filter.clone(), ..Default::default() };
            stops.extend(select_events(&[asked], there)?);
        }
        if stops.is_empty() {
            return Ok(None);
        }
        if flight.after.is_zero() {
            for stop in stops {
                let condition = stop.filter.as_ref().map_or(String::new(), |filter| format!(" if {filter}"));
                set_event(
                    &self.instance,
                    &SelectedEvent { filter: None, triggers: vec![format!("traceoff{condition}")], ..stop },
                )?;
            }
            return Ok(None);
        }
        let watch = Instance::create(self.instance.tracefs())?;
        watch.set_buffer_kib(MIN_BUFFER_KIB)?;
        for stop in &stops {
            set_event(&watch, stop)?;
            watch.write(&format!("events/{}/{}/enable", stop.system, stop.event), "1")?;
        }
        Ok(Some(watch))
    }

    /// Leaves our own threads out, and all others but these when only some are meant.
    pub fn set_threads(
        &self,
        threads: Option<&BTreeSet<i32>>,
        own: &BTreeSet<i32>,
        children: bool,
    ) -> Result<(), Error> {
        for (not, only, fork) in self.thread_files() {
            // 5.7; without it our own work is recorded.
            if self.instance.has(not) {
                self.instance.write(not, &lines(own))?;
            }
            let Some(threads) = threads else { continue };
            if children {
                self.instance.write(fork, "1")?;
            }
            // The kernel records all threads with an empty list: write our own threads, which are left out.
            self.instance.write(only, &lines(if threads.is_empty() { own } else { threads }))?;
        }
        Ok(())
    }

    /// Adds threads that began since.
    pub fn add_threads(&self, threads: &BTreeSet<i32>, own: &BTreeSet<i32>) -> Result<(), Error> {
        for (not, only, _) in self.thread_files() {
            if !own.is_empty() && self.instance.has(not) {
                self.instance.append(not, &lines(own))?;
            }
            if !threads.is_empty() {
                self.instance.append(only, &lines(threads))?;
            }
        }
        Ok(())
    }

    /// Files for threads to leave out and to record, and the option that does it to their children.
    fn thread_files(&self) -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
        let events = ("set_event_notrace_pid", "set_event_pid", "options/event-fork");
        let functions = ("set_ftrace_notrace_pid", "set_ftrace_pid", "options/function-fork");
        [Some(events), self.functions.then_some(functions)].into_iter().flatten()
    }
}

fn lines(numbers: &BTreeSet<i32>) -> String {
    numbers.iter().map(|number| format!("{number}\n")).collect()
}

/// Sets filter and triggers of one event.
fn set_event(instance: &Instance, event: &SelectedEvent) -> Result<(), Error> {
    let SelectedEvent { system, event: name, filter, triggers } = event;
    instance.touch_event(system, name, triggers)?;
    let folder = format!("events/{system}/{name}");
    // `error_log` has errors of other writers: clear it first.
    let _ = instance.write("error_log", "");
    if let Some(filter) = filter {
        let set = instance.write(&format!("{folder}/filter"), filter);
        set.map_err(|error| refused(instance, event, Setting::Filter(filter.clone()), error))?;
    }
    for trigger in triggers {
        let set = instance.append(&format!("{folder}/trigger"), &format!("{trigger}\n"));
        set.map_err(|error| refused(instance, event, Setting::Trigger(trigger.clone()), error))?;
    }
    Ok(())
}

/// The kernel's own words for what is wrong with a filter or trigger, with its caret.
fn refused(instance: &Instance, event: &SelectedEvent, setting: Setting, error: std::io::Error) -> Error {
    if error.kind() != std::io::ErrorKind::InvalidInput {
        return Error::Event { event: event.name(), setting, error };
    }
    let log = instance.read("error_log").unwrap_or_default();
    let log = log.lines().map(|line| {
        // `[ 12.34] event filter parse error: error: Field not found`
        let line = line.split_once("error: ").map_or(line, |(_, line)| line);
        line.strip_prefix("error: ").unwrap_or(line).to_owned()
    });
    let fields = instance.read(&format!("events/{}/{}/format", event.system, event.event)).unwrap_or_default();
    let fields = kstrobe_ftrace::format::fields(&fields);
    let fields = fields.into_iter().map(|field| field.name).filter(|name| name != "common_type").collect();
    RequestError::Setting { event: event.name(), setting, log: log.collect(), fields }.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_of_cpus() {
        let there: Vec<u32> = (0..100).collect();
        assert_eq!(cpu_mask(&[0, 3], &there).unwrap(), "00000009");
        assert_eq!(cpu_mask(&[33, 64], &there).unwrap(), "00000001,00000002,00000000");
        assert_eq!(cpu_mask(&[100], &there).unwrap_err().to_string(), "there is no CPU 100");
    }

    #[test]
    fn an_invalid_request_fails_before_anything_is_set() {
        let said = |request: Request| check(&request).unwrap_err().to_string();
        assert!(said(Request::default()).starts_with("nothing to record"));
        let tracer = |name: &str| Request { tracer: Some(name.into()), ..Request::default() };
        assert!(said(Request { graph_roots: vec!["x".into()], ..tracer("function") }).contains("function_graph"));
        assert!(said(Request { function_stacks: true, ..tracer("function") }).contains("-l"));
        for bad in ["schedule:traceoff", "a b", "", "x\ny"] {
            let request = Request { functions: vec![bad.into()], ..tracer("function") };
            assert!(said(request).contains("no name of a function"), "{bad:?}");
        }
        assert!(check(&Request { functions: vec!["tcp_*:mod:x".into()], ..tracer("function") }).is_ok());
    }
}
