//! Whole clusters on one thread: the production code of `warrenmq-cluster` and `warrenmq-storage` over simulated disks,
//! links and clocks, with clients, and with everything that may go wrong. Development only.
//!
//! [`run`] tells the story of a seed: some seconds of trouble, then calm; it panics if a client was promised something that
//! is not so, or if the cluster does not come back. The same seed is the same story. What may happen is in `trouble.rs`, what
//! must hold in `checker.rs`, and what stands for the broker's shards in [`machine`].

mod checker;
mod client;
pub mod machine;
mod process;
mod trouble;
mod world;

use std::time::Duration;

use storage::GroupId;

use world::World;

/// How long trouble lasts.
const TROUBLE: Duration = Duration::from_secs(7);
/// After that everything must be well within this time.
const RECOVERY: Duration = Duration::from_secs(20);

/// What happened in a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Story {
    /// Entries that were applied, on all nodes together.
    pub applied: u64,
    /// Snapshots that took a log's place.
    pub installed: u64,
    /// Different for different stories.
    pub fingerprint: u64,
}

/// Runs a cluster through what the seed has for it.
///
/// # Panics
/// If something was not as it must be; the message says what.
pub fn run(seed: u64) -> Story {
    let mut world = World::new(seed);
    world.run(TROUBLE, |_| false);
    world.become_calm();
    let end = world.now + RECOVERY;
    let well = world.run(end, is_well);
    if !well {
        panic!("not well after {RECOVERY:?} of calm: {}", describe(&world));
    }
    let mut fingerprint = world.now.as_micros() as u64;
    for group in (0..world.groups).map(GroupId) {
        for host in &world.hosts {
            let machine = host.process.as_ref().expect("it is well").machine(group);
            world.checker.finish(group, host.member, machine);
            fingerprint = fingerprint.rotate_left(5) ^ machine.hash();
        }
    }
    Story { applied: world.checker.applied, installed: world.checker.installed, fingerprint }
}

/// Everybody runs, agrees, and waits for nothing.
fn is_well(world: &World) -> bool {
    let groups = || (0..world.groups).map(GroupId);
    world.clients.iter().all(client::Client::is_idle)
        && groups().all(|group| {
            let last = world.checker.last(group);
            let mut leaders = 0;
            let all = world.hosts.iter().all(|host| {
                let Some(process) = &host.process else { return false };
                let Some(view) = process.node.view(group) else { return false };
                leaders += u32::from(view.leading);
                let mut voters = world.hosts.iter().map(|host| host.member).collect::<Vec<_>>();
                voters.sort_unstable();
                process.machine(group).applied >= last
                    && view.configuration.voters == voters
                    && !view.configuration.is_joint()
                    && view.applied == view.committed
            });
            all && leaders == 1
        })
}

fn describe(world: &World) -> String {
    let mut out = format!("links {:?}, desired {:?}", world.links, world.desired);
    for host in &world.hosts {
        out += &format!("\n{}:", host.member);
        let Some(process) = &host.process else {
            out += " not running";
            continue;
        };
        for group in (0..world.groups).map(GroupId) {
            let machine = process.machine(group);
            out += &format!("\n  {group}: state {} {:?}", machine.applied, process.node.view(group));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leads(world: &World, host: usize) -> bool {
        let view = world.hosts[host].process.as_ref().and_then(|process| process.node.view(GroupId(0)));
        view.is_some_and(|view| view.leading)
    }

    /// A calm cluster of at least three, if the seed has one, and who leads group 0.
    fn calm(seed: u64) -> Option<(World, usize)> {
        let mut world = World::new(seed);
        if world.hosts.len() < 3 {
            return None;
        }
        (world.trouble.clocks_jump, world.trouble.quick_restarts) = (false, true);
        world.become_calm();
        assert!(world.run(Duration::from_secs(10), is_well), "{}", describe(&world));
        let leader = (0..world.hosts.len()).find(|host| leads(&world, *host)).expect("it is well");
        Some((world, leader))
    }

    /// Its leader gets into trouble, and the time until there is another.
    fn failover(seed: u64, trouble: impl FnOnce(&mut World, usize)) -> Option<Duration> {
        let (mut world, leader) = calm(seed)?;
        let others: Vec<usize> = (0..world.hosts.len()).filter(|host| *host != leader).collect();
        let since = world.now;
        trouble(&mut world, leader);
        let end = world.now + Duration::from_secs(10);
        while !others.iter().any(|host| leads(&world, *host)) {
            let step = world.now + Duration::from_millis(1);
            assert!(step < end, "nobody leads: {}", describe(&world));
            world.run(step, |_| false);
        }
        Some(world.now - since)
    }

    #[test]
    fn a_killed_leader_is_replaced_at_once_and_a_silent_one_after_the_election_timeout() {
        let mut killed: Vec<Duration> =
            (0..40).filter_map(|seed| failover(seed, |world, leader| world.crash(leader, false))).collect();
        killed.sort_unstable();
        let (median, worst) = (killed[killed.len() / 2], killed[killed.len() - 1]);
        assert!(median <= Duration::from_millis(100) && worst <= Duration::from_millis(400), "{median:?} {worst:?}");
        let stopped = (0..40).filter_map(|seed| {
            failover(seed, |world, leader| world.hosts[leader].paused_until = world.now + Duration::from_secs(30))
        });
        let worst = stopped.max().expect("some seeds have three hosts");
        // Two election timeouts of half a second, the votes, and a second try if two stood at once.
        assert!(worst <= Duration::from_millis(2500), "{worst:?}");
    }

    /// A leader loses one follower; when that one is about to be elected, the other followers are restarted, and have forgotten
    /// whom they heard of a moment ago. The checker wants that nobody delivers while another may.
    #[test]
    fn restarted_followers_do_not_end_a_lease_that_they_prolonged() {
        for seed in 0..120 {
            let Some((mut world, leader)) = calm(seed) else { continue };
            let others: Vec<usize> = (0..world.hosts.len()).filter(|host| *host != leader).collect();
            let (first, rest) = others.split_first().expect("at least two");
            world.block(leader, *first, Duration::from_secs(5));
            let later = world.now + Duration::from_millis(400 + seed * 13 % 700);
            world.run(later, |_| false);
            for other in rest {
                world.block(leader, *other, Duration::from_secs(5));
                world.crash(*other, false);
            }
            let end = world.now + Duration::from_secs(2);
            world.run(end, |_| false);
        }
    }

    /// A leader hands over, and hears nothing more: neither that it worked, nor that it did not.
    #[test]
    fn a_leader_that_hands_over_delivers_no_more() {
        let mut moved = 0;
        for seed in 0..60 {
            let Some((mut world, leader)) = calm(seed) else { continue };
            let others: Vec<usize> = (0..world.hosts.len()).filter(|host| *host != leader).collect();
            let (heir, life) = (world.hosts[others[0]].member, world.hosts[leader].life);
            world.with(leader, life, |process, _| _ = process.node.transfer_leader(GroupId(0), heir));
            for other in &others {
                world.blocked.insert((*other, leader));
            }
            let end = world.now + Duration::from_secs(2);
            moved += u32::from(world.run(end, |world| leads(world, others[0])));
            world.run(end, |_| false);
        }
        assert!(moved > 20, "the test tests: {moved}");
    }
}
