//! Who is turned away when the gateway is full.

use std::num::NonZeroUsize;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use tollgate::shed::{Load, Place, Priority, Reason, Settings};

fn most(max_in_flight: usize) -> Settings {
    Settings {
        max_in_flight: NonZeroUsize::new(max_in_flight).unwrap(),
        target_us: None,
    }
}

/// Takes all that this priority may have.
fn fill(load: &Load, priority: Priority) -> Vec<Place> {
    std::iter::from_fn(|| load.take(priority).ok()).collect()
}

#[test]
fn the_shares_are_those_that_are_promised_and_never_nothing() {
    for (max, shares) in [
        (2, [2, 1, 1]),
        (5, [5, 4, 4]),
        (10, [10, 9, 8]),
        (20, [20, 19, 16]),
        (100, [100, 95, 80]),
        (2_000, [2_000, 1_900, 1_600]),
    ] {
        assert_eq!(Priority::ALL.map(|priority| priority.share_of(max)), shares);
        let load = Load::new(Some(most(max)));
        let mut held = Vec::new();
        // The least first: each takes what is left to it beside the ones before.
        for (priority, share) in Priority::ALL.into_iter().zip(shares).rev() {
            held.extend(fill(&load, priority));
            assert_eq!(
                (held.len(), load.in_flight()),
                (share, share),
                "{priority:?} of {max}"
            );
            assert_eq!(load.take(priority).unwrap_err(), Reason::InFlight);
        }
        drop(held);
        assert_eq!(load.in_flight(), 0);
    }
    // Any number has a share.
    for all in (0..1_000).chain([usize::MAX / 95, usize::MAX / 80, usize::MAX]) {
        let [high, normal, low] = Priority::ALL.map(|priority| priority.share_of(all));
        assert!(high == all && normal >= low && low >= 1);
        assert!(all < 2 || normal < all, "nothing is kept of {all}");
    }
}

#[test]
fn however_many_ask_at_once_no_more_get_a_place_than_may() {
    const THREADS: usize = 8;
    let load = Load::new(Some(most(10)));
    let start = Barrier::new(THREADS);
    let (inside, most_inside, served) = (
        AtomicUsize::new(0),
        AtomicUsize::new(0),
        AtomicUsize::new(0),
    );
    thread::scope(|scope| {
        for number in 0..THREADS {
            let priority = Priority::ALL[number % 3];
            let (load, start) = (&load, &start);
            let (inside, most_inside, served) = (&inside, &most_inside, &served);
            scope.spawn(move || {
                start.wait();
                for _ in 0..20_000 {
                    let places: Vec<_> = (0..3).filter_map(|_| load.take(priority).ok()).collect();
                    let now = inside.fetch_add(places.len(), Ordering::SeqCst) + places.len();
                    most_inside.fetch_max(now, Ordering::SeqCst);
                    served.fetch_add(places.len(), Ordering::SeqCst);
                    inside.fetch_sub(places.len(), Ordering::SeqCst);
                    drop(places);
                }
            });
        }
    });
    let most_inside = most_inside.load(Ordering::SeqCst);
    assert!((2..=10).contains(&most_inside), "{most_inside} at once");
    assert!(served.load(Ordering::SeqCst) > 20_000);
    assert_eq!(load.in_flight(), 0);
}

#[test]
fn other_settings_count_who_is_in_flight() {
    let load = Load::new(None);
    assert_eq!(load.limit(), None);
    let held: Vec<_> = (0..100)
        .map(|_| load.take(Priority::Low).unwrap())
        .collect();
    load.apply(Some(most(100)));
    assert_eq!((load.in_flight(), load.limit()), (100, Some(100)));
    assert_eq!(load.take(Priority::High).unwrap_err(), Reason::InFlight);
    load.apply(Some(most(101)));
    let more = load.take(Priority::High).unwrap();
    assert!(load.take(Priority::High).is_err());
    load.apply(None);
    let other = load.clone().take(Priority::Low).unwrap();
    assert_eq!(load.in_flight(), 102);
    drop((held, more, other));
    assert_eq!(load.in_flight(), 0);
}
