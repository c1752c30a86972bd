//! What is shown and what is chosen: keys and answers in, requests out. It knows no terminal and no clock.

use super::answers::{Event, Events, History, Kind, Probes, Query, Summary};
use super::merge::NODE;
use super::request::{Answer, Chosen, Request, Sort, Span};
use super::source::{Answered, Failure};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Seconds of a row's strip.
const STRIP_SECONDS: u64 = 60;
/// Widths of strips, in which a minute is whole columns.
const STRIP_WIDTHS: [u64; 5] = [60, 30, 20, 15, 10];
/// Seconds that a metric's heat map has at least.
const MAP_SECONDS: u64 = 300;
/// Slow events below a heat map.
pub const MAP_EVENTS: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Enter,
    Escape,
    Backspace,
    Char(char),
    Interrupt,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    Continue,
    Quit,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Page {
    Metrics,
    Metric(MetricPage),
    /// Slow events of a probe, or of all.
    Events(Option<String>),
}

#[derive(Clone, Debug, PartialEq)]
pub struct MetricPage {
    pub metric: String,
    /// Only these series.
    pub chosen: Chosen,
    /// Which labels the table is by, a place in the choices: all that are not chosen, then each of them.
    pub by: usize,
}

/// Terminal cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub width: u16,
    pub height: u16,
}

#[derive(Debug)]
pub struct State {
    /// Where Escape leads back to; the last is shown, and the first is that of all metrics.
    pages: Vec<Page>,
    pub size: Size,
    pub sort: Sort,
    /// Part of the names of metrics that are shown.
    pub filter: String,
    /// Whether keys are letters of the filter.
    pub edits_filter: bool,
    pub shows_help: bool,
    /// Row of each page, as deep as `pages`.
    rows: Vec<usize>,
    /// End of what is shown; `None` for now.
    pub end: Option<u64>,
    /// Whether the probes are those of this command.
    pub own_probes: bool,
    pub probes: Option<Probes>,
    pub history: Option<History>,
    pub events: Option<Events>,
    /// Answers to the queries of the page that is shown.
    queries: HashMap<Request, Query>,
    /// Why the last request failed; `None` after one that did not.
    pub error: Option<String>,
    /// Nodes that have no part in the last answer to a request.
    failed: HashMap<Request, Vec<Failure>>,
}

impl State {
    pub fn new(size: Size, metric: Option<String>) -> State {
        let mut state = State {
            pages: vec![Page::Metrics],
            size,
            sort: Sort::default(),
            filter: String::new(),
            edits_filter: false,
            shows_help: false,
            rows: vec![0],
            end: None,
            own_probes: false,
            probes: None,
            history: None,
            events: None,
            queries: HashMap::new(),
            error: None,
            failed: HashMap::new(),
        };
        if let Some(metric) = metric {
            state.open(Page::Metric(MetricPage { metric, chosen: Vec::new(), by: 0 }));
        }
        state
    }

    pub fn page(&self) -> &Page {
        self.pages.last().unwrap_or(&Page::Metrics)
    }

    /// The row that the cursor is on.
    pub fn row(&self) -> usize {
        self.rows.last().copied().unwrap_or_default().min(self.rows_of_page().saturating_sub(1))
    }

    fn rows_of_page(&self) -> usize {
        match self.page() {
            Page::Metrics => self.metrics().len(),
            Page::Metric(page) => self.table(page).map_or(0, |query| query.groups.len()),
            Page::Events(probe) => self.events_of(probe.as_deref()).len(),
        }
    }

    /// Rows of the list of metrics that fit: there is a header, a head of the table and a line of keys.
    pub fn rows_that_fit(&self) -> usize {
        usize::from(self.size.height).saturating_sub(3)
    }

    /// First row of a list that is shown, so that the cursor is on it.
    pub fn first_row(&self, fit: usize) -> usize {
        self.row().saturating_sub(fit.saturating_sub(1))
    }

    /// Metrics that pass the filter, in their order.
    pub fn metrics(&self) -> Vec<&Summary> {
        let Some(history) = &self.history else { return Vec::new() };
        let mut metrics: Vec<&Summary> = history.metrics.iter().filter(|m| m.metric.contains(&self.filter)).collect();
        let figure = |metric: &Summary| match self.sort {
            Sort::Rate => metric.rate,
            Sort::P50 => metric.p50,
            Sort::P99 => metric.p99,
            Sort::Max => metric.max,
            Sort::Name => None,
        };
        metrics.sort_by(|a, b| {
            let by_figure = figure(b).unwrap_or(-1.0).total_cmp(&figure(a).unwrap_or(-1.0));
            by_figure.then_with(|| a.metric.cmp(&b.metric))
        });
        metrics
    }

