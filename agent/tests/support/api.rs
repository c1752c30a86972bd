//! The captures of an agent, asked for over its API.

use super::agent::{Agent, Setup};
use super::http::{Answer, ask};
use super::{Folder, wait_for};
use kstrobe_ftrace::dat;
use kstrobe_ftrace::trace::Trace;
use serde_json::Value;
use std::path::PathBuf;
use std::time::Duration;

/// What the agent asks for.
pub const TOKEN: &str = "a-token-of-more-than-16-bytes";
/// Longest time that anything takes here.
pub const LIMIT: Duration = Duration::from_secs(120);

/// A token and captures that outlive the agents that have them.
pub struct Home(Folder);

impl Home {
    pub fn new() -> Home {
        let folder = Folder::new();
        folder.write("token", &format!("{TOKEN}\n"));
        Home(folder)
    }

    /// Another file in it.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        self.0.write(name, text)
    }

    /// The folder of captures.
    pub fn captures(&self) -> PathBuf {
        self.0.0.join("captures")
    }

    pub fn token_file(&self) -> PathBuf {
        self.0.0.join("token")
    }

    /// Starts an agent with these packs, more settings of `captures`, and rules.
    pub fn start(&self, packs: &[&str], captures: &str, rules: &str) -> Agent {
        let (dir, token_file) = (self.captures(), self.token_file());
        let places = format!("dir: {}, token_file: {}", dir.display(), token_file.display());
        let config = format!("captures: {{ {places}, {captures} }}\n{rules}\n");
        Setup { packs, config: &config, ..Setup::default() }.start()
    }
}

impl Agent {
    /// Asks the API with the token; the path begins after `/api/v1/captures`.
    pub fn captures(&self, method: &str, path: &str, body: &str) -> Answer {
        self.authorized(method, &format!("/api/v1/captures{path}"), body)
    }

    /// The slow events that are kept, asked for with the token.
    pub fn slow_events(&self, query: &str) -> Vec<Value> {
        let answer = self.authorized("GET", &format!("/api/v1/events{query}"), "").json();
        answer["events"].as_array().expect("a list").clone()
    }

    fn authorized(&self, method: &str, path: &str, body: &str) -> Answer {
        let token = format!("Bearer {TOKEN}");
        ask(self.address(), method, path, &[("Authorization", &token)], body).expect("the agent answers")
    }

    /// All captures, the newest first.
    pub fn all_captures(&self) -> Vec<Value> {
        self.captures("GET", "", "").json()["captures"].as_array().expect("a list").clone()
    }

    /// Begins a capture and gives its id.
    #[track_caller]
    pub fn begin(&self, request: &Value) -> String {
        let answer = self.captures("POST", "", &request.to_string());
        assert_eq!(answer.status, 202, "{answer:?}");
        let capture = answer.json();
        assert_eq!(capture["state"], "running", "{capture}");
        let id = capture["id"].as_str().unwrap().to_owned();
        assert_eq!(answer.header("location"), Some(format!("/api/v1/captures/{id}").as_str()));
        id
    }

    /// A capture as it is now.
    #[track_caller]
    pub fn capture(&self, id: &str) -> Value {
        let answer = self.captures("GET", &format!("/{id}"), "");
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()
    }

    /// Waits for the end of a capture, and says how it stands then.
    #[track_caller]
    pub fn ended(&self, id: &str) -> Value {
        // To patch every function of the kernel takes an emulated CPU minutes when others use it, too.
        let limit = if super::emulated() { Duration::from_secs(400) } else { LIMIT };
        wait_for("a capture's end", limit, || Some(self.capture(id)).filter(|capture| capture["state"] != "running"))
    }

    /// The file of a capture in a form.
    #[track_caller]
    pub fn download(&self, id: &str, form: &str) -> Vec<u8> {
        let answer = self.captures("GET", &format!("/{id}/download?format={form}"), "");
        assert_eq!(answer.status, 200, "{form}: {}", String::from_utf8_lossy(&answer.body));
        answer.body
    }

    #[track_caller]
    pub fn recorded(&self, id: &str) -> Trace {
        dat::read(&self.download(id, "dat")).unwrap().trace
    }

    /// How often a rule or an alert asked, by what came of it.
    pub fn asked(&self, rule: &str, result: &str) -> f64 {
        self.scrape().sum("kstrobe_rule_captures_total", &[("rule", rule), ("result", result)])
    }
}
