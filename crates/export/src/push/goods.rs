//! What one task sends: reports of a snapshot, or records that came since.

use crate::Part;
use crate::otlp::Resource;
use crate::push::door::Service;
use crate::push::records::{Queue, Source};
use crate::push::run::Read;
use crate::push::settings::Receiver;
use crate::push::stock::{Legacy, Stock, TakenIn};
use crate::push::usage::Shared;
use std::sync::Arc;

/// Where it comes from, and what of it waits.
pub(crate) enum Goods {
    Reports { read: Read, stock: Box<Stock> },
    Records { service: Service, source: Arc<dyn Source>, queue: Queue, from: Resource, most_bytes: usize },
}

impl Goods {
    /// Differences go on from `legacy`.
    pub(crate) fn reports(receiver: &Receiver, read: Read, legacy: Legacy) -> Goods {
        Goods::Reports { read, stock: Box::new(Stock::new(receiver).since(legacy)) }
    }

    pub(crate) fn records(receiver: &Receiver, service: Service, source: Arc<dyn Source>) -> Goods {
        let (from, most_bytes) = (receiver.resource.clone(), receiver.queue_bytes);
        Goods::Records { service, source, queue: Queue::default(), from, most_bytes }
    }

    /// By which of the protocols' services it is sent.
    pub(crate) fn service(&self) -> Service {
        match self {
            Goods::Reports { .. } => Service::Metrics,
            Goods::Records { service, .. } => *service,
        }
    }

    /// Whether what comes later says all that what came earlier would.
    pub(crate) fn replaces(&self) -> bool {
        matches!(self, Goods::Reports { stock, .. } if stock.replaces())
    }

    /// Takes in what there is by now. This is work: not to be done on a thread that serves.
    pub(crate) fn take_in(&mut self) -> TakenIn {
        match self {
            Goods::Reports { read, stock } => stock.take_in(read()),
            Goods::Records { source, queue, from, most_bytes, .. } => {
                TakenIn { dropped: queue.add(source.take(from), *most_bytes), superseded: 0 }
            }
        }
    }

    /// What another may go on from; then nothing is left here.
    pub(crate) fn leave(&mut self) -> Option<Legacy> {
        match self {
            Goods::Reports { stock, .. } => stock.leave(),
            Goods::Records { .. } => None,
        }
    }

    /// The request to send first.
    pub(crate) fn first(&self) -> Option<&Part> {
        match self {
            Goods::Reports { stock, .. } => stock.first(),
            Goods::Records { queue, .. } => queue.parts.front(),
        }
    }

    /// The first request is done with.
    pub(crate) fn done(&mut self) {
        match self {
            Goods::Reports { stock, .. } => stock.done(),
            Goods::Records { queue, .. } => _ = queue.parts.pop_front(),
        }
    }

    /// Requests that wait.
    pub(crate) fn requests(&self) -> usize {
        match self {
            Goods::Reports { stock, .. } => stock.requests(),
            Goods::Records { queue, .. } => queue.parts.len(),
        }
    }

    /// Notes what waits.
    pub(crate) fn count(&self, shared: &Shared) {
        match self {
            Goods::Reports { stock, .. } => {
                let mut usage = shared.lock();
                (usage.queue_points, usage.queue_bytes) = (stock.points(), stock.bytes() as u64);
            }
            Goods::Records { source, queue, .. } => source.count(queue.points(), queue.bytes()),
        }
    }
}
