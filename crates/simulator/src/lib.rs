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