    pub fn summary(&self, metric: &str) -> Option<&Summary> {
        let full = |summary: &&Summary| summary.metric == metric || plain(&summary.metric) == metric;
        self.history.as_ref()?.metrics.iter().find(full)
    }

    /// Columns of a strip of the last minute in a terminal of this width.
    pub fn strip_width(&self) -> u64 {
        let room = u64::from(self.size.width).saturating_sub(super::screen::metrics::FIXED_WIDTH);
        STRIP_WIDTHS.into_iter().find(|width| *width <= room).unwrap_or(STRIP_WIDTHS[4])
    }

    fn strip_request(&self, metric: &str) -> Request {
        let span = Span { end: self.end, seconds: STRIP_SECONDS, step: STRIP_SECONDS / self.strip_width() };
        Request::Total { metric: metric.to_owned(), chosen: Vec::new(), span }
    }

    /// The last minute of a metric of the list.
    pub fn strip(&self, metric: &str) -> Option<&Query> {
        self.queries.get(&self.strip_request(metric))
    }

    /// Columns of a heat map.
    pub fn map_width(&self) -> u64 {
        u64::from(self.size.width).saturating_sub(super::screen::metric::AXIS_WIDTH).max(1)
    }

    fn map_span(&self) -> Span {
        let step = MAP_SECONDS.div_ceil(self.map_width());
        Span { end: self.end, seconds: step * self.map_width(), step }
    }

    pub fn map_request(&self, page: &MetricPage) -> Request {
        Request::Total { metric: page.metric.clone(), chosen: page.chosen.clone(), span: self.map_span() }
    }

    pub fn map(&self, page: &MetricPage) -> Option<&Query> {
        self.queries.get(&self.map_request(page))
    }

    /// Labels of the table; none where no label is left to divide by.
    pub fn by(&self, page: &MetricPage) -> Vec<String> {
        let mut choices = self.choices(page);
        if choices.is_empty() { Vec::new() } else { choices.swap_remove(page.by % choices.len()) }
    }

    /// All labels, then each alone. Rows of all are of all nodes together: a node is chosen by its own.
    fn choices(&self, page: &MetricPage) -> Vec<Vec<String>> {
        let free = self.free_labels(page);
        let all: Vec<String> = free.iter().filter(|label| *label != NODE).cloned().collect();
        let each = free.into_iter().map(|label| vec![label]);
        // Of one label, all and each are the same.
        let all = Some(all).filter(|all| all.len() > 1);
        all.into_iter().chain(each).collect()
    }

    fn free_labels(&self, page: &MetricPage) -> Vec<String> {
        let labels = self.summary(&page.metric).map(|summary| summary.labels.as_slice()).unwrap_or_default();
        labels.iter().filter(|label| page.chosen.iter().all(|(chosen, _)| chosen != *label)).cloned().collect()
    }

    /// `None` where no label is left to divide by.
    pub fn table_request(&self, page: &MetricPage) -> Option<Request> {
        let by = Some(self.by(page)).filter(|by| !by.is_empty())?;
        // With the columns of the heat map, whose range the agent widens to the same whole columns.
        let span = self.map_span();
        let (metric, chosen) = (page.metric.clone(), page.chosen.clone());
        Some(Request::Table { metric, by, chosen, sort: self.sort, span })
    }

    pub fn table(&self, page: &MetricPage) -> Option<&Query> {
        self.queries.get(&self.table_request(page)?)
    }

    /// The last slow events of a metric's probe, the newest first.
    pub fn events_of(&self, probe: Option<&str>) -> Vec<&Event> {
        let events = self.events.iter().flat_map(|events| events.events.iter().rev());
        events.filter(|event| probe.is_none_or(|probe| event.probe == probe)).collect()
    }

    /// What the page needs.
    pub fn wanted(&self) -> Vec<Request> {
        let mut wanted = vec![Request::History, Request::Probes];
        match self.page() {
            Page::Metrics => {
                let (metrics, fit) = (self.metrics(), self.rows_that_fit());
                let shown = metrics.iter().skip(self.first_row(fit)).take(fit);
                wanted.extend(shown.map(|metric| self.strip_request(&metric.metric)));
            }
            Page::Metric(page) => {
                wanted.push(self.map_request(page));
                wanted.extend(self.table_request(page));
                wanted.push(Request::Events { probe: None });
            }
            Page::Events(_) => wanted.push(Request::Events { probe: None }),
        }
        wanted
    }

