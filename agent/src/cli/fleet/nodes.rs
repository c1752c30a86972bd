//! The agents of many nodes as one source of a screen: each request goes to those that can answer it, and one answer comes back.

use super::Reach;
use super::ask::{self, Turns};
use super::door::Door;
use super::error::Error;
use super::standing::Standing;
use crate::cli::top::merge::{Plan, merge};
use crate::cli::top::request::Request;
use crate::cli::top::source::{Answered, Failure, Source};
use serde_json::Value;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// For the answer of a node.
const LIMIT: Duration = Duration::from_secs(5);
/// Until pods are listed again: an agent that is replaced has another pod.
const LIST_EVERY: Duration = Duration::from_secs(30);

/// Why there is no answer for any node.
#[derive(Debug, thiserror::Error)]
pub enum NodesError {
    #[error("no node answers; {}: {}", .0.node, .0.error)]
    NoAnswer(Failure),
    #[error("no node that is asked has this metric")]
    NoMetric,
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

#[derive(Clone)]
pub struct Nodes(Arc<Inner>);

struct Inner {
    door: Door,
    reach: Reach,
    turns: Turns,
    standing: Mutex<Standing>,
    listed: Mutex<Instant>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every update leaves the value consistent, so a poisoned lock is usable.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Nodes {
    /// Those that the options choose; without a choice all.
    pub async fn find(reach: &Reach) -> Result<Nodes, Error> {
        let door = reach.door()?;
        let (targets, missing) = reach.targets(&door, true).await?;
        Ok(Nodes(Arc::new(Inner {
            door,
            reach: reach.clone(),
            turns: Turns::new(),
            standing: Mutex::new(Standing::new(targets, missing)),
            listed: Mutex::new(Instant::now()),
        })))
    }

    /// While the API server gives no list, the last one is good.
    async fn list_again(&self) {
        {
            let mut listed = lock(&self.0.listed);
            if listed.elapsed() < LIST_EVERY {
                return;
            }
            *listed = Instant::now();
        }
        let listed = tokio::time::timeout(LIMIT, self.0.reach.targets(&self.0.door, true)).await;
        if let Ok(Ok((targets, missing))) = listed {
            lock(&self.0.standing).replace(targets, missing);
        }
    }
}

impl Source for Nodes {
    type Error = NodesError;

    async fn ask(&self, request: &Request) -> Result<Answered, NodesError> {
        if *request == Request::Probes {
            self.list_again().await;
        }
        let (plan, targets) = {
            let standing = lock(&self.0.standing);
            let plan = Plan::of(request, standing.agents(), standing.newest(Instant::now()));
            let targets = standing.targets(request, &plan);
            (plan, targets)
        };
        let asked = request.clone();
        let read = move |body: &[u8]| asked.read(body);
        // In the order of nodes: what the first one says of a metric is shown.
        let answers = ask::each(&self.0.door, &self.0.turns, targets, &plan.path, LIMIT, read).await;
        let mut standing = lock(&self.0.standing);
        standing.learn(request, &answers);
        let (mut good, mut failed) = (Vec::new(), Vec::new());
        for (node, answer) in answers {
            match answer {
                Ok(answer) => good.push((node, answer)),
                Err(error) => failed.push(Failure { node, error: error.to_string() }),
            }
        }
        let merged = merge(request, &plan, good);
        if let Some(merged) = &merged {
            standing.learn_merged(merged, Instant::now());
            let left_out = merged.left_out.iter();
            failed.extend(left_out.map(|(node, why)| Failure { node: node.clone(), error: why.to_string() }));
        }
        standing.add_absent(&plan, &mut failed);
        match (merged, failed.first()) {
            (Some(merged), _) => Ok(Answered { answer: merged.answer, failed }),
            (None, Some(first)) => Err(NodesError::NoAnswer(first.clone())),
            (None, None) => Err(NodesError::NoMetric),
        }
    }

    async fn document(&self, request: &Request) -> Result<(Value, Vec<Failure>), NodesError> {
        let Answered { answer, failed } = self.ask(request).await?;
        Ok((serde_json::to_value(answer)?, failed))
    }

    fn agents(&self) -> usize {
        lock(&self.0.standing).agents()
    }
}
