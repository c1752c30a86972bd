//! Figures of all reports of calls, and which of them move.

use std::collections::HashMap;
use std::fmt::Write;

use kstrobe_ftrace::calls::Calls;
use kstrobe_ftrace::report::{
    Activity, Asked, Bounds, CallWait, TreeLine, WorkRow, activity, functions, of_marks, slowest, waits,
};

use super::rule::Line;

/// What a line may move of a figure.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Of all calls.
    Sum,
    Row,
    /// The shortest, the longest and the mean call: no line but that of the call itself.
    Call,
}

/// A time of a report.
#[derive(Clone, Copy)]
struct Figure {
    field: &'static str,
    kind: Kind,
    ns: u64,
    exact: bool,
}

impl Figure {
    fn new(field: &'static str, kind: Kind, ns: u64, bounds: &Bounds) -> Figure {
        Figure { field, kind, ns, exact: bounds.of(field).is_exact() }
    }
}

/// Which table of which report.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Table {
    Sums,
    Causes,
    Layers,
    Modules,
    Functions,
    AllTimes,
    AllTimesByModule,
}

const TABLES: usize = 7;
const ROOTS: usize = 2;

/// A table's row.
struct Row {
    place: (usize, Table),
    name: String,
    figures: Vec<Figure>,
}

/// Of which rows a text without a line has one, too: those of this turn.
#[derive(Default)]
pub struct Marks {
    turn: u32,
    seen: Vec<u32>,
}

/// What the reports of a whole text say.
#[derive(Default)]
pub struct Before {
    rows: Vec<Row>,
    by_name: [[HashMap<String, usize>; TABLES]; ROOTS],
    /// By function, each call of it.
    trees: HashMap<String, Vec<TreeLine>>,
    waits: Vec<CallWait>,
}

/// Tells all rows of all reports, tables' sums before their rows.
fn each_row(
    calls: &Calls,
    seen: &Activity,
    asked: [Option<&Asked>; ROOTS],
    mut tell: impl FnMut((usize, Table), &str, &[Figure]),
) -> Vec<CallWait> {
    let mut listed = Vec::new();
    let mut name = String::new();
    for (at, asked) in asked.into_iter().enumerate() {
        let Some(asked) = asked else { continue };
        let report = waits(calls, seen, asked);
        let sum = |field, ns| Figure::new(field, Kind::Sum, ns, &report.bounds);
        let sums = [
            sum("total_ns", report.total_ns),
            sum("waited_ns", report.waited_ns),
            sum("interrupted_ns", report.interrupted_ns),
            sum("worked_ns", report.worked_ns),
        ];
        tell((at, Table::Sums), "waits", &sums);
        for row in &report.causes {
            let figure = |field, ns| Figure::new(field, Kind::Row, ns, &row.bounds);
            let figures = [figure("total_ns", row.total_ns), figure("max_ns", row.max_ns)];
            tell((at, Table::Causes), &row.cause, &figures);
        }
        let mut work = |table, rows: &[WorkRow]| {
            for row in rows {
                tell((at, table), &row.name, &[Figure::new("self_ns", Kind::Row, row.self_ns, &row.bounds)]);
            }
        };
        work(Table::Layers, &report.layers);
        work(Table::Modules, &report.modules);
        work(Table::Functions, &report.functions);
        listed.extend(report.calls);
        let report = functions(calls, seen, asked);
        tell((at, Table::Sums), "functions", &[Figure::new("self_ns", Kind::Sum, report.self_ns, &report.bounds)]);
        for row in &report.functions {
            let figure = |field, kind, ns| Figure::new(field, kind, ns, &row.bounds);
            let figures = [
                figure("total_ns", Kind::Row, row.total_ns),
                figure("self_ns", Kind::Row, row.self_ns),
                figure("min_ns", Kind::Call, row.min_ns),
                figure("avg_ns", Kind::Call, row.avg_ns),
                figure("max_ns", Kind::Call, row.max_ns),
            ];
            name.clear();
            let _ = write!(name, "{} [{}]", row.function, row.module);
            tell((at, Table::AllTimes), &name, &figures);
        }
        for row in &report.modules {
            let figure = |field, ns| Figure::new(field, Kind::Row, ns, &row.bounds);
            let figures = [figure("total_ns", row.total_ns), figure("self_ns", row.self_ns)];
            tell((at, Table::AllTimesByModule), &row.module, &figures);
        }
    }
    listed
}

fn asked(root: Option<&str>, slowest: usize) -> Asked {
    Asked { root: root.map(str::to_owned), slowest, depth: usize::MAX, ..Asked::default() }
}

/// Calls that a report lists when nothing else is asked for.
const LISTED: usize = 10;

impl Before {
    pub fn of(calls: &Calls, root: Option<&str>) -> Before {
        let mut before = Before::default();
        let seen = activity(of_marks(calls));
        let all = asked(None, usize::MAX);
        let of_root = root.map(|root| asked(Some(root), usize::MAX));
        before.waits = each_row(calls, &seen, [Some(&all), of_root.as_ref()], |place, name, figures| {
            before.by_name[place.0][place.1 as usize].insert(name.to_owned(), before.rows.len());
            before.rows.push(Row { place, name: name.to_owned(), figures: figures.to_vec() });
        });
        for line in slowest(calls, &seen, &all).calls.into_iter().flat_map(|call| call.tree) {
            before.trees.entry(line.function.clone()).or_default().push(line);
        }
        before
    }