    /// Takes an answer. One that is not wanted any more is dropped, with those of pages before.
    pub fn take(&mut self, request: Request, answered: Answered) {
        self.error = None;
        let wanted = self.wanted();
        self.failed.retain(|request, _| wanted.contains(request));
        self.failed.insert(request.clone(), answered.failed);
        match answered.answer {
            Answer::Probes(probes) => self.probes = Some(probes),
            Answer::History(history) => self.history = Some(history),
            Answer::Events(events) => self.events = Some(events),
            Answer::Query(query) => {
                self.queries.retain(|request, _| wanted.contains(request));
                if wanted.contains(&request) {
                    self.queries.insert(request, query);
                }
            }
        }
    }

    pub fn failed(&mut self, error: String) {
        self.error = Some(error);
    }

    /// Nodes without a part in some answer, each with one reason.
    pub fn failures(&self) -> Vec<Failure> {
        let by_node: BTreeMap<&str, &Failure> =
            self.failed.values().flatten().map(|failure| (failure.node.as_str(), failure)).collect();
        by_node.into_values().cloned().collect()
    }

    /// Of all nodes, how many have a part in the answers; `None` where one agent answers for itself.
    pub fn nodes(&self) -> Option<(usize, usize)> {
        let nodes = self.probes.as_ref().map(|probes| probes.nodes.as_slice()).unwrap_or_default();
        let failures = self.failures();
        let all: BTreeSet<&str> =
            nodes.iter().chain(failures.iter().map(|failure| &failure.node)).map(String::as_str).collect();
        (!all.is_empty()).then(|| (all.len() - failures.len(), all.len()))
    }

    pub fn press(&mut self, key: Key) -> Flow {
        match key {
            Key::Interrupt => return Flow::Quit,
            _ if self.shows_help => self.shows_help = false,
            _ if self.edits_filter => self.edit_filter(key),
            Key::Char('q') => return Flow::Quit,
            Key::Char('?') => self.shows_help = true,
            Key::Up | Key::Char('k') => self.go(|row, _| row.saturating_sub(1)),
            Key::Down | Key::Char('j') => self.go(|row, _| row + 1),
            Key::PageUp => self.go(usize::saturating_sub),
            Key::PageDown => self.go(|row, page| row + page),
            Key::Home => self.go(|_, _| 0),
            Key::End => self.go(|_, _| usize::MAX),
            Key::Enter => self.enter(),
            Key::Escape | Key::Backspace => self.back(),
            Key::Char('s') => self.sort = self.sort.next(),
            Key::Char('/') if *self.page() == Page::Metrics => self.edits_filter = true,
            Key::Char('b') => self.next_labels(),
            Key::Char('e') => self.open_events(),
            Key::Char('[') => self.shift(false),
            Key::Char(']') => self.shift(true),
            Key::Char(_) => {}
        }
        Flow::Continue
    }

    fn go(&mut self, to: impl FnOnce(usize, usize) -> usize) {
        let last = self.rows_of_page().saturating_sub(1);
        let row = to(self.row(), self.rows_that_fit()).min(last);
        if let Some(of_page) = self.rows.last_mut() {
            *of_page = row;
        }
    }

    fn edit_filter(&mut self, key: Key) {
        match key {
            Key::Char(letter) => self.filter.push(letter),
            Key::Backspace => _ = self.filter.pop(),
            Key::Escape => (self.edits_filter, self.filter) = (false, String::new()),
            _ => self.edits_filter = false,
        }
        self.go(|_, _| 0);
    }

    fn open(&mut self, page: Page) {
        self.pages.push(page);
        self.rows.push(0);
    }

    fn back(&mut self) {
        if self.pages.len() > 1 {
            self.pages.pop();
            self.rows.pop();
        } else {
            self.filter.clear();
        }
    }

    fn enter(&mut self) {
        let next = match self.page() {
            Page::Metrics => self.metrics().get(self.row()).map(|metric| MetricPage {
                metric: metric.metric.clone(),
                chosen: Vec::new(),
                by: 0,
            }),
            Page::Metric(page) => self.table(page).and_then(|table| {
                let labels = table.groups.get(self.row())?.labels.clone();
                let chosen = page.chosen.iter().cloned().chain(labels).collect();
                Some(MetricPage { chosen, by: 0, ..page.clone() })
            }),
            Page::Events(_) => None,
        };
        if let Some(page) = next {
            self.open(Page::Metric(page));
        }
    }

