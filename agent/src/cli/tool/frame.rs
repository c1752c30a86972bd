//! Readings of the agent as data to draw: what came since the last one.

use std::collections::HashMap;
use std::sync::Arc;

use kstrobe_export::snapshot::{Family, Histograms, LabelTexts, Values};

use crate::app::{Account, Totals};
use crate::cli::draw;
use crate::cli::draw::data::{Distribution, Metric, Row};
use crate::config::adhoc::scale::Scale;
use crate::config::plan::PREFIX;

/// The counts of the last reading.
#[derive(Default)]
pub struct Before {
    counters: HashMap<(String, LabelTexts), u64>,
    histograms: HashMap<(String, LabelTexts), Distribution>,
    account: Account,
}

impl Before {
    /// Takes a reading as what the next ones grow from.
    pub fn advance(&mut self, to: &Totals) {
        self.advance_series(to);
        self.account = to.account.clone();
    }

    /// The same without what it leaves out.
    pub fn advance_series(&mut self, to: &Totals) {
        for family in &to.families {
            let name = &family.about.name;
            let key = |at: usize| (name.clone(), family.series[at].labels.clone());
            match &family.values {
                Values::Counters(values) => {
                    self.counters.extend(values.iter().enumerate().map(|(at, value)| (key(at), *value)));
                }
                Values::Histograms(histograms) => {
                    let upper = bounds(histograms);
                    let series = 0..histograms.sums.len();
                    self.histograms.extend(series.map(|at| (key(at), distribution(histograms, &upper, at))));
                }
                Values::Gauges(_) => {}
            }
        }
    }

    /// What a family has grown by; series that have not are left out. Gauges are what they are.
    pub fn grown(&self, family: &Family) -> Metric {
        let about = &family.about;
        let labels = |at: usize| {
            let series = &family.series[at];
            (0..about.label_names.len()).map(|position| family.label(series, position).to_owned()).collect()
        };
        let key = |at: usize| (about.name.clone(), family.series[at].labels.clone());
        let values = match &family.values {
            Values::Counters(values) => {
                let mut rows = Vec::new();
                for (at, value) in values.iter().enumerate() {
                    let before = self.counters.get(&key(at)).copied().unwrap_or(0);
                    // A series that was given back and came again began at 0.
                    let grown = value.checked_sub(before).unwrap_or(*value);
                    rows.extend((grown > 0).then(|| Row { labels: labels(at), value: grown }));
                }
                draw::Values::Counters(rows)
            }
            Values::Gauges(values) => {
                let raw = |at: usize| values[at].exported(about.raw_per_unit) * about.raw_per_unit as f64;
                let rows = (0..values.len()).map(|at| Row { labels: labels(at), value: raw(at) });
                draw::Values::Gauges(rows.collect())
            }
            Values::Histograms(histograms) => {
                let upper = bounds(histograms);
                let mut rows = Vec::new();
                for at in 0..histograms.sums.len() {
                    let grown = since(distribution(histograms, &upper, at), self.histograms.get(&key(at)));
                    rows.extend((grown.count() > 0).then(|| Row { labels: labels(at), value: grown }));
                }
                draw::Values::Histograms(rows)
            }
        };
        Metric {
            name: about.name.strip_prefix(PREFIX).unwrap_or(&about.name).to_owned(),
            scale: Scale::of(about.raw_per_unit),
            unit: about.unit.clone(),
            labels: about.label_names.clone(),
            values,
        }
    }

    /// What the figures since the last reading leave out.
    pub fn missing(&self, account: &Account) -> Account {
        account.since(&self.account)
    }
}

fn bounds(of: &Histograms) -> Arc<[u64]> {
    of.scheme.upper.as_slice().into()
}

fn distribution(of: &Histograms, upper: &Arc<[u64]>, at: usize) -> Distribution {
    Distribution { upper: upper.clone(), counts: of.counts_of(at).to_vec(), sum: of.sums[at] }
}

/// The difference, or all of it when the series began anew.
fn since(now: Distribution, before: Option<&Distribution>) -> Distribution {
    let Some(before) = before.filter(|b| b.counts.iter().zip(&now.counts).all(|(before, now)| before <= now)) else {
        return now;
    };
    let counts = now.counts.iter().zip(&before.counts).map(|(now, before)| now - before).collect();
    Distribution { counts, sum: now.sum.wrapping_sub(before.sum), upper: now.upper }
}
