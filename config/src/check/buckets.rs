//! `buckets:` with its defaults.

use super::metric::Unit;
use crate::diag::Diagnostic;
use crate::fields::{self, Fields, Keys};
use crate::model::BucketSpec;
use crate::quantity::{Decimal, duration_ns, integer, size_bytes};
use crate::raw::{Entry, Node};
use crate::report::{Problem, Report};

pub(crate) const KEYS: Keys =
    Keys { of: "`buckets`", known: &["schema", "min", "max", "classic", "linear"], later: &[] };
pub(crate) const LINEAR: Keys = Keys { of: "`linear`", known: &["from", "step", "count"], later: &[] };
pub(crate) const MAX_CLASSIC: usize = 64;
pub(crate) const MAX_SCHEMA: u64 = 5;
/// Eight buckets per power of two: each is at most 9 % wide.
pub(crate) const DEFAULT_SCHEMA: u64 = 3;

/// The buckets of a histogram that is exported in `unit`; `entry` is its `buckets:`.
pub(super) fn buckets(entry: Option<&Entry>, unit: &Unit, report: &mut Report) -> Option<BucketSpec> {
    let raw_per_unit = unit.raw_per_unit;
    let Some(Entry { key, value }) = entry else {
        let (min, max) = default_range(unit);
        let (schema, classic) = (DEFAULT_SCHEMA as u8, default_classic(unit));
        return Some(BucketSpec { schema, raw_per_unit, min, max, classic });
    };
    let fields = Fields::read(value, &key.at, &KEYS, report)?;
    let schema =
        fields.get("schema").map_or(Some(DEFAULT_SCHEMA), |node| fields::integer(node, 0..=MAX_SCHEMA, report));
    let range = range(&fields, unit, report);
    let given = match (fields.get("classic"), fields.get("linear")) {
        (Some(_), Some(linear)) => {
            let message = "`classic` and `linear` both say what the classic bounds are";
            report.push(Diagnostic::error(&linear.at, message).hint("leave one of them out"));
            return None;
        }
        (Some(node), None) => Some(classic(node, report)),
        (None, linear) => linear.map(|node| self::linear(node, report)),
    };
    let (min, max) = range?;
    // Default bounds outside a range of the user's would be buckets without use.
    let defaults = || default_classic(unit).into_iter().filter(|bound| within(bound, min, max, unit)).collect();
    let classic = given.unwrap_or_else(|| Some(defaults()))?;
    Some(BucketSpec { schema: schema? as u8, raw_per_unit, min, max, classic })
}

/// `min` and `max` in raw units.
fn range(fields: &Fields<'_>, unit: &Unit, report: &mut Report) -> Option<(u64, u64)> {
    let (min_node, max_node) = (fields.get("min"), fields.get("max"));
    let (default_min, default_max) = default_range(unit);
    let min = min_node.map_or(Some(default_min), |node| bound(node, unit, report));
    let max = max_node.map_or(Some(default_max), |node| bound(node, unit, report));
    let (min, max) = (min?, max?);
    if min >= max {
        let at = max_node.or(min_node).map_or(fields.at, |node| &node.at);
        report.push(Diagnostic::error(at, "`max` of the buckets must be above `min`").hint(range_hint(unit)));
        return None;
    }
    Some((min, max))
}

fn default_range(unit: &Unit) -> (u64, u64) {
    match unit.is_seconds() {
        true => (1_000, 16_000_000_000),
        false => (1, 1 << 30),
    }
}

fn range_hint(unit: &Unit) -> &'static str {
    match unit.is_seconds() {
        true => "the defaults are `min: 1us` and `max: 16s`",
        false => "the defaults are `min: 1` and `max: 1073741824`",
    }
}

/// 1, 2.5, 5 x 10^k s from 1 us to 10 s, or powers of 4 up to 2^30.
fn default_classic(unit: &Unit) -> Vec<String> {
    if !unit.is_seconds() {
        return (0..=15).map(|k| 4u64.pow(k).to_string()).collect();
    }
    let mut bounds = Vec::new();
    for zeros in (0..6).rev() {
        let zeros = "0".repeat(zeros);
        bounds.extend([format!("0.{zeros}1"), format!("0.{zeros}25"), format!("0.{zeros}5")]);
    }
    bounds.extend(["1", "2.5", "5", "10"].map(str::to_owned));
    bounds
}

