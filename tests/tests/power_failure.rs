//! Power fails under load, at any call, and takes everything with it that was not synced, or some of it, torn: no promise
//! is broken. `kill -9` does not show that, for the page cache outlives the process.
//!
//! The broker runs under `tests/power_failure/shim.c`. A *life* is a data directory with several failures one after the
//! other. `WARRENMQ_POWER_ROUNDS` asks for more failures, `WARRENMQ_POWER_SEED` for a certain life.

use warrenmq_tests::load::{Books, Found};
use warrenmq_tests::power::{Failure, POWER_FAILED, shim};
use warrenmq_tests::random::{Random, fresh_seed, number_from};
use warrenmq_tests::{Node, Setup};

/// Many changes of files, and old messages that move to segments.
const SMALL_FILES: &str = "message_log.file_size = 1MiB\nmessage_log.budget = 4MiB\n";
/// Failures in a run of `./test`.
const ROUNDS: u64 = 12;
/// Failures of a data directory at most: not so many that messages move to segments, which has a test of its own.
const SHORT_LIFE: u64 = 2;
/// The same, where messages move.
const LONG_LIFE: u64 = 6;

#[test]
fn no_promise_is_broken_when_power_fails_under_load() {
    lives("no_promise_is_broken_when_power_fails_under_load", None, SHORT_LIFE);
}

#[test]
fn no_promise_is_broken_when_power_fails_while_messages_move() {
    lives("no_promise_is_broken_when_power_fails_while_messages_move", Some(SMALL_FILES), LONG_LIFE);
}

/// As many failures as are asked for, on data directories that have several each.
fn lives(test: &str, config: Option<&str>, longest: u64) {
    let Some(shim) = shim() else { return };
    let rounds = number_from("WARRENMQ_POWER_ROUNDS").unwrap_or(ROUNDS);
    let mut seed = number_from("WARRENMQ_POWER_SEED").unwrap_or_else(fresh_seed);
    let (mut done, mut sum) = (0, Found::default());
    while done < rounds {
        println!("a life with WARRENMQ_POWER_SEED={seed}");
        let mut random = Random::new(seed);
        let failures = (1 + random.below(longest)).min(rounds - done);
        let mut node = config.map_or_else(Node::start, Node::start_with);
        let mut books = Books::default();
        // The first failure may be that of the very first start.
        if random.percent(30) {
            node.kill();
            std::fs::remove_dir_all(node.data_dir()).expect("the test's own directory");
        }
        for round in 1..=failures {
            match round_of(&mut node, &mut books, shim, &mut random, false) {
                Ok(found) => {
                    sum.confirmed += found.confirmed;
                    sum.unconfirmed += found.unconfirmed;
                    sum.settled += found.settled;
                    sum.declared += found.declared;
                }
                Err(broken) => panic!(
                    "{broken}\nin failure {round} of the life with seed {seed}; again:\nWARRENMQ_POWER_SEED={seed} \
                     WARRENMQ_POWER_ROUNDS={round} cargo test -p warrenmq-tests --test power_failure -- --include-ignored {test}"
                ),
            }
        }
        done += failures;
        seed = random.number() >> 32;
    }
    println!("{done} power failures: {sum:?}");
    assert!(sum.confirmed > 0 && sum.settled > 0 && sum.declared > 0, "the load was worth checking: {sum:?}");
}

/// The test of the test: a disk that acknowledges syncs without doing anything breaks promises, and that is found.
#[test]
fn a_disk_that_lies_about_syncs_is_found_out() {
    let Some(shim) = shim() else { return };
    for seed in 1.. {
        assert!(seed < 20, "a lying disk went unnoticed {seed} times");
        let mut node = Node::start();
        let mut random = Random::new(seed);
        if round_of(&mut node, &mut Books::default(), shim, &mut random, true).is_err() {
            return;
        }
    }
}

/// Power fails under load; the broker is started again, and asked for what it promised.
fn round_of(
    node: &mut Node,
    books: &mut Books,
    shim: &std::path::Path,
    random: &mut Random,
    lies: bool,
) -> Result<Found, String> {
    let after = if random.percent(20) { 1 + random.below(150) } else { 150 + random.below(1000) };
    let delay_us = *random.one_of(&[0, 300, 2000]);
    let failure = Failure { after, seed: random.number(), some: random.percent(50), delay_us, lies };
    if node.restart_with_failure(shim, &failure) {
        if books.declare(node.addr()).is_some() {
            let load = books.load(node.addr(), random);
            books.close(load);
        }
        let status = node.wait();
        if status.code() != Some(POWER_FAILED) {
            return Err(format!("the broker ended with {status} in place of the power failure ({failure:?})"));
        }
    }
    node.restart_as(Setup { environment: Vec::new(), ..node.setup().clone() })
        .map_err(|refusal| format!("after {failure:?} the broker does not start: {refusal:?}"))?;
    books.check(node, random).map_err(|broken| format!("after {failure:?}: {broken}"))
}
