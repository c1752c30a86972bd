//! Which seconds of a history: `--from` and `--to`.

use thiserror::Error;

#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct RangeArgs {
    /// First second: Unix seconds, or -S for S seconds before the newest second [default: the oldest].
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = time)]
    from: Option<Time>,
    /// End of the last second, in the same way [default: the newest].
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = time)]
    to: Option<Time>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Time {
    At(u64),
    Ago(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("write Unix seconds, or -S for S seconds before the newest second")]
struct TimeError;

fn time(text: &str) -> Result<Time, TimeError> {
    let (digits, make): (_, fn(u64) -> Time) = match text.strip_prefix('-') {
        Some(ago) => (ago, Time::Ago),
        None => (text, Time::At),
    };
    digits.parse().map(make).map_err(|_| TimeError)
}

impl RangeArgs {
    /// Whether it is less than all.
    pub(super) fn is_given(&self) -> bool {
        self.from.or(self.to).is_some()
    }

    /// Unix seconds, from the first to before the second.
    pub(super) fn seconds(&self, newest: u64) -> (u64, u64) {
        let at = |time: Option<Time>, default| match time {
            Some(Time::At(time)) => time,
            Some(Time::Ago(seconds)) => newest.saturating_sub(seconds),
            None => default,
        };
        (at(self.from, 0), at(self.to, newest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_of_unix_seconds_or_before_the_newest() {
        let seconds =
            |from: &str, to: &str| RangeArgs { from: time(from).ok(), to: time(to).ok() }.seconds(1_700_000_100);
        assert_eq!(seconds("-60", ""), (1_700_000_040, 1_700_000_100));
        assert_eq!(seconds("1700000000", "-10"), (1_700_000_000, 1_700_000_090));
        assert_eq!(seconds("", ""), (0, 1_700_000_100));
        assert_eq!(time("noon"), Err(TimeError));
    }
}