fn within(bound: &str, min: u64, max: u64, unit: &Unit) -> bool {
    Decimal::parse(bound).is_ok_and(|bound| {
        bound.compare(min, unit.raw_per_unit).is_ge() && bound.compare(max, unit.raw_per_unit).is_le()
    })
}

/// `min` or `max` in raw units, above 0.
fn bound(node: &Node, unit: &Unit, report: &mut Report) -> Option<u64> {
    let what = match (unit.is_seconds(), unit.name.as_str()) {
        (true, _) => "a duration such as `1us`",
        (false, "bytes") => "a size such as `64KiB`",
        (false, _) => "a whole number",
    };
    let bound = fields::parsed(node, what, report, |text| {
        let raw = match (unit.is_seconds(), unit.name.as_str()) {
            (true, _) => duration_ns(text)?,
            (false, "bytes") => size_bytes(text)?,
            (false, _) => integer(text)?,
        };
        match raw {
            0 => Err(Problem::new("bounds of buckets are above 0").hint("values of 0 have a bucket of their own")),
            _ => Ok(raw),
        }
    });
    bound.map(|b| b.value)
}

/// `classic:`, kept as the text the user wrote: it is what `le` will say.
fn classic(node: &Node, report: &mut Report) -> Option<Vec<String>> {
    let items = fields::list(node, "`classic`", report)?;
    let before = report.errors();
    if items.len() > MAX_CLASSIC {
        let message = format!("a histogram has at most {MAX_CLASSIC} classic bounds, and this has {}", items.len());
        report.push(Diagnostic::error(&node.at, message));
    }
    let mut bounds = Vec::new();
    let mut last: Option<Decimal> = None;
    for item in items.iter().take(MAX_CLASSIC) {
        let bound = fields::parsed(item, "a decimal number", report, |text| {
            let bound = Decimal::parse(text)?;
            if last.is_some_and(|last| bound <= last) {
                return Err(Problem::new(format!("classic bounds ascend, and {text} is not above the one before")));
            }
            last = Some(bound);
            Ok(text.to_owned())
        });
        bounds.extend(bound.map(|b| b.value));
    }
    (report.errors() == before).then_some(bounds)
}

/// `linear: { from: 5, step: 5, count: 20 }`: classic bounds at equal distances, in the exported unit.
fn linear(node: &Node, report: &mut Report) -> Option<Vec<String>> {
    let fields = Fields::read(node, &node.at, &LINEAR, report)?;
    let [from, step] = ["from", "step"].map(|name| {
        let node = fields.need(name, "`linear`", report)?;
        let number = |text: &str| match Decimal::parse(text)? {
            zero if zero.is_zero() && name == "step" => Err(Problem::new("`step` must be above 0")),
            number => Ok(number),
        };
        Some(fields::parsed(node, "a decimal number", report, number)?.value)
    });
    let count = fields.need("count", "`linear`", report);
    let count = count.and_then(|node| fields::integer(node, 1..=MAX_CLASSIC as u64, report));
    let (from, step, count) = (from?, step?, count?);
    let bounds: Option<Vec<String>> = (0..count).map(|i| Some(from.plus(step, i)?.to_string())).collect();
    if bounds.is_none() {
        report.push(Diagnostic::error(&node.at, "the last of these bounds is too large"));
    }
    bounds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_classic_bounds_are_in_the_exported_unit() {
        let seconds = default_classic(&Unit { name: "seconds".into(), raw_per_unit: 1_000_000_000 });
        assert_eq!(seconds[..4], ["0.000001", "0.0000025", "0.000005", "0.00001"]);
        assert_eq!(seconds[seconds.len() - 5..], ["0.5", "1", "2.5", "5", "10"]);
        assert_eq!(seconds.len(), 22);
        let plain = default_classic(&Unit { name: String::new(), raw_per_unit: 1 });
        assert_eq!(plain.last().unwrap(), &(1u64 << 30).to_string());
        for bounds in [seconds, plain] {
            assert!(bounds.windows(2).all(|w| Decimal::parse(&w[0]).unwrap() < Decimal::parse(&w[1]).unwrap()));
        }
    }
}
