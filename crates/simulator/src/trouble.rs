//! What goes wrong, and how much of it. Everything here can happen to a cluster that loses nothing:
//!
//! - messages are lost, late, twice, or in another order: links may be cut at any moment, and raft assumes nothing else;
//! - a process is killed or stopped, a machine loses power with what was not synced: that is what a sync is for;
//! - disks stall, run full, or refuse a sync, which ends the process;
//! - one machine is replaced by an empty one. More than a minority at once would lose what only they had.

use std::time::Duration;

use storage::{SimFault, SimRng};

use crate::world::{Happening, World};

/// How much of what.
#[derive(Debug)]
pub(crate) struct Trouble {
    /// Of a thousand messages.
    lost: u64,
    twice: u64,
    late: u64,
    /// Between two troubles, in milliseconds.
    interval: u64,
    power_cuts: bool,
    partitions: bool,
    disks: bool,
    replaces: bool,
    /// Then leases cannot be relied on.
    pub(crate) clocks_jump: bool,
    slow_disks: bool,
    /// Processes come back at once.
    pub(crate) quick_restarts: bool,
}

impl Trouble {
    pub(crate) fn draw(rng: &mut SimRng) -> Trouble {
        let mut some = |bound: u64| if rng.one_in(2) { rng.below(bound) } else { 0 };
        let (lost, twice, late) = (some(150), some(100), some(100));
        Trouble {
            lost,
            twice,
            late,
            interval: 80 + rng.below(1000),
            power_cuts: rng.one_in(2),
            partitions: rng.one_in(2),
            disks: rng.one_in(2),
            replaces: rng.one_in(4),
            clocks_jump: rng.one_in(4),
            slow_disks: rng.one_in(3),
            quick_restarts: rng.one_in(2),
        }
    }

    pub(crate) fn restart_delay(&self, rng: &mut SimRng) -> Duration {
        Duration::from_millis(if self.quick_restarts { 10 + rng.below(60) } else { rng.below(1500) })
    }

    pub(crate) fn disk_delay(&self, rng: &mut SimRng) -> Duration {
        let slow = self.slow_disks && rng.one_in(4);
        Duration::from_micros(if slow { rng.below(60_000) } else { 100 + rng.below(2000) })
    }

    /// How long a message takes, and whether later ones may overtake it.
    pub(crate) fn network_delay(&self, rng: &mut SimRng, calm: bool) -> (Duration, bool) {
        let late = !calm && rng.below(1000) < self.late;
        (Duration::from_micros(if late { rng.below(800_000) } else { 100 + rng.below(1500) }), late)
    }

    /// How many of a message arrive.
    pub(crate) fn copies(&self, rng: &mut SimRng, calm: bool) -> u32 {
        if calm {
            return 1;
        }
        u32::from(rng.below(1000) >= self.lost) + u32::from(rng.below(1000) < self.twice)
    }
}

impl World {
    /// The power may go in the middle of a write.
    pub(crate) fn maybe_cut_power(&mut self, host: usize) {
        if !self.calm && self.trouble.power_cuts && self.rng.one_in(400) {
            let calls = self.rng.below(12);
            self.hosts[host].fs.lose_power_after(calls);
        }
    }

    pub(crate) fn make_trouble(&mut self) {
        if self.calm {
            return;
        }
        let interval = Duration::from_millis(20) + self.below_ms(self.trouble.interval * 2);
        self.after(interval, Happening::Trouble);
        let count = self.hosts.len() as u64;
        let (host, other) = (self.rng.below(count) as usize, self.rng.below(count) as usize);
        let running = self.hosts[host].process.is_some();
        match self.rng.below(14) {
            0 | 1 if running => self.crash(host, false),
            2 if running && self.trouble.power_cuts => self.crash(host, true),
            3 | 4 if self.trouble.partitions => self.partition(host),
            5 if host != other => {
                let closed = self.rng.one_in(2);
                self.cut(host, other, closed);
            }
            6 if running => {
                self.hosts[host].paused_until = self.now + self.below_ms(1500);
            }
            7 if self.trouble.disks => self.hosts[host].stalled_until = self.now + self.below_ms(1500),
            8 if self.trouble.disks => {
                let fs = &self.hosts[host].fs;
                let left = self.rng.below(40_000);
                fs.set_capacity(fs.used_bytes() + left);
                let delay = self.below_ms(1500);
                self.after(delay, Happening::Space { host });
            }
            9 if self.trouble.disks && running => {
                let calls = self.rng.below(10);
                self.hosts[host].fs.fail_after(SimFault::Sync, calls);
            }
            10 if self.trouble.clocks_jump => {
                let jump = self.below_ms(2000);
                self.hosts[host].ahead += jump;
            }
            11 if self.trouble.replaces && count >= 3 && self.desired.is_none() => self.replace(host),
            12 if self.trouble.partitions && count >= 3 => self.besiege(),
            _ => self.hand_over(host),
        }
    }

