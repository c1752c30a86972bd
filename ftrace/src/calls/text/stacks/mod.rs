//! Stacks of open calls, one for each task: what is called by what.

mod tasks;

use std::collections::HashMap;

use tasks::Lane;

use super::interrupts;
use super::line::{Line, Record, What};
use crate::calls::{Call, CallId, Calls, Ends, Mark, NameId, Names, Task};

/// Puts lines together.
pub fn build(lines: Vec<Line>, names: Names) -> Calls {
    let mut builder = Builder { calls: Calls { names, ..Calls::default() }, ..Builder::default() };
    // The first switch on a CPU says who ran there before it.
    for line in &lines {
        if let Line::Switch { cpu, from, .. } = line
            && !builder.on_cpu.contains_key(cpu)
        {
            builder.on_cpu.insert(*cpu, *from);
            let stack = builder.stack(Lane::task(*from, Some(*cpu)), Some(*from));
            builder.stacks[stack].runs = true;
            builder.use_stack(stack);
        }
    }
    for line in lines {
        builder.line(line);
    }
    builder.finish()
}

#[derive(Default)]
struct Builder {
    calls: Calls,
    /// Callers above each call by the text's indentation, beside `calls.calls`.
    depths: Vec<Option<u32>>,
    /// Whether it ran in a hard interrupt, if that is said, beside `calls.calls`.
    hard: Vec<Option<bool>>,
    stacks: Vec<Stack>,
    by_lane: HashMap<Lane, usize>,
    /// Who runs on which CPU.
    on_cpu: HashMap<u32, Task>,
    /// The stack of the last line: that of the next, if this does not say whose it is.
    current: Option<usize>,
    /// Stacks that lines without CPU and task may belong to, the last used first; only so many.
    recent: Vec<usize>,
    /// A switch names the stack of the line that follows.
    switched: bool,
    /// Calls of tasks that nothing names and that wait, the last to wait at the end; only so many.
    waiting: Vec<Vec<Frame>>,
    /// Lines whose task only their indentation shows: right in a whole text, a guess in a damaged one.
    by_fit: u64,
}

/// Calls that are open, outermost first.
#[derive(Default)]
struct Stack {
    task: Option<Task>,
    frames: Vec<Frame>,
    /// Calls that no call on this stack made.
    roots: Vec<CallId>,
    /// An interrupt began, its first call did not come yet.
    interrupt: bool,
    /// Its task is on a CPU.
    runs: bool,
}

/// A call that is open.
#[derive(Clone, Copy)]
struct Frame {
    call: CallId,
    depth: Option<u32>,
    /// What the calls took that it made itself.
    inside_ns: u64,
    /// The first calls in it that stood before it, as an interrupt's.
    early: usize,
    /// Lines are missing before these of its children, the first and the last: it may have ended there, and another call have begun.
    gaps: Option<(usize, usize)>,
}

/// By how much a call may seem to be shorter than what it called: the kernel leaves digits of long durations out.
const ROUNDING_NS: u64 = 1000;
/// By how much at least the record of a call's end may come late: interrupts take so long.
const LATE_NS: u64 = 10_000_000;
/// Calls of interrupts that are looked at for being late: each makes three or four.
const LATE: usize = 16;
/// Levels in which the entry of an exit is looked for when there is no indentation to tell it.
const LEVELS: usize = 512;

impl Builder {
    fn line(&mut self, line: Line) {
        match line {
            Line::Nothing | Line::Unknown => {}
            Line::Lost { cpu: _, count } => self.calls.damage.lost = self.calls.damage.lost.saturating_add(count),
            Line::NoSwitch => self.calls.damage.guessed += 1,
            Line::Switch { cpu, from, to } => {
                // Another task than the one that the last such line brought: such a line is missing.
                if self.on_cpu.insert(cpu, to).is_some_and(|runs| runs.pid != from.pid) {
                    self.calls.damage.guessed += 1;
                }
                let stack = self.stack(Lane::task(from, Some(cpu)), Some(from));
                self.stacks[stack].runs = false;
                let stack = self.stack(Lane::task(to, Some(cpu)), Some(to));
                self.stacks[stack].runs = true;
                self.use_stack(stack);
                self.switched = true;
            }
            Line::Record(record) => {
                let stack = self.whose(&record);
                self.use_stack(stack);
                self.switched = false;
                self.record(stack, record);
            }
        }
    }

