//! Which faults come, one after another, as the seed has it.

use std::time::Duration;

use fastrand::Rng;

use crate::routes::{GATEWAYS, TIMEOUT};
use crate::support::relay::{Fate, Weather};

/// What goes wrong.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// Valkey answers nobody for this time, connections stay.
    Stall(Duration),
    /// Valkey crashes, and starts again after this time with nothing kept.
    Crash(Duration),
    /// Valkey loses its scripts.
    FlushScripts,
    /// Valkey takes no writes for this time: its memory is used up.
    OutOfMemory(Duration),
    /// Valkey closes all connections.
    KillClients,
    /// The next decision of this gateway goes wrong on its way.
    Spoil(usize, Fate),
    /// The way between this gateway and Valkey, for this time.
    Weather(usize, Weather, Duration),
    /// This gateway reads a configuration that is as good as the one before, or one that is not.
    Reload(usize, bool),
    /// This gateway finishes, and another takes its place.
    Replace(usize),
    /// Another takes this gateway's listeners over, so that no new connection fails.
    Upgrade(usize),
}

/// The two sequences of faults that run beside each other: Valkey's, and those of gateways and their ways to it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    Store,
    Gateways,
}

/// An endless sequence of faults, each with the pause before it.
pub(crate) struct Plan {
    rng: Rng,
    kind: Kind,
}

impl Plan {
    pub(crate) fn of(seed: u64, kind: Kind) -> Self {
        let other = u64::from(kind == Kind::Gateways);
        Self {
            rng: Rng::with_seed(seed.wrapping_mul(2).wrapping_add(other)),
            kind,
        }
    }

    /// From this to that, in ms.
    fn ms(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(self.rng.u64(from..=to))
    }

    /// Mostly short pauses, so that faults meet; one in five is long enough for all to be well.
    fn pause(&mut self) -> Duration {
        if self.rng.u8(..5) == 0 {
            self.ms(6_000, 9_000)
        } else {
            self.ms(300, 4_000)
        }
    }

    fn store_fault(&mut self) -> Fault {
        match self.rng.u8(..6) {
            0 | 1 => Fault::Stall(self.ms(100, 4_000)),
            2 => Fault::Crash(self.ms(0, 2_500)),
            3 => Fault::FlushScripts,
            4 => Fault::OutOfMemory(self.ms(300, 3_000)),
            _ => Fault::KillClients,
        }
    }

    fn gateway_fault(&mut self) -> Fault {
        let gateway = self.rng.usize(..GATEWAYS);
        // The first one lives as long as the load, so that its memory can be told.
        let mortal = gateway.max(1);
        match self.rng.u8(..15) {
            0 => Fault::Spoil(gateway, Fate::Cut),
            1 => Fault::Spoil(gateway, Fate::CutShort),
            2 => Fault::Spoil(gateway, Fate::Lost),
            3 => Fault::Spoil(gateway, Fate::LostShort),
            4 => Fault::Spoil(gateway, Fate::Late(2 * TIMEOUT)),
            5 => Fault::Spoil(gateway, Fate::Trickling(Duration::from_millis(20))),
            6 => Fault::Spoil(gateway, Fate::Garbage),
            7 => Fault::Spoil(gateway, Fate::HalfOpen),
            8 => Fault::Weather(gateway, Weather::Still, self.ms(200, 4_000)),
            9 => Fault::Weather(gateway, Weather::Refusing, self.ms(200, 3_000)),
            10 => {
                let by = self.ms(20, 1_500);
                Fault::Weather(gateway, Weather::Slow(by), self.ms(500, 3_000))
            }
            11 => Fault::Reload(gateway, true),
            12 => Fault::Reload(gateway, false),
            13 => Fault::Replace(mortal),
            _ => Fault::Upgrade(mortal),
        }
    }
}

impl Iterator for Plan {
    type Item = (Duration, Fault);

    fn next(&mut self) -> Option<Self::Item> {
        let pause = self.pause();
        let fault = match self.kind {
            Kind::Store => self.store_fault(),
            Kind::Gateways => self.gateway_fault(),
        };
        Some((pause, fault))
    }
}
