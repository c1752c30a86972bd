//! Whose a line is: tasks that are named, tasks that are not, and no telling.

use super::{Builder, Frame, Stack};
use crate::calls::Task;
use crate::calls::text::line::{Record, What};

/// Whose a stack is.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Lane {
    /// A thread; of the idle threads, which all have the id zero, that of a CPU.
    Task(i32, Option<u32>),
    /// The task that runs on a CPU.
    Cpu(u32),
    /// There is no telling.
    Any,
}

/// More stacks than that are not looked at for a line that does not say whose it is.
const RECENT: usize = 32;
/// More tasks without a name than that are not remembered.
const WAITING: usize = 64;

impl Lane {
    pub(super) fn task(task: Task, cpu: Option<u32>) -> Lane {
        Lane::Task(task.pid, cpu.filter(|_| task.pid == 0))
    }
}

impl Builder {
    /// The stack that a record belongs to.
    pub(super) fn whose(&mut self, record: &Record) -> usize {
        let task = record.task.or_else(|| self.on_cpu.get(&record.cpu?).copied());
        if let Some(task) = task {
            let stack = self.stack(Lane::task(task, record.cpu), Some(task));
            if record.task.is_none() && self.begins_anew(stack, record) {
                self.by_fit += 1;
            }
            return stack;
        }
        if let Some(cpu) = record.cpu {
            let stack = self.stack(Lane::Cpu(cpu), None);
            self.change_tasks(stack, record);
            return stack;
        }
        let current = match self.current {
            Some(current) => current,
            None => self.stack(Lane::Any, None),
        };
        if self.fits(current, record) {
            return current;
        }
        let mut others = self.recent.iter().copied().filter(|stack| self.stacks[*stack].runs);
        let other = others.find(|stack| self.fits(*stack, record));
        if self.switched {
            // A switch stands before a line of its task: that one is missing, or what its task did before the text began.
            self.calls.damage.guessed += u64::from(other.is_some());
            return other.unwrap_or(current);
        }
        if let Some(other) = other {
            self.by_fit += 1;
            return other;
        }
        // It fits nowhere: where there are several tasks, it may be any one's.
        self.by_fit += u64::from(self.stacks.len() > 1);
        if self.stacks[current].task.is_none() {
            self.change_tasks(current, record);
        }
        current
    }

    /// A record continues a stack as the indentation has it.
    fn fits(&self, stack: usize, record: &Record) -> bool {
        let stack = &self.stacks[stack];
        if !stack.frames.is_empty() {
            return self.continues(&stack.frames, record);
        }
        // Where no call is open, a call without a caller begins. Idle threads make no system calls.
        let What::Entry { function: Some(function), .. } = record.what else {
            return matches!(record.what, What::Event { .. });
        };
        let idle = stack.task.is_some_and(|task| task.pid == 0);
        record.depth == Some(0) && !(idle && self.calls.names[function].contains("sys_"))
    }

    /// A record may be the next of a task whose calls these are.
    fn continues(&self, frames: &[Frame], record: &Record) -> bool {
        let Some(top) = frames.last() else { return false };
        let (Some(depth), Some(top_depth)) = (record.depth, top.depth) else { return true };
        match record.what {
            What::Entry { .. } => depth == top_depth.saturating_add(1),
            What::Exit { function, .. } => {
                depth == top_depth && self.named(top, function) && top.may_take(record.duration_ns)
            }
            // The kernel indents events by the depth of the CPU, not of the task.
            _ => true,
        }
    }

    /// On a stack that is not known to be one task's: a record that does not fit may be that of a task that waited, on this CPU or on
    /// another, and one that begins anew below a call that waits is another task's.
    fn change_tasks(&mut self, stack: usize, record: &Record) {
        if record.depth.is_none() || self.fits(stack, record) {
            return;
        }
        let waited = self.waiting.iter().rposition(|frames| self.continues(frames, record));
        let elsewhere = || {
            let others =
                self.recent.iter().copied().filter(|other| *other != stack && self.stacks[*other].task.is_none());
            others.into_iter().find(|other| {
                let frames = &self.stacks[*other].frames;
                self.waits(frames) && self.continues(frames, record)
            })
        };
        let next = if let Some(waited) = waited {
            self.waiting.remove(waited)
        } else if let Some(other) = elsewhere() {
            std::mem::take(&mut self.stacks[other].frames)
        } else if self.begins_anew(stack, record) {
            Vec::new()
        } else {
            return;
        };
        self.by_fit += 1;
        let before = std::mem::replace(&mut self.stacks[stack].frames, next);
        if before.is_empty() {
            return;
        }
        self.waiting.push(before);
        if self.waiting.len() > WAITING {
            self.calls.damage.no_exit += self.waiting.remove(0).len() as u64;
        }
    }

    /// A record is of an outermost call while a call of the same stack waits: another task's, as a task that waits calls nothing.
    fn begins_anew(&self, stack: usize, record: &Record) -> bool {
        let frames = &self.stacks[stack].frames;
        self.waits(frames) && record.depth.is_some() && record.depth <= frames[0].depth
    }

    /// The innermost call is one of those in which a task leaves its CPU.
    fn waits(&self, frames: &[Frame]) -> bool {
        let name = frames.last().and_then(|frame| self.calls[frame.call].function).map(|name| &self.calls.names[name]);
        name.is_some_and(|name| ["schedule", "wait", "sleep"].iter().any(|word| name.contains(word)))
    }

    pub(super) fn stack(&mut self, lane: Lane, task: Option<Task>) -> usize {
        let stacks = &mut self.stacks;
        *self.by_lane.entry(lane).or_insert_with(|| {
            stacks.push(Stack { task, ..Stack::default() });
            stacks.len() - 1
        })
    }

    pub(super) fn use_stack(&mut self, stack: usize) {
        if self.current == Some(stack) {
            return;
        }
        self.current = Some(stack);
        self.recent.retain(|other| *other != stack);
        self.recent.insert(0, stack);
        self.recent.truncate(RECENT);
    }
}
