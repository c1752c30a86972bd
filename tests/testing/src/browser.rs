//! Chromium without a screen, driven by WebDriver: the protocol is JSON over HTTP.

use crate::{free, wait_for};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// How long a page may take for what a test waits for; an emulated processor is slow.
fn patience() -> Duration {
    Duration::from_secs(if std::env::var_os("KSTROBE_EMULATED").is_some() { 120 } else { 20 })
}

/// Of WebP, which loses what nobody sees, from 0 to 100.
const QUALITY: u32 = 80;

/// A tab. The driver ends its browser when it ends itself.
pub struct Browser {
    session: String,
    http: ureq::Agent,
    driver: Child,
}

impl Browser {
    /// Starts the driver and one tab.
    pub fn start() -> Browser {
        let port = free().port();
        let driver = Command::new("chromedriver")
            .args([&format!("--port={port}"), "--log-level=OFF"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromedriver of the package chromium-driver");
        let http = ureq::Agent::new_with_defaults();
        let root = format!("http://127.0.0.1:{port}");
        wait_for("chromedriver", patience(), || http.get(format!("{root}/status")).call().ok());
        // Root has no sandbox: the tests' pages are the agent's alone.
        let arguments = json!(["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]);
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "goog:chromeOptions": {"args": arguments},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }}});
        let mut answer = http.post(format!("{root}/session")).send_json(&wanted).expect("a session of Chromium");
        let answer: Value = answer.body_mut().read_json().unwrap();
        let id = answer["value"]["sessionId"].as_str().expect("a session");
        Browser { session: format!("{root}/session/{id}"), http, driver }
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        let mut answer = self
            .http
            .post(format!("{}/{path}", self.session))
            .send_json(body)
            .unwrap_or_else(|error| panic!("{path} {body}: {error}"));
        answer.body_mut().read_json::<Value>().unwrap()["value"].take()
    }

    /// A command of the browser's own protocol, for what WebDriver lacks.
    fn command(&self, name: &str, parameters: Value) -> Value {
        self.post("goog/cdp/execute", &json!({"cmd": name, "params": parameters}))
    }

    pub fn open(&self, url: &str) {
        self.post("url", &json!({"url": url}));
    }

    /// Size of the window, and which colours the reader prefers.
    pub fn look(&self, width: u32, height: u32, colours: &str) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.command("Emulation.setDeviceMetricsOverride", size);
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": colours}]});
        self.command("Emulation.setEmulatedMedia", media);
    }

    /// What a function's body returns in the page.
    pub fn run(&self, script: &str) -> Value {
        self.post("execute/sync", &json!({"script": script, "args": []}))
    }

    /// The same of a body that calls `arguments[0]` when it is done.
    pub fn run_to_end(&self, script: &str) -> Value {
        self.post("execute/async", &json!({"script": script, "args": []}))
    }

    /// Waits until a script returns what is neither null nor false.
    #[track_caller]
    pub fn wait(&self, what: &str, script: &str) -> Value {
        wait_for(what, patience(), || match self.run(script) {
            Value::Null | Value::Bool(false) => None,
            value => Some(value),
        })
    }

    /// Drags over the first element of a selector, from one part of its width to another.
    pub fn drag(&self, selector: &str, from: f64, to: f64) {
        let rectangle = self.run(&format!("return document.querySelector({selector:?}).getBoundingClientRect()"));
        let at = |key: &str| rectangle[key].as_f64().unwrap();
        let point = |part: f64| json!({"type": "pointerMove", "duration": 50, "x": (at("x") + part * at("width")) as i64, "y": (at("y") + at("height") / 2.0) as i64});
        let actions = [
            point(from),
            json!({"type": "pointerDown", "button": 0}),
            point((from + to) / 2.0),
            point(to),
            json!({"type": "pointerUp", "button": 0}),
        ];
        self.post("actions", &json!({"actions": [{"type": "pointer", "id": "mouse", "actions": actions}]}));
    }

    pub fn click(&self, selector: &str) {
        self.run(&format!("document.querySelector({selector:?}).click()"));
    }

    /// Errors of the console since the last call.
    pub fn complaints(&self) -> Vec<String> {
        let log = self.post("se/log", &json!({"type": "browser"}));
        let lines = log.as_array().into_iter().flatten();
        lines.filter(|line| line["level"] == "SEVERE").map(|line| line["message"].to_string()).collect()
    }

    /// URLs that were asked for since the last call.
    pub fn requests(&self) -> Vec<String> {
        let log = self.post("se/log", &json!({"type": "performance"}));
        let lines = log.as_array().into_iter().flatten();
        let messages = lines.filter_map(|line| serde_json::from_str::<Value>(line["message"].as_str()?).ok());
        let sent = messages.filter(|message| message["message"]["method"] == "Network.requestWillBeSent");
        sent.filter_map(|message| Some(message["message"]["params"]["request"]["url"].as_str()?.to_owned())).collect()
    }

    /// Saves what is seen, and what is below it.
    pub fn picture(&self, file: &Path) {
        self.save(file, json!({"format": "png", "captureBeyondViewport": true}));
    }

    /// Saves what the window shows, as WebP.
    pub fn small_picture(&self, file: &Path) {
        self.save(file, json!({"format": "webp", "quality": QUALITY}));
    }

    fn save(&self, file: &Path, parameters: Value) {
        let picture = self.command("Page.captureScreenshot", parameters);
        let bytes = BASE64_STANDARD.decode(picture["data"].as_str().unwrap()).unwrap();
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, bytes).unwrap();
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Killed alone, the driver would leave the browser behind.
        let _ = self.http.delete(&self.session).call();
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