    fn record(&mut self, stack: usize, record: Record) {
        match record.what {
            What::Entry { .. } => self.entry(stack, record),
            What::Exit { .. } => self.exit(stack, record),
            What::Event { name, text } => {
                let call = self.stacks[stack].frames.last().map(|frame| frame.call);
                self.calls.marks.push(Mark { call, time_ns: record.time_ns, cpu: record.cpu, event: name, text });
            }
            What::InterruptBegins => self.stacks[stack].interrupt = true,
            What::InterruptEnds => self.stacks[stack].interrupt = false,
        }
    }

    /// An open call is of that name, as far as both are known.
    fn named(&self, frame: &Frame, function: Option<NameId>) -> bool {
        let open = self.calls[frame.call].function;
        function.is_none() || open.is_none() || open == function
    }

    fn entry(&mut self, stack: usize, record: Record) {
        if let Some(depth) = record.depth {
            self.over(stack, |frame| frame.depth.is_some_and(|other| other >= depth));
        }
        let What::Entry { function, module, arguments, returned, leaf } = record.what else { return };
        let ends = if leaf { Ends::Both } else { Ends::Entry };
        let call = Call {
            function,
            module,
            task: record.task.or(self.stacks[stack].task),
            cpu: record.cpu,
            start_ns: record.time_ns,
            duration_ns: record.duration_ns,
            parent: None,
            children: Vec::new(),
            ends,
            interrupt: std::mem::take(&mut self.stacks[stack].interrupt),
            arguments,
            returned,
        };
        let below = self.stacks[stack].frames.last().and_then(|frame| frame.depth?.checked_add(1));
        if record.depth > below {
            self.gap(stack);
        }
        let depth = record.depth.or(below);
        let early = self.early(stack, record.depth, record.duration_ns);
        let call = self.add(stack, call, depth, record.hard);
        let (inside_ns, early_calls) = (self.interrupted(&early, Some(call)), early.len());
        self.calls.calls[call.0 as usize].children = early;
        if !leaf {
            self.stacks[stack].frames.push(Frame { call, depth, inside_ns, early: early_calls, gaps: None });
        }
    }

    fn exit(&mut self, stack: usize, record: Record) {
        let What::Exit { function, module, returned } = record.what else { return };
        self.stacks[stack].interrupt = false;
        match record.depth {
            Some(depth) => self.over(stack, |frame| frame.depth.is_some_and(|other| other > depth)),
            None => self.over_above(stack, function),
        }
        let open = self.stacks[stack].frames.last().copied();
        let open = open.filter(|frame| record.depth.is_none() || frame.depth.is_none() || frame.depth == record.depth);
        let mut inside = Vec::new();
        if let Some(frame) = open {
            if self.named(&frame, function) {
                self.stacks[stack].frames.pop();
                let call = &mut self.calls.calls[frame.call.0 as usize];
                call.ends = Ends::Both;
                // Without a duration column, times tell it.
                call.duration_ns = record.duration_ns.or_else(|| record.time_ns?.checked_sub(call.start_ns?));
                call.function = call.function.or(function);
                call.module = call.module.or(module);
                call.returned = returned;
                self.took(stack, record.duration_ns);
                self.late(stack, frame, record.duration_ns);
                return;
            }
            if record.depth.is_some() {
                // Another call's exit at the same level: this one ended in a gap, and that one began there.
                if let Some((first, last)) = frame.gaps {
                    inside = self.after_gap(frame.call, (first, last), record.time_ns, record.duration_ns);
                }
                let mut first = true;
                self.over(stack, |_| std::mem::take(&mut first));
            }
        }
        self.calls.damage.no_entry += 1;
        let call = Call {
            function,
            module,
            task: record.task.or(self.stacks[stack].task),
            cpu: record.cpu,
            start_ns: record.time_ns.and_then(|end| end.checked_sub(record.duration_ns?)),
            duration_ns: record.duration_ns,
            parent: None,
            children: Vec::new(),
            ends: Ends::Exit,
            interrupt: false,
            arguments: None,
            returned,
        };
        if inside.is_empty() {
            inside = self.deeper(stack, record.depth, call.start_ns, call.duration_ns);
            self.give_back(stack, &inside);
        }
        self.gap(stack);
        let call = self.add(stack, call, record.depth, record.hard);
        for child in &inside {
            self.calls.calls[child.0 as usize].parent = Some(call);
        }
        self.calls.calls[call.0 as usize].children = inside;
    }

