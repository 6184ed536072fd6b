//! Thousands of clusters, each with its own trouble.
//!
//! A failing seed is printed; `WARRENMQ_SIM_SEED=n` runs that one alone, `WARRENMQ_SIM_SEEDS=n` that many.

use std::sync::atomic::{AtomicU64, Ordering};

use warrenmq_simulator::run;

const DEFAULT_SEEDS: u64 = 1000;
const THREADS: usize = 2;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
}

#[test]
fn clusters_survive_what_may_happen_to_them() {
    let seeds = match number("WARRENMQ_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("WARRENMQ_SIM_SEEDS").unwrap_or(DEFAULT_SEEDS),
    };
    let next = AtomicU64::new(seeds.start);
    let (applied, installed, failed) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end || failed.load(Ordering::Relaxed) > 0 {
                        return;
                    }
                    match std::panic::catch_unwind(|| run(seed)) {
                        Ok(story) => {
                            applied.fetch_add(story.applied, Ordering::Relaxed);
                            installed.fetch_add(story.installed, Ordering::Relaxed);
                        }
                        Err(_) => {
                            failed.fetch_add(1, Ordering::Relaxed);
                            eprintln!("replay with WARRENMQ_SIM_SEED={seed} cargo test -p warrenmq-simulator");
                        }
                    }
                }
            });
        }
    });
    let runs = seeds.end - seeds.start;
    let (applied, installed) = (applied.into_inner(), installed.into_inner());
    eprintln!("{runs} clusters, {applied} entries applied, {installed} snapshots installed");
    assert_eq!(failed.into_inner(), 0, "the seed is above");
    assert!(runs < 100 || (applied > 50 * runs && installed > runs / 10), "the test tests");
}

#[test]
fn the_same_seed_is_the_same_story() {
    for seed in 0..5 {
        let (first, second) = (run(seed), run(seed));
        assert_eq!(first.fingerprint, second.fingerprint, "seed {seed}");
        assert_eq!(first.applied, second.applied, "seed {seed}");
    }
}
