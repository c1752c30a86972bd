//! Entries and exits of one task to calls.
//!
//! The depth in a record counts the traced functions that its task has open, those from before the trace began included: it tells where a
//! call belongs when records around it are missing.
//!
//! - An entry at a depth ends what is open there or deeper: those exits are missing.
//! - An exit ends what is open deeper, and at its depth what is not its own call. When its own call is not open, it becomes a call that has
//!   what came before it and lies deeper, back to the call that is open around it.
//! - Where records were lost, open calls are in doubt. Those that are not seen to end ended there: what came later is not in them.
//! - A call whose callers are missing belongs to the nearest one that is known.
//! - An interrupt may come after a function was entered and before that is recorded: then its calls stand before the entry of the function
//!   that has them. Or after the function was left and before that is recorded: then they are not in it, though they stand in front of its
//!   exit and their depth says so. The times that the kernel keeps for the function tell.

use super::{Call, CallId, Calls, Ends};

/// What is known of one task at one place in the trace.
#[derive(Clone, Debug, Default)]
pub(super) struct Stack {
    /// Calls that were entered and not left, outermost first; their depths grow.
    open: Vec<Open>,
    /// Calls that are over and belong to no known caller yet, in the order in which they ended.
    over: Vec<Over>,
    /// So many of `open` may have ended where records were lost.
    doubtful: usize,
    /// How long `over` was then.
    doubted_at: usize,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    call: CallId,
    depth: i64,
    /// How long `over` was when it was entered: what is behind that is its own.
    over: usize,
}

#[derive(Clone, Copy, Debug)]
struct Over {
    call: CallId,
    depth: i64,
}

/// When a call began and ended, by the kernel's own account.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Span {
    pub(super) began_ns: Option<u64>,
    pub(super) ended_ns: Option<u64>,
}

/// How an exit is known to belong to an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Match {
    /// Whatever was lost in between.
    Certain,
    /// When nothing was lost.
    Likely,
    /// It does not.
    No,
}

impl Stack {
    /// The innermost open call.
    pub(super) fn innermost(&self) -> Option<CallId> {
        self.open.last().map(|open| open.call)
    }

    /// Records of this task may be missing here.
    pub(super) fn doubt(&mut self) {
        self.doubtful = self.open.len();
        self.doubted_at = self.over.len();
    }

    /// A call begins.
    pub(super) fn enter(&mut self, depth: i64, call: Call, calls: &mut Calls) -> CallId {
        self.end_from(depth, calls);
        let call = add(call, calls);
        self.open.push(Open { call, depth, over: self.over.len() });
        call
    }

    /// A call ends, of which the kernel says that it lasted that long: one that is open when `same` says that it is the one, else `unknown`.
    pub(super) fn exit(
        &mut self,
        depth: i64,
        span: Span,
        same: impl FnOnce(&Call) -> Match,
        unknown: Call,
        calls: &mut Calls,
    ) -> (CallId, Ends) {
        self.end_from(depth + 1, calls);
        if let Some(open) = self.open.last().filter(|open| open.depth == depth) {
            let is_this = match same(&calls[open.call]) {
                Match::Certain => true,
                Match::Likely => self.doubtful < self.open.len(),
                Match::No => false,
            };
            if is_this {
                if self.doubtful == self.open.len() {
                    // It was open all the time, and so was what called it.
                    self.doubtful = 0;
                }
                return (self.close(self.over.len(), span, calls), Ends::Both);
            }
            let to = if span.ended_ns.is_some() { self.deeper_since(depth, span, calls) } else { self.seen() };
            self.miss(to, calls);
        }
        calls.damage.no_entry += 1;
        let call = add(unknown, calls);
        let from = self.deeper_since(depth, span, calls);
        self.adopt(Over { call, depth }, from, self.over.len(), span, calls);
        (call, Ends::Exit)
    }

    /// Nothing more comes.
    pub(super) fn end(&mut self, calls: &mut Calls) {
        calls.damage.open += self.open.len() as u64;
        while !self.open.is_empty() {
            self.close(self.over.len(), Span::default(), calls);
        }
        self.over.clear();
    }

    /// Calls at a depth or deeper are over without having been seen to end.
    fn end_from(&mut self, depth: i64, calls: &mut Calls) {
        while self.open.last().is_some_and(|open| open.depth >= depth) {
            self.miss(self.seen(), calls);
        }
    }

    /// Up to where the innermost open call has what is over, when it is not seen to end.
    fn seen(&self) -> usize {
        if self.doubtful == self.open.len() { self.doubted_at } else { self.over.len() }
    }

    /// The innermost open call was over before what is over from a place on.
    fn miss(&mut self, to: usize, calls: &mut Calls) {
        calls.damage.no_exit += 1;
        let in_doubt = self.doubtful == self.open.len();
        self.close(to, Span::default(), calls);
        if in_doubt {
            // It is itself among what was over then.
            self.doubted_at += 1;
        }
    }

    /// The innermost open call is over, and has what is over up to a place.
    fn close(&mut self, to: usize, span: Span, calls: &mut Calls) -> CallId {
        // Callers make sure that one is open.
        let Some(Open { call, depth, over }) = self.open.pop() else { return CallId(0) };
        self.doubtful = self.doubtful.min(self.open.len());
        let inside = |over: &Over| span.began_ns.is_some_and(|began| calls[over.call].start_ns >= Some(began));
        let from = self.deeper(over, depth, inside);
        interrupts(&self.over[from..over], calls);
        self.adopt(Over { call, depth }, from, to.max(over), span, calls);
        call
    }

    /// Where the calls begin that are over, stand before a place and in the call that is open around it, lie deeper and are wanted.
    fn deeper(&self, end: usize, depth: i64, wanted: impl Fn(&Over) -> bool) -> usize {
        let base = self.open.last().map_or(0, |open| open.over);
        let before = self.over[base..end].iter().rev();
        end - before.take_while(|over| over.depth > depth && wanted(over)).count()
    }

    /// The same at the end, for a call that is over: where the kernel's own times are known, what began before it is not in it.
    fn deeper_since(&self, depth: i64, span: Span, calls: &Calls) -> usize {
        let exact = span.began_ns.filter(|_| span.ended_ns.is_some());
        self.deeper(self.over.len(), depth, |over| match (exact, calls[over.call].start_ns) {
            (Some(began), Some(start)) => start >= began,
            _ => true,
        })
    }

    /// A call is over: gives it what is over between two places and began before it ended.
    fn adopt(&mut self, parent: Over, from: usize, to: usize, span: Span, calls: &mut Calls) {
        let late = |over: &&Over| span.ended_ns.is_some_and(|ended| calls[over.call].start_ns >= Some(ended));
        let late = self.over[from..to].iter().rev().take(LATE).take_while(late).count();
        let inside = to - late;
        interrupts(&self.over[inside..to], calls);
        for over in &self.over[from..inside] {
            calls.calls[over.call.0 as usize].parent = Some(parent.call);
            calls.calls[parent.call.0 as usize].children.push(over.call);
        }
        self.over.splice(from..inside, [parent]);
        self.doubted_at = self.doubted_at.min(from);
    }
}

/// Calls of one interrupt without a caller: three or four. They are looked at again with every call that ends before them.
const LATE: usize = 16;

/// What was recorded inside a call but outside of its times can only come from interrupts.
fn interrupts(over: &[Over], calls: &mut Calls) {
    for over in over {
        calls.calls[over.call.0 as usize].interrupt = true;
    }
}

fn add(call: Call, calls: &mut Calls) -> CallId {
    let id = CallId(calls.calls.len() as u32);
    calls.calls.push(call);
    id
}
