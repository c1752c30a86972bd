//! Where answers come from: one agent, or many of which the answers are merged.

use super::request::{Answer, Request};
use crate::cli::client::{self, Client};
use serde::Serialize;
use serde_json::Value;

/// A node without a part in an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failure {
    pub node: String,
    pub error: String,
}

/// An answer, and which nodes have no part in it.
#[derive(Clone, Debug, PartialEq)]
pub struct Answered {
    pub answer: Answer,
    pub failed: Vec<Failure>,
}

pub trait Source: Clone + Send + Sync + 'static {
    type Error: std::error::Error + Send + Sync + 'static;

    fn ask(&self, request: &Request) -> impl Future<Output = Result<Answered, Self::Error>> + Send;

    /// The answer as JSON, with all that the API says where it is one agent's, and the nodes that have no part in it.
    fn document(&self, request: &Request) -> impl Future<Output = Result<(Value, Vec<Failure>), Self::Error>> + Send;

    /// Agents that a request goes to.
    fn agents(&self) -> usize;
}

impl Source for Client {
    type Error = client::Error;

    async fn ask(&self, request: &Request) -> Result<Answered, client::Error> {
        let answer = self.read(&request.path(), |body| request.read(body)).await?;
        Ok(Answered { answer, failed: Vec::new() })
    }

    async fn document(&self, request: &Request) -> Result<(Value, Vec<Failure>), client::Error> {
        Ok((self.get(&request.path()).await?, Vec::new()))
    }

    fn agents(&self) -> usize {
        1
    }
}
