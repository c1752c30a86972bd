//! What N nodes take of a Prometheus, from what one node tells and a few costs. Pure.

use super::measure::Measured;
use super::size::{Form, Series};

/// Series that Prometheus makes itself for each target: `up`, and four about its scrape.
const OF_TARGET: u64 = 5;

/// One node, as it is taken in a form.
#[derive(Clone, Copy, Debug)]
pub struct Node {
    pub series: Series,
    /// Bytes of an answer, packed.
    pub bytes: u64,
}

/// Costs, from measurements.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// Heap of a server without targets, in bytes.
    pub heap_of_none: f64,
    /// Heap of a series of floats.
    pub heap_of_float: f64,
    /// Heap of a series of native histograms.
    pub heap_of_histogram: f64,
    /// Bytes in the log for a sample that is a float.
    pub log_of_float: f64,
    /// The same for a native histogram.
    pub log_of_histogram: f64,
}

#[derive(Clone, Copy, Debug)]
pub struct Expected {
    /// In the head.
    pub series: f64,
    /// A second.
    pub samples: f64,
    /// Bytes of an answer over the wire.
    pub bytes_a_scrape: f64,
    /// Bytes of the heap that live.
    pub live_heap: f64,
    pub log_bytes_a_sample: f64,
}

impl Node {
    /// Series of floats, those of the target among them.
    fn floats(&self) -> f64 {
        (self.series.floats + OF_TARGET) as f64
    }

    fn histograms(&self) -> f64 {
        self.series.histograms as f64
    }
}

impl Costs {
    /// From a server without targets, one with classic and one with native histograms, and their node.
    pub fn from(none: &Measured, classic: (&Measured, &Node), native: (&Measured, &Node)) -> Costs {
        let (measured, node) = classic;
        let heap_of_float = (measured.live_heap - none.live_heap) / (measured.nodes as f64 * node.floats());
        let log_of_float = measured.log_bytes_a_sample;
        let (measured, node) = native;
        let of_nodes = (measured.live_heap - none.live_heap) / measured.nodes as f64;
        let heap_of_histogram = (of_nodes - node.floats() * heap_of_float) / node.histograms();
        let of_scrape = measured.log_bytes_a_sample * (node.floats() + node.histograms());
        let log_of_histogram = (of_scrape - node.floats() * log_of_float) / node.histograms();
        Costs { heap_of_none: none.live_heap, heap_of_float, heap_of_histogram, log_of_float, log_of_histogram }
    }

    /// For so many nodes, scraped every so many seconds.
    pub fn expected(&self, node: &Node, nodes: u64, interval: f64) -> Expected {
        let (n, floats, histograms) = (nodes as f64, node.floats(), node.histograms());
        let series = n * (floats + histograms);
        Expected {
            series,
            samples: series / interval,
            bytes_a_scrape: node.bytes as f64,
            live_heap: self.heap_of_none + n * (floats * self.heap_of_float + histograms * self.heap_of_histogram),
            log_bytes_a_sample: (floats * self.log_of_float + histograms * self.log_of_histogram)
                / (floats + histograms),
        }
    }
}

/// Where costs come from: the most nodes up to a hundred, so that the others check them.
pub fn fitted(measured: &[Measured]) -> Option<u64> {
    let of = |form| measured.iter().filter(move |m| m.form == Some(form) && m.nodes <= 100).map(|m| m.nodes);
    of(Form::Classic).filter(|nodes| of(Form::Native).any(|other| other == *nodes)).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(nodes: u64, form: Option<Form>, live_heap: f64, log_bytes_a_sample: f64) -> Measured {
        Measured {
            nodes,
            form,
            series: 0.0,
            samples: 0.0,
            bytes_a_scrape: 0.0,
            scrape_seconds: (0.0, 0.0),
            live_heap,
            resident: 0.0,
            cpus: 0.0,
            log_bytes_a_sample,
        }
    }

    #[test]
    fn costs_explain_what_they_come_from_and_more() {
        let classic = Node { series: Series { floats: 995, histograms: 0 }, bytes: 9000 };
        let native = Node { series: Series { floats: 95, histograms: 50 }, bytes: 5000 };
        let none = measured(0, None, 50e6, 0.0);
        let costs = Costs::from(
            &none,
            (&measured(100, Some(Form::Classic), 50e6 + 100.0 * 1000.0 * 2000.0, 2.0), &classic),
            (&measured(100, Some(Form::Native), 50e6 + 100.0 * (100.0 * 2000.0 + 50.0 * 5000.0), 10.0), &native),
        );
        assert!((costs.heap_of_float - 2000.0).abs() < 1e-6 && (costs.heap_of_histogram - 5000.0).abs() < 1e-6);
        assert!((costs.log_of_histogram - (1500.0 - 200.0) / 50.0).abs() < 1e-9);
        let expected = costs.expected(&native, 10, 15.0);
        assert!((expected.series - 1500.0).abs() < 1e-9 && (expected.samples - 100.0).abs() < 1e-9);
        assert!((expected.live_heap - (50e6 + 10.0 * (200e3 + 250e3))).abs() < 1e-3);
        assert!((expected.log_bytes_a_sample - 10.0).abs() < 1e-9);
    }

    #[test]
    fn costs_come_from_the_most_nodes_that_both_forms_have() {
        let all = [
            measured(10, Some(Form::Classic), 0.0, 0.0),
            measured(100, Some(Form::Classic), 0.0, 0.0),
            measured(10, Some(Form::Native), 0.0, 0.0),
            measured(1000, Some(Form::Native), 0.0, 0.0),
        ];
        assert_eq!(fitted(&all), Some(10));
        assert_eq!(fitted(&all[..2]), None);
    }
}
