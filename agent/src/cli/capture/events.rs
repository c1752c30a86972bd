//! `-e EVENT -f FILTER -R TRIGGER -v`: options whose order means something, as in trace-cmd.

use crate::capture::request::EventRequest;
use clap::{Arg, ArgAction, ArgMatches, Command, Error, FromArgMatches, error::ErrorKind};

/// Events in the order in which they were asked for.
#[derive(Clone, Debug, Default)]
pub struct Args {
    /// They.
    pub requests: Vec<EventRequest>,
}

/// Options and what each is about.
const OPTIONS: [(&str, char, &str, &str); 3] = [
    ("event", 'e', "EVENT", "Events: SYSTEM:EVENT, SYSTEM, EVENT or all; patterns with * are allowed"),
    ("filter", 'f', "FILTER", "Filter of the last -e, in the kernel's language"),
    ("trigger", 'R', "TRIGGER", "Trigger of the last -e, in the kernel's language"),
];

impl clap::Args for Args {
    fn augment_args(command: Command) -> Command {
        let options = OPTIONS.map(|(name, short, value, help)| {
            Arg::new(name).short(short).long(name).value_name(value).help(help).action(ArgAction::Append)
        });
        let not = Arg::new("exclude").short('v').long("exclude").help("Leaves out the events of -e that follow");
        // A flag has no place among the others; a value that is not written has.
        let not = not.action(ArgAction::Append).num_args(0).default_missing_value("").value_name("");
        command.args(options).arg(not)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Args::augment_args(command)
    }
}

impl FromArgMatches for Args {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Args, Error> {
        let mut given: Vec<(usize, &str, &str)> = Vec::new();
        for name in OPTIONS.map(|option| option.0).into_iter().chain(["exclude"]) {
            let places = matches.indices_of(name).into_iter().flatten();
            let values = matches.get_many::<String>(name).into_iter().flatten();
            given.extend(places.zip(values).map(|(place, value)| (place, name, value.as_str())));
        }
        given.sort_unstable();
        let mut args = Args::default();
        let mut exclude = false;
        for (_, name, value) in given {
            match (name, args.requests.last_mut()) {
                ("event", _) => {
                    args.requests.push(EventRequest { pattern: value.into(), exclude, ..EventRequest::default() });
                }
                ("exclude", _) => exclude = true,
                ("filter", Some(last)) => last.filter = Some(value.into()),
                (_, Some(last)) => last.triggers.push(value.into()),
                (option, None) => {
                    let what = format!("--{option} belongs to the event before it: write it after -e EVENT\n");
                    return Err(Error::raw(ErrorKind::MissingRequiredArgument, what));
                }
            }
        }
        Ok(args)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Args::from_arg_matches(matches)?;
        Ok(())
    }
}

/// `EVENT` or `EVENT if FILTER`.
pub fn condition(text: &str) -> (String, Option<String>) {
    match text.split_once(" if ") {
        Some((event, filter)) => (event.trim().to_owned(), Some(filter.trim().to_owned())),
        None => (text.trim().to_owned(), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Args as _;

    fn parsed(words: &str) -> Result<Vec<EventRequest>, String> {
        let command = Args::augment_args(Command::new("x").no_binary_name(true));
        let matches = command.try_get_matches_from(words.split(' ')).map_err(|e| e.to_string())?;
        Args::from_arg_matches(&matches).map(|args| args.requests).map_err(|e| e.to_string())
    }

    #[test]
    fn what_follows_an_event_belongs_to_it() {
        let requests =
            parsed("-e sched -f a==1 -R traceoff -R stacktrace -e irq -v -e sched_waking -e irq:x -f b").unwrap();
        let shown: Vec<String> = requests
            .iter()
            .map(|r| format!("{}{} {:?} {:?}", if r.exclude { "!" } else { "" }, r.pattern, r.filter, r.triggers))
            .collect();
        let expected = [
            r#"sched Some("a==1") ["traceoff", "stacktrace"]"#,
            "irq None []",
            "!sched_waking None []",
            r#"!irq:x Some("b") []"#,
        ];
        assert_eq!(shown, expected);
        assert!(parsed("-f a -e sched").unwrap_err().contains("--filter belongs to the event before it"));
    }

    #[test]
    fn conditions() {
        assert_eq!(condition("a:b"), ("a:b".into(), None));
        assert_eq!(condition("a:b if c == 1"), ("a:b".into(), Some("c == 1".into())));
    }
}