    /// Without indentation: an exit ends the innermost call of its name, and those inside of it are over.
    fn over_above(&mut self, stack: usize, function: Option<NameId>) {
        let frames = &self.stacks[stack].frames;
        let inside = frames.iter().rev().take(LEVELS).take_while(|frame| !self.named(frame, function)).count();
        if inside < frames.len().min(LEVELS) {
            let mut left = inside;
            self.over(stack, |_| left.checked_sub(1).map(|less| left = less).is_some());
        }
    }

    /// Lines are missing between the last child of a stack's open call and the next.
    fn gap(&mut self, stack: usize) {
        if let Some(frame) = self.stacks[stack].frames.last_mut() {
            let children = self.calls.calls[frame.call.0 as usize].children.len();
            frame.gaps = Some(
                frame.gaps.map_or((children, children), |(first, last)| (first.min(children), last.max(children))),
            );
        }
    }

    /// Takes the calls of an open call that ended where lines are missing, at one of two places: they were made by the call that ends now.
    fn after_gap(
        &mut self,
        open: CallId,
        (first, last): (usize, usize),
        end_ns: Option<u64>,
        duration_ns: Option<u64>,
    ) -> Vec<CallId> {
        let children = &self.calls[open].children;
        let from = match end_ns.zip(duration_ns).map(|(end, duration)| end.saturating_sub(duration)) {
            // What began before it is not in it.
            Some(began) => {
                let before = |call: &&CallId| self.calls[**call].start_ns.is_none_or(|start| start < began);
                first + children.iter().skip(first).take_while(before).count()
            }
            None => {
                // It may have begun at either.
                self.calls.damage.guessed += u64::from(first < last && last < children.len());
                first
            }
        };
        let children = &mut self.calls.calls[open.0 as usize].children;
        children.split_off(from.min(children.len()))
    }

    /// Something took so long inside of a stack's open call.
    fn took(&mut self, stack: usize, duration_ns: Option<u64>) {
        if let Some(frame) = self.stacks[stack].frames.last_mut() {
            frame.inside_ns = frame.inside_ns.saturating_add(duration_ns.unwrap_or(0));
        }
    }