    /// Figures of a text without a line that moved by more than they may, and have a sign neither before nor after.
    pub fn moved(&self, calls: &Calls, root: Option<&str>, line: &Line, marks: &mut Marks) -> Vec<String> {
        let seen = activity(of_marks(calls));
        let mut moved = Vec::new();
        marks.turn += 1;
        marks.seen.resize(self.rows.len(), 0);
        let (all, of_root) = (asked(None, LISTED), root.map(|root| asked(Some(root), LISTED)));
        // Of a row that is not there, the sums of the same report tell whether something may be missing.
        let mut whole = [true; ROOTS];
        let listed = each_row(calls, &seen, [Some(&all), of_root.as_ref()], |place, name, figures| {
            if place.1 == Table::Sums {
                whole[place.0] &= figures.iter().all(|figure| figure.exact);
            }
            match self.by_name[place.0][place.1 as usize].get(name) {
                Some(at) => {
                    marks.seen[*at] = marks.turn;
                    compare(&self.rows[*at], figures, root, line, &mut moved);
                }
                None => {
                    let none = figures.iter().map(|figure| Figure { ns: 0, exact: self.is_whole(place.0), ..*figure });
                    let none = Row { place, name: name.to_owned(), figures: none.collect() };
                    compare(&none, figures, root, line, &mut moved);
                }
            }
        });
        for (row, seen) in self.rows.iter().zip(&marks.seen) {
            if *seen != marks.turn {
                let none = |figure: &Figure| Figure { ns: 0, exact: whole[row.place.0], ..*figure };
                compare(row, &row.figures.iter().map(none).collect::<Vec<_>>(), root, line, &mut moved);
            }
        }
        self.listed(&listed, line, &mut moved);
        for call in slowest(calls, &seen, &all).calls {
            call.tree.iter().for_each(|shown| self.shown(shown, line, &mut moved));
        }
        moved
    }

    /// Nothing is missing in a report of the whole text.
    fn is_whole(&self, root: usize) -> bool {
        let sums = self.rows.iter().filter(|row| row.place == (root, Table::Sums));
        sums.flat_map(|row| &row.figures).all(|figure| figure.exact)
    }

    /// Each call that is listed is one of the whole text, of the length that its line says. Without the line of a call, those that it made
    /// may be listed, too.
    fn listed(&self, calls: &[CallWait], line: &Line, moved: &mut Vec<String>) {
        for call in calls.iter().filter(|call| call.bounds.of("total_ns").is_exact()) {
            let figures = |call: &CallWait| {
                let all = [
                    ("waited_ns", call.waited_ns),
                    ("interrupted_ns", call.interrupted_ns),
                    ("worked_ns", call.worked_ns),
                ];
                all.map(|(field, ns)| Figure::new(field, Kind::Sum, ns, &call.bounds))
            };
            let is = |other: &&CallWait| other.total_ns == call.total_ns;
            let after = figures(call);
            let near = |other: &CallWait| figures(other).iter().zip(&after).all(|(one, two)| near(one, two, line));
            let none = line.call.is_some() && !self.waits.iter().any(|other| is(&other));
            if !none && !self.waits.iter().filter(is).any(near) {
                moved.push(format!("{} as it is listed: {:?}", call.function, after.map(|figure| figure.ns)));
            }
        }
    }

    /// The same for a line of a tree; without its beginning a call has another name.
    fn shown(&self, shown: &TreeLine, line: &Line, moved: &mut Vec<String>) {
        let exact = |line: &TreeLine| line.bounds.is_exact();
        if !exact(shown) {
            return;
        }
        let is = |other: &TreeLine| {
            let near = other.self_ns.abs_diff(shown.self_ns) <= line.row_ns && other.total_ns == shown.total_ns;
            near || !exact(other) && other.total_ns == shown.total_ns
        };
        let same = self.trees.get(&shown.function).is_some_and(|lines| lines.iter().any(is));
        let renamed = || line.call.is_some() && self.trees.values().flatten().any(is);
        if !same && !renamed() {
            let TreeLine { function, total_ns, self_ns, .. } = shown;
            moved.push(format!("{function} in a tree: {total_ns}, itself {self_ns}"));
        }
    }
}

fn near(one: &Figure, two: &Figure, line: &Line) -> bool {
    let allowed = match one.kind {
        Kind::Sum => line.sum_ns,
        Kind::Row => line.row_ns,
        Kind::Call => 0,
    };
    !(one.exact && two.exact) || one.ns.abs_diff(two.ns) <= allowed
}

/// Compares a row before and after.
fn compare(row: &Row, after: &[Figure], root: Option<&str>, line: &Line, moved: &mut Vec<String>) {
    for (one, two) in row.figures.iter().zip(after) {
        // A call of the root that was asked for has all that it made with it.
        let own = || {
            let is = |(function, module): &(String, String)| {
                row.name == format!("{function} [{module}]") || row.place.0 == 1 && root == Some(function.as_str())
            };
            line.call.as_ref().is_some_and(|call| is(call) || row.name == "(unknown) [kernel]")
        };
        let may = near(one, two, line) || one.kind == Kind::Call && own();
        if !may {
            let of = if row.place.0 == 0 { "all" } else { "root" };
            let allowed = if one.kind == Kind::Sum { line.sum_ns } else { line.row_ns };
            let table = row.place.1 as usize;
            moved.push(format!("{of} {table} {} {}: {} to {}, {allowed} allowed", row.name, one.field, one.ns, two.ns));
        }
    }
}
