//! Queries as text. Each is made of selectors, so that every one of them has the same matchers.

use kstrobe_export::bound_text;

/// Which form of a histogram a query reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `_bucket`, `_sum` and `_count` series.
    Classic,
    /// One series whose samples are histograms.
    Native,
}

/// Both forms.
pub const FORMS: [Form; 2] = [Form::Classic, Form::Native];

impl Form {
    /// The word for people and file names.
    pub fn name(self) -> &'static str {
        match self {
            Form::Classic => "classic",
            Form::Native => "native",
        }
    }
}

/// A histogram under some matchers, over a window: `[5m]` is `5m`.
#[derive(Clone, Copy, Debug)]
pub struct Histogram<'a> {
    pub name: &'a str,
    /// Matchers without braces, may be empty.
    pub matchers: &'a str,
    /// Window of the rates.
    pub window: &'a str,
    pub form: Form,
}

impl Histogram<'_> {
    fn rate(&self, suffix: &str, more: &str) -> String {
        format!("rate({}{suffix}{}[{}])", self.name, braces(self.matchers, more), self.window)
    }

    /// Observations per second.
    pub fn count(&self, by: &str) -> String {
        match self.form {
            Form::Classic => sum(by, &self.rate("_count", "")),
            Form::Native => format!("histogram_count({})", sum(by, &self.rate("", ""))),
        }
    }

    /// Sum of the observed values per second.
    pub fn total(&self, by: &str) -> String {
        match self.form {
            Form::Classic => sum(by, &self.rate("_sum", "")),
            Form::Native => format!("histogram_sum({})", sum(by, &self.rate("", ""))),
        }
    }

    /// The value that a share `q` of the observations does not exceed.
    pub fn quantile(&self, q: f64, by: &str) -> String {
        match self.form {
            Form::Classic => {
                let by = if by.is_empty() { "le".to_owned() } else { format!("{by}, le") };
                format!("histogram_quantile({q}, {})", sum(&by, &self.rate("_bucket", "")))
            }
            Form::Native => format!("histogram_quantile({q}, {})", sum(by, &self.rate("", ""))),
        }
    }

    /// Share of the observations above a bound, which must be one of the classic bounds. Nothing where there were none.
    pub fn share_above(&self, bound: f64, by: &str) -> String {
        match self.form {
            Form::Classic => {
                let below = sum(by, &self.rate("_bucket", &format!("le=\"{}\"", bound_text(bound))));
                format!("1 - {below} / ({} > 0)", self.count(by))
            }
            // `* 1 > 0` would not do: without observations the fraction is NaN, which is above nothing.
            Form::Native => {
                let rate = sum(by, &self.rate("", ""));
                format!("1 - histogram_fraction(0, {bound}, {rate}) and histogram_count({rate}) > 0")
            }
        }
    }

    /// Counts per bucket of each step, for a heatmap.
    pub fn buckets(&self) -> String {
        let increase =
            |suffix: &str| format!("increase({}{suffix}{}[{}])", self.name, braces(self.matchers, ""), self.window);
        match self.form {
            Form::Classic => sum("le", &increase("_bucket")),
            Form::Native => sum("", &increase("")),
        }
    }
}

/// `{a, b}`, or nothing when both are empty.
pub fn braces(matchers: &str, more: &str) -> String {
    match (matchers.is_empty(), more.is_empty()) {
        (true, true) => String::new(),
        (false, false) => format!("{{{matchers}, {more}}}"),
        _ => format!("{{{matchers}{more}}}"),
    }
}

/// `sum by (by) (what)`
pub fn sum(by: &str, what: &str) -> String {
    if by.is_empty() { format!("sum({what})") } else { format!("sum by ({by}) ({what})") }
}

/// `sum by (by) (rate(counter{matchers}[window]))`
pub fn rate(counter: &str, matchers: &str, window: &str, by: &str) -> String {
    sum(by, &format!("rate({counter}{}[{window}])", braces(matchers, "")))
}

/// The largest `n`.
pub fn top(n: u32, what: &str) -> String {
    format!("topk({n}, {what})")
}
