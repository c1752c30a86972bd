//! The payload of one exporter task: reports of snapshots, or batches of records.

use crate::Part;
use crate::otlp::Resource;
use crate::push::batch_queue::{Queue, Source};
use crate::push::exporter::Exporter;
use crate::push::send_queue::{DeltaBaseline, Enqueued, SendQueue};
use crate::push::task::Read;
use crate::push::transport::Service;
use crate::push::usage::Shared;
use std::sync::Arc;

/// The source of requests and the queue of those that are not sent yet.
pub(crate) enum Payload {
    Reports { read: Read, queue: Box<SendQueue> },
    Records { service: Service, source: Arc<dyn Source>, queue: Queue, resource: Resource, max_bytes: usize },
}

impl Payload {
    /// Delta reports continue from `baseline`.
    pub(crate) fn reports(exporter: &Exporter, read: Read, baseline: DeltaBaseline) -> Payload {
        Payload::Reports { read, queue: Box::new(SendQueue::new(exporter).resume_from(baseline)) }
    }

    pub(crate) fn records(exporter: &Exporter, service: Service, source: Arc<dyn Source>) -> Payload {
        let (resource, max_bytes) = (exporter.resource.clone(), exporter.queue_bytes);
        Payload::Records { service, source, queue: Queue::default(), resource, max_bytes }
    }

    /// The OTLP service that takes it.
    pub(crate) fn service(&self) -> Service {
        match self {
            Payload::Reports { .. } => Service::Metrics,
            Payload::Records { service, .. } => *service,
        }
    }

    /// Whether a later report contains all that an earlier one would.
    pub(crate) fn is_cumulative(&self) -> bool {
        matches!(self, Payload::Reports { queue, .. } if queue.is_cumulative())
    }

    /// Reads and encodes new requests. It blocks and takes CPU time: call it on a blocking thread.
    pub(crate) fn enqueue(&mut self) -> Enqueued {
        match self {
            Payload::Reports { read, queue } => queue.enqueue(read()),
            Payload::Records { source, queue, resource, max_bytes, .. } => {
                Enqueued { dropped: queue.add(source.take(resource), *max_bytes), superseded: 0 }
            }
        }
    }

    /// Takes the delta baseline out of the queue for a successor. `None` for cumulative reports and records.
    pub(crate) fn take_baseline(&mut self) -> Option<DeltaBaseline> {
        match self {
            Payload::Reports { queue, .. } => queue.take_baseline(),
            Payload::Records { .. } => None,
        }
    }

    /// The oldest request.
    pub(crate) fn first(&self) -> Option<&Part> {
        match self {
            Payload::Reports { queue, .. } => queue.first(),
            Payload::Records { queue, .. } => queue.parts.front(),
        }
    }

    /// Removes the oldest request: it was accepted or refused for good.
    pub(crate) fn pop(&mut self) {
        match self {
            Payload::Reports { queue, .. } => queue.pop(),
            Payload::Records { queue, .. } => _ = queue.parts.pop_front(),
        }
    }

    /// Number of queued requests.
    pub(crate) fn requests(&self) -> usize {
        match self {
            Payload::Reports { queue, .. } => queue.requests(),
            Payload::Records { queue, .. } => queue.parts.len(),
        }
    }

    /// Updates the metrics of the queue.
    pub(crate) fn count(&self, shared: &Shared) {
        match self {
            Payload::Reports { queue, .. } => {
                let mut usage = shared.lock();
                (usage.queue_points, usage.queue_bytes) = (queue.points(), queue.bytes() as u64);
            }
            Payload::Records { source, queue, .. } => source.count(queue.points(), queue.bytes()),
        }
    }
}
