//! What was measured, and its medians.

use std::fmt;

use crate::jobs::Job;

/// One job in one round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) requests: u64,
    pub(crate) span_us: u64,
    pub(crate) p50_us: u64,
    pub(crate) p99_us: u64,
    pub(crate) gateway_us: u64,
    pub(crate) valkey_us: u64,
    pub(crate) memory_kib: u64,
}

impl Sample {
    /// Processor time of the gateway for a request, in µs.
    pub(crate) fn gateway(&self) -> f64 {
        float(self.gateway_us) / float(self.requests)
    }

    /// Processor time of Valkey for a request, in µs.
    pub(crate) fn valkey(&self) -> f64 {
        float(self.valkey_us) / float(self.requests)
    }

    /// Of both.
    pub(crate) fn all(&self) -> f64 {
        self.gateway() + self.valkey()
    }

    pub(crate) fn requests_per_second(&self) -> f64 {
        float(self.requests) * 1e6 / float(self.span_us)
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.0} requests/s, {:.1} + {:.1} µs",
            self.requests_per_second(),
            self.gateway(),
            self.valkey()
        )
    }
}

/// A job in all rounds, in their order.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) job: Job,
    pub(crate) samples: Vec<Sample>,
}

impl Measured {
    pub(crate) fn new(job: Job) -> Self {
        Self {
            job,
            samples: Vec::new(),
        }
    }

    /// A figure over the rounds.
    pub(crate) fn over(&self, figure: impl Fn(&Sample) -> f64) -> Spread {
        Spread::of(self.samples.iter().map(figure).collect())
    }

    pub(crate) fn requests_per_second(&self) -> Spread {
        self.over(Sample::requests_per_second)
    }

    /// A figure against another's in the same round, over the rounds.
    pub(crate) fn beside(&self, other: &Self, figure: impl Fn(&Sample, &Sample) -> f64) -> Spread {
        let pairs = self.samples.iter().zip(&other.samples);
        Spread::of(pairs.map(|(own, others)| figure(own, others)).collect())
    }
}

/// The middle of several figures, the least and the greatest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    pub(crate) fn of(mut figures: Vec<f64>) -> Self {
        assert!(!figures.is_empty(), "nothing was measured");
        figures.sort_by(f64::total_cmp);
        let (middle, last) = (figures.len() / 2, figures.len() - 1);
        let median = if figures.len() % 2 == 1 {
            figures[middle]
        } else {
            f64::midpoint(figures[middle - 1], figures[middle])
        };
        Self {
            median,
            min: figures[0],
            max: figures[last],
        }
    }

    /// `median (least to greatest)`, with so many digits behind the point.
    pub(crate) fn text(&self, digits: usize) -> String {
        let Self { median, min, max } = self;
        format!("{median:.digits$} ({min:.digits$} to {max:.digits$})")
    }
}

/// A count, of which none here is too large to be exact.
pub(crate) fn float(count: u64) -> f64 {
    f64::from(u32::try_from(count).unwrap())
}
