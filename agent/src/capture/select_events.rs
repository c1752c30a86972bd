//! Selects the events of this kernel that a request names.

use super::error::RequestError;
use super::request::EventRequest;
use crate::kernel::binaries::pattern::{is_pattern, matches};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// An event to be recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SelectedEvent {
    /// Its subsystem.
    pub system: String,
    /// Its name.
    pub event: String,
    /// The last filter of the request.
    pub filter: Option<String>,
    /// All triggers of the request.
    pub triggers: Vec<String>,
}

impl SelectedEvent {
    /// `SYSTEM:EVENT`.
    pub fn name(&self) -> String {
        format!("{}:{}", self.system, self.event)
    }
}

/// The events that requests mean, of those that there are, by subsystem and name. A pattern that means none is an error, as a
/// recording without it would look as if nothing had happened.
pub fn select_events(
    requests: &[EventRequest],
    there: &[(String, String)],
) -> Result<Vec<SelectedEvent>, RequestError> {
    let mut chosen: BTreeMap<&(String, String), SelectedEvent> = BTreeMap::new();
    for request in requests {
        let pattern = Pattern::parse(&request.pattern);
        let mut any = false;
        for name in there.iter().filter(|(system, event)| pattern.fits(system, event)) {
            any = true;
            if request.exclude {
                chosen.remove(name);
                continue;
            }
            let (system, event) = name.clone();
            let new = || SelectedEvent { system, event, filter: None, triggers: Vec::new() };
            let entry = chosen.entry(name).or_insert_with(new);
            entry.filter = request.filter.clone().or(entry.filter.take());
            entry.triggers.extend_from_slice(&request.triggers);
        }
        if !any {
            let pattern = request.pattern.clone();
            return Err(RequestError::NoEvent { pattern, similar: like(request, there) });
        }
    }
    if chosen.is_empty() && !requests.is_empty() {
        return Err(RequestError::AllExcluded);
    }
    Ok(chosen.into_values().collect())
}

/// What a pattern says of subsystem and name.
struct Pattern<'a> {
    system: Option<&'a str>,
    event: Option<&'a str>,
    /// One word without a colon: a subsystem or a name.
    either: bool,
}

impl<'a> Pattern<'a> {
    /// `SYSTEM:EVENT` or `SYSTEM/EVENT`, either of them, or `all`.
    fn parse(text: &'a str) -> Pattern<'a> {
        let part = |text: &'a str| (!text.is_empty() && text != "*").then_some(text);
        match text.split_once([':', '/']) {
            Some((system, event)) => Pattern { system: part(system), event: part(event), either: false },
            None if text == "all" => Pattern { system: None, event: None, either: false },
            None => Pattern { system: part(text), event: part(text), either: true },
        }
    }

    fn fits(&self, system: &str, event: &str) -> bool {
        let fits = |pattern: Option<&str>, text: &str| pattern.is_none_or(|pattern| matches(pattern, text));
        let (system, event) = (fits(self.system, system), fits(self.event, event));
        if self.either { system || event } else { system && event }
    }
}

/// Events with similar names.
fn like(request: &EventRequest, there: &[(String, String)]) -> Vec<String> {
    const SHOWN: usize = 5;
    let word = request.pattern.rsplit([':', '/']).next().unwrap_or_default();
    if word.len() < 3 || is_pattern(word) {
        return Vec::new();
    }
    let names = there.iter().filter(|(_, event)| event.contains(word) || word.contains(event.as_str()));
    names.take(SHOWN).map(|(system, event)| format!("{system}:{event}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn there() -> Vec<(String, String)> {
        let names = "sched:sched_switch sched:sched_wakeup irq:softirq_entry irq:softirq_exit net:net_dev_xmit \
                     syscalls:sys_enter_read syscalls:sys_enter_readv raw_syscalls:sys_enter napi:napi_poll";
        let split = |name: &str| name.split_once(':').map(|(s, e)| (s.to_owned(), e.to_owned())).unwrap();
        names.split_whitespace().map(split).collect()
    }

    fn chosen(patterns: &[&str]) -> Result<String, String> {
        let request = |text: &&str| {
            let (pattern, filter) = text.split_once(" if ").map_or((*text, None), |(p, f)| (p, Some(f.to_owned())));
            EventRequest {
                exclude: pattern.starts_with('!'),
                pattern: pattern.trim_start_matches('!').to_owned(),
                filter,
                ..EventRequest::default()
            }
        };
        let requests: Vec<_> = patterns.iter().map(request).collect();
        let shown = |c: SelectedEvent| c.filter.as_ref().map_or(c.event.clone(), |f| format!("{}[{f}]", c.event));
        let chosen = select_events(&requests, &there()).map_err(|e| e.to_string())?;
        Ok(chosen.into_iter().map(shown).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn patterns_as_trace_cmd_has_them() {
        let cases = [
            (&["sched"][..], "sched_switch sched_wakeup"),
            (&["sched_switch"], "sched_switch"),
            (&["sched:*switch", "irq/"], "softirq_entry softirq_exit sched_switch"),
            (&["sys_enter_read*"], "sys_enter_read sys_enter_readv"),
            (&["sys_enter"], "sys_enter"),
            (&["*:sched_w*"], "sched_wakeup"),
            (&["sched", "!sched_wakeup"], "sched_switch"),
            (&["sched if a", "sched_switch"], "sched_switch[a] sched_wakeup[a]"),
            (&["sched", "sched_switch if b"], "sched_switch[b] sched_wakeup"),
            (&["sched if a", "sched_switch if b"], "sched_switch[b] sched_wakeup[a]"),
        ];
        for (patterns, expected) in cases {
            assert_eq!(chosen(patterns).as_deref(), Ok(expected), "{patterns:?}");
        }
        assert_eq!(chosen(&["all"]).unwrap().split(' ').count(), there().len());
        assert_eq!(chosen(&[]).as_deref(), Ok(""));
    }

    #[test]
    fn what_means_nothing_is_an_error() {
        let wrong = |patterns: &[&str]| chosen(patterns).unwrap_err();
        assert_eq!(wrong(&["sched:switch"]), "no event of this kernel is `sched:switch`; there are sched:sched_switch");
        assert_eq!(wrong(&["nosuch*"]), "no event of this kernel is `nosuch*`");
        assert_eq!(wrong(&["irq", "!irq"]), "the request excludes all events that it names");
    }
}