    fn next_labels(&mut self) {
        let Page::Metric(page) = self.page() else { return };
        let by = (page.by + 1) % self.choices(page).len().max(1);
        if let Some(Page::Metric(page)) = self.pages.last_mut() {
            page.by = by;
        }
    }

    fn open_events(&mut self) {
        match self.page() {
            Page::Metrics => self.open(Page::Events(None)),
            Page::Metric(page) => {
                let probe = self.summary(&page.metric).map(|summary| summary.probe.clone());
                self.open(Page::Events(probe));
            }
            Page::Events(_) => {}
        }
    }

    /// Half of what is shown to the past, or back to now.
    fn shift(&mut self, is_later: bool) {
        let Some(newest) = self.history.as_ref().and_then(|history| history.newest) else { return };
        let half = match self.page() {
            Page::Metrics => STRIP_SECONDS / 2,
            Page::Metric(_) => self.map_span().seconds / 2,
            Page::Events(_) => return,
        };
        let end = self.end.unwrap_or(newest);
        let end = if is_later { end + half } else { end.saturating_sub(half) };
        // Time has gone on since: as many steps lead back to now as away from it.
        self.end = Some(end).filter(|end| !is_later || end + half < newest);
    }
}

/// A metric's name without the prefix that all have.
pub fn plain(metric: &str) -> &str {
    metric.strip_prefix(crate::config::plan::PREFIX).unwrap_or(metric)
}

/// The values of a metric's strip: p99, the rate or the value by column.
pub fn strip_values(query: &Query) -> &[Option<f64>] {
    let Some(group) = query.groups.first() else { return &[] };
    match query.kind {
        Kind::Histogram => &group.p99,
        Kind::Counter => &group.rate,
        Kind::Gauge => &group.value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn state(labels: &[&str]) -> State {
        let mut state = State::new(Size { width: 80, height: 24 }, Some("x_total".into()));
        let list =
            json!({"newest": 100, "metrics": [{"metric": "kstrobe_x_total", "type": "counter", "labels": labels}]});
        let answer = Answer::History(serde_json::from_value(list).unwrap());
        state.take(Request::History, Answered { answer, failed: Vec::new() });
        state
    }

    /// Labels of the table, and after each press of a key up to the first again.
    fn tables(state: &mut State) -> Vec<String> {
        let mut tables = Vec::new();
        loop {
            let Page::Metric(page) = state.page() else { panic!("a metric") };
            let by = state.by(page).join(",");
            if tables.first() == Some(&by) {
                return tables;
            }
            tables.push(by);
            state.press(Key::Char('b'));
        }
    }

    #[test]
    fn a_table_is_by_all_labels_or_one_of_them() {
        assert_eq!(tables(&mut state(&["comm", "fd"])), ["comm,fd", "comm", "fd"]);
        assert_eq!(tables(&mut state(&["comm"])), ["comm"]);
        assert_eq!(tables(&mut state(&[])), [""]);
    }

    #[test]
    fn rows_are_by_node_only_where_that_is_chosen() {
        assert_eq!(tables(&mut state(&["comm", "fd", "node"])), ["comm,fd", "comm", "fd", "node"]);
        assert_eq!(tables(&mut state(&["comm", "node"])), ["comm", "node"]);
        assert_eq!(tables(&mut state(&["node"])), ["node"]);
    }

    #[test]
    fn nodes_count_that_have_a_part_in_all_answers() {
        let mut state = state(&["node"]);
        assert_eq!(state.nodes(), None);
        let failure = |node: &str, error: &str| Failure { node: node.into(), error: error.into() };
        let probes = Probes { nodes: vec!["n1".into(), "n2".into(), "n3".into()], ..Probes::default() };
        let answered = Answered { answer: Answer::Probes(probes), failed: vec![failure("n4", "no answer")] };
        state.take(Request::Probes, answered);
        assert_eq!(state.nodes(), Some((3, 4)));
        let whole = Answer::History(state.history.clone().unwrap());
        let failed = vec![failure("n1", "no history")];
        state.take(Request::History, Answered { answer: whole.clone(), failed });
        assert_eq!(state.nodes(), Some((2, 4)));
        assert_eq!(state.failures(), [failure("n1", "no history"), failure("n4", "no answer")]);
        state.take(Request::History, Answered { answer: whole, failed: Vec::new() });
        assert_eq!(state.nodes(), Some((3, 4)));
    }
}
