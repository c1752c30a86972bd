//! Captures and rules around the recorder: conditions over snapshots made by hand, what rules and alerts get, the API over
//! real HTTP, and the page that describes it all. What is recorded is a text here.

mod alerts;
mod api;
mod evaluation;
mod objects;
mod page;
mod rule_engine;
mod world;

#[path = "../language/fences.rs"]
mod fences;
