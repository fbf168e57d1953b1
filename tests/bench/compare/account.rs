//! What the kernel says that processes took.

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::thread;

/// The kernel counts in ticks of this many µs towards its users, on every machine.
const TICK_US: u64 = 10_000;

/// A process and its descendants.
pub(crate) fn family(id: u32) -> Vec<u32> {
    let mut found = vec![id];
    let threads = fs::read_dir(of(id).join("task")).into_iter().flatten();
    for thread in threads.flatten() {
        let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        for child in children.split_ascii_whitespace() {
            found.extend(family(child.parse().unwrap()));
        }
    }
    found
}

/// Processor time of a family so far, user and system, in µs.
pub(crate) fn cpu_us(id: u32) -> u64 {
    let ticks = |id: &u32| {
        let stat = fs::read_to_string(of(*id).join("stat")).unwrap_or_default();
        // The name, in parentheses, may hold anything.
        let after = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let fields = after.split_ascii_whitespace().skip(11).take(2);
        fields
            .map(|ticks| ticks.parse::<u64>().unwrap())
            .sum::<u64>()
    };
    family(id).iter().map(ticks).sum::<u64>() * TICK_US
}

/// Memory of a family in KiB, each page counted once.
pub(crate) fn memory_kib(id: u32) -> u64 {
    let kib = |id: &u32| {
        let smaps = fs::read_to_string(of(*id).join("smaps_rollup")).unwrap_or_default();
        let line = smaps.lines().find_map(|line| line.strip_prefix("Pss:"));
        let kib = line.and_then(|line| line.split_ascii_whitespace().next());
        kib.map_or(0, |kib| kib.parse::<u64>().unwrap())
    };
    family(id).iter().map(kib).sum()
}

/// How many tasks wanted a processor in the last minute, and how many processors there are.
pub(crate) fn busy() -> (f64, usize) {
    let text = fs::read_to_string("/proc/loadavg").unwrap();
    let first = text.split(' ').next().unwrap();
    let processors = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    (first.parse().unwrap(), processors)
}

fn of(id: u32) -> PathBuf {
    Path::new("/proc").join(id.to_string())
}