    /// The hardest that can happen to a lease: a leader loses one follower, and when that one is about to be elected, the other
    /// follower is restarted, and forgets whom it heard of a moment ago.
    fn besiege(&mut self) {
        let group = storage::GroupId(self.rng.below(u64::from(self.groups)) as u32);
        let leads = |host: &crate::world::Host| {
            host.process.as_ref().is_some_and(|process| process.node.view(group).is_some_and(|view| view.leading))
        };
        let Some(leader) = self.hosts.iter().position(leads) else { return };
        let others: Vec<usize> = (0..self.hosts.len()).filter(|host| *host != leader).collect();
        let first = others[self.rng.below(others.len() as u64) as usize];
        let how_long = Duration::from_millis(1500) + self.below_ms(1000);
        self.block(leader, first, how_long);
        let later = Duration::from_millis(350) + self.below_ms(600);
        for other in others.into_iter().filter(|other| *other != first) {
            self.after(later, Happening::Strike { victim: other, from: leader });
        }
    }

    /// The second half of a siege.
    pub(crate) fn strike(&mut self, victim: usize, from: usize) {
        if self.calm {
            return;
        }
        let how_long = self.below_ms(1000);
        self.block(victim, from, how_long);
        self.crash(victim, false);
    }

    pub(crate) fn block(&mut self, a: usize, b: usize, how_long: Duration) {
        for (from, to) in [(a, b), (b, a)] {
            if self.blocked.insert((from, to)) {
                self.after(how_long, Happening::Heal { from, to });
            }
        }
    }

    /// An operator moves a leader.
    fn hand_over(&mut self, host: usize) {
        let group = storage::GroupId(self.rng.below(u64::from(self.groups)) as u32);
        let to = self.hosts[self.rng.below(self.hosts.len() as u64) as usize].member;
        if self.hosts[host].paused_until > self.now {
            return;
        }
        let life = self.hosts[host].life;
        let mut moves = false;
        self.with(host, life, |process, _| moves = process.node.transfer_leader(group, to));
        if moves && self.trouble.partitions && self.rng.one_in(2) {
            // Nobody tells it what became of that.
            let how_long = self.below_ms(1000);
            for other in (0..self.hosts.len()).filter(|other| *other != host) {
                if self.blocked.insert((other, host)) {
                    self.after(how_long, Happening::Heal { from: other, to: host });
                }
            }
        }
    }

    /// A host no longer reaches some of the others, or is no longer reached, or both.
    fn partition(&mut self, host: usize) {
        let ways = 1 + self.rng.below(3);
        let how_long = self.below_ms(3000);
        for other in (0..self.hosts.len()).filter(|other| *other != host) {
            if self.rng.one_in(3) {
                continue;
            }
            for (from, to, bit) in [(host, other, 1), (other, host, 2)] {
                if ways & bit != 0 && self.blocked.insert((from, to)) {
                    self.after(how_long, Happening::Heal { from, to });
                }
            }
            // Sooner or later both give the silent link up.
            if self.rng.one_in(2) {
                self.cut(host, other, false);
            }
        }
    }

    /// No more trouble: whatever is broken is mended.
    pub(crate) fn become_calm(&mut self) {
        self.calm = true;
        self.blocked.clear();
        for host in 0..self.hosts.len() {
            let it = &mut self.hosts[host];
            it.fs.clear_faults();
            it.fs.set_capacity(1 << 40);
            (it.paused_until, it.stalled_until) = (self.now, self.now);
            if it.process.is_none() {
                self.after(Duration::ZERO, Happening::Start { host });
            }
            for other in 0..host {
                self.after(Duration::from_millis(10), Happening::Connect { a: host, b: other });
            }
        }
    }
}