    /// Takes the last calls of a stack's open call that lie deeper than that, did not begin long before and do not last longer: they
    /// were made by the call that ends now, of which the beginning and the duration are given where they are known.
    fn deeper(
        &mut self,
        stack: usize,
        depth: Option<u32>,
        start_ns: Option<u64>,
        duration_ns: Option<u64>,
    ) -> Vec<CallId> {
        let Some(depth) = depth else { return Vec::new() };
        // An interrupt between the end of a call and the record of it moves what seems to be its beginning.
        let took = start_ns.zip(duration_ns);
        let after_ns = took.map_or(0, |(start, duration)| start.saturating_sub(duration / 8 + LATE_NS));
        let mut left_ns = duration_ns.map_or(u64::MAX, |ns| ns.saturating_add(ROUNDING_NS));
        let siblings = match self.stacks[stack].frames.last() {
            Some(frame) => &self.calls.calls[frame.call.0 as usize].children,
            None => &self.stacks[stack].roots,
        };
        let inside = |call: &&CallId| {
            let Call { start_ns, duration_ns, .. } = self.calls[**call];
            let late = start_ns.is_none_or(|start| start >= after_ns);
            let left = left_ns.checked_sub(duration_ns.unwrap_or(0));
            left_ns = left.unwrap_or_default();
            late && left.is_some() && self.depths[call.0 as usize].is_some_and(|other| other > depth)
        };
        let rest = siblings.len() - siblings.iter().rev().take_while(inside).count();
        let gaps = self.stacks[stack].frames.last().and_then(|frame| frame.gaps);
        let between =
            gaps.is_some_and(|(first, last)| [first, last].iter().any(|gap| (rest + 1..siblings.len()).contains(gap)));
        // Without times it may have begun where lines are missing, too.
        self.calls.damage.guessed += u64::from(took.is_none() && duration_ns.is_some() && between);
        self.siblings(stack).split_off(rest)
    }

    /// An interrupt may come after a function was entered and before that is recorded: its calls, and no others, stand before the entry,
    /// a level deeper.
    fn early(&mut self, stack: usize, depth: Option<u32>, duration_ns: Option<u64>) -> Vec<CallId> {
        let run = self.deeper(stack, depth, None, None);
        let inside_ns = run.iter().filter_map(|call| self.calls[*call].duration_ns).fold(0, u64::saturating_add);
        let long_enough = duration_ns.is_none_or(|ns| ns.saturating_add(ROUNDING_NS) >= inside_ns);
        // The task of a call without an entry follows from the lines beside it.
        let may_begin = |call: &CallId| self.calls[*call].function.is_none() || self.begins_interrupt(*call);
        let interrupt = run.iter().all(may_begin) && run.iter().any(|call| self.begins_interrupt(*call));
        if !long_enough || !interrupt {
            self.siblings(stack).extend(run);
            return Vec::new();
        }
        self.give_back(stack, &run);
        run
    }

    /// Calls that seemed to be made by a stack's open call itself were made by another inside of it.
    fn give_back(&mut self, stack: usize, run: &[CallId]) {
        let ns = run.iter().filter_map(|call| self.calls[*call].duration_ns).fold(0, u64::saturating_add);
        if let Some(frame) = self.stacks[stack].frames.last_mut() {
            frame.inside_ns = frame.inside_ns.saturating_sub(ns);
        }
    }

    /// A call ended before an interrupt could have been in it: the interrupt came before it. Whether it was so.
    fn not_early(&mut self, stack: usize, frame: Frame, duration_ns: Option<u64>) -> bool {
        let run = self.calls[frame.call].children[..frame.early].to_vec();
        let ns = run.iter().filter_map(|call| self.calls[*call].duration_ns).fold(0, u64::saturating_add);
        if run.is_empty() || !(Frame { inside_ns: frame.inside_ns.saturating_sub(ns), ..frame }).may_take(duration_ns) {
            return false;
        }
        self.calls.calls[frame.call.0 as usize].children.drain(..frame.early);
        let parent = self.stacks[stack].frames.last().map(|frame| frame.call);
        let ns = self.interrupted(&run, parent);
        self.took(stack, Some(ns));
        let siblings = self.siblings(stack);
        let at = siblings.iter().rposition(|call| *call == frame.call).unwrap_or(siblings.len());
        siblings.splice(at..at, run);
        true
    }

    /// Or after it was left and before that is recorded: its calls stand in it, and it is shorter than what seems to be in it.
    fn late(&mut self, stack: usize, frame: Frame, duration_ns: Option<u64>) {
        if frame.may_take(duration_ns) || self.not_early(stack, frame, duration_ns) {
            return;
        }
        let children = &self.calls[frame.call].children;
        let (mut inside_ns, mut from) = (frame.inside_ns, children.len());
        let first = children.len().saturating_sub(LATE);
        while from > first && !(Frame { inside_ns, ..frame }).may_take(duration_ns) {
            from -= 1;
            inside_ns = inside_ns.saturating_sub(self.calls[children[from]].duration_ns.unwrap_or(0));
        }
        // Back to where the interrupt began.
        let begins = |at: usize| children.get(at).is_some_and(|call| self.begins_interrupt(*call));
        while from > first && (!begins(from) || begins(from - 1)) {
            from -= 1;
        }
        if (Frame { inside_ns, ..frame }).may_take(duration_ns) && begins(from) {
            let run = self.calls.calls[frame.call.0 as usize].children.split_off(from);
            let parent = self.stacks[stack].frames.last().map(|frame| frame.call);
            let ns = self.interrupted(&run, parent);
            self.took(stack, Some(ns));
            self.siblings(stack).extend(run);
        }
    }

    fn begins_interrupt(&self, call: CallId) -> bool {
        self.calls[call].function.is_some_and(|name| interrupts::begins(&self.calls.names[name]))
    }

    /// Calls of an interrupt have another parent than they seemed to have; how long they took.
    fn interrupted(&mut self, run: &[CallId], parent: Option<CallId>) -> u64 {
        let mut ns: u64 = 0;
        for call in run {
            let call = &mut self.calls.calls[call.0 as usize];
            (call.parent, call.interrupt) = (parent, true);
            ns = ns.saturating_add(call.duration_ns.unwrap_or(0));
        }
        ns
    }

    /// The calls of a stack's open call, or those that no call made.
    fn siblings(&mut self, stack: usize) -> &mut Vec<CallId> {
        match self.stacks[stack].frames.last() {
            Some(frame) => &mut self.calls.calls[frame.call.0 as usize].children,
            None => &mut self.stacks[stack].roots,
        }
    }

    /// Adds a call below the innermost open one.
    fn add(&mut self, stack: usize, mut call: Call, depth: Option<u32>, hard: Option<bool>) -> CallId {
        // A text of four thousand million lines does not come here.
        let id = CallId(self.calls.calls.len() as u32);
        match self.stacks[stack].frames.last() {
            Some(frame) => {
                call.parent = Some(frame.call);
                self.calls.calls[frame.call.0 as usize].children.push(id);
            }
            None => self.stacks[stack].roots.push(id),
        }
        self.took(stack, call.duration_ns);
        self.calls.calls.push(call);
        self.depths.push(depth);
        self.hard.push(hard);
        id
    }

    /// Takes the innermost calls for which it holds off a stack: they are over, and nothing said when.
    fn over(&mut self, stack: usize, mut is: impl FnMut(&Frame) -> bool) {
        let frames = &mut self.stacks[stack].frames;
        let before = frames.len();
        while frames.pop_if(|frame| is(frame)).is_some() {}
        let over = before - frames.len();
        self.calls.damage.no_exit += over as u64;
        if over > 0 {
            self.gap(stack);
        }
    }

    fn finish(mut self) -> Calls {
        let frames = self.stacks.iter().map(|stack| &stack.frames).chain(&self.waiting);
        self.calls.damage.open = frames.map(|frames| frames.len() as u64).sum();
        let damage = &mut self.calls.damage;
        if damage.lost + damage.no_entry + damage.no_exit + damage.open > 0 {
            damage.guessed += self.by_fit;
        }
        let ids = (0..self.calls.calls.len()).map(|id| CallId(id as u32));
        interrupts::mark(&mut self.calls, &self.hard);
        self.calls.roots = ids.filter(|id| self.calls[*id].parent.is_none()).collect();
        self.calls
    }
}

impl Frame {
    /// A call takes as long as what it called, but for interrupts between its end and the record of it, which seem to lie inside.
    fn may_take(&self, duration_ns: Option<u64>) -> bool {
        duration_ns.is_none_or(|ns| ns.saturating_add(ROUNDING_NS) >= self.inside_ns)
    }
}
