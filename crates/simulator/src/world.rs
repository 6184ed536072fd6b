//! The world: hosts with disks and clocks, links between them, clients, and a queue of what happens when.
//!
//! Everything is drawn from one seed, and happens on one thread in the order of the queue, so a seed is a story that can be
//! told again.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap},
    time::Duration,
};

use bytes::Bytes;
use cluster::{Config, Configuration, MemberId};
use storage::{GroupId, SimFs, SimRng};

use crate::{
    checker::Checker,
    client::Client,
    process::{End, Note, Process, identify},
    trouble::Trouble,
};

/// Shorter than in the product, so that more happens in a run.
const ELECTION_TICKS: u32 = 10;
const TICK: Duration = Duration::from_millis(50);

/// What happens.
pub(crate) enum Happening {
    /// A node's clock.
    Tick { host: usize, life: u64 },
    /// A node's log writes and syncs.
    Write { host: usize, life: u64 },
    /// A message arrives.
    Arrive { from: usize, to: usize, sender: MemberId, life: u64, bytes: Bytes },
    /// Two hosts try to connect.
    Connect { a: usize, b: usize },
    /// A host hears that a link is gone.
    Gone { host: usize, life: u64, peer: MemberId, link: u64, closed_by_peer: bool },
    /// A node is started.
    Start { host: usize },
    /// A client looks how it is going.
    Client { client: usize },
    /// Something goes wrong.
    Trouble,
    /// A partition ends.
    Heal { from: usize, to: usize },
    /// The second half of a siege.
    Strike { victim: usize, from: usize },
    /// Space is freed.
    Space { host: usize },
}

/// A machine: what outlives a process.
pub(crate) struct Host {
    pub(crate) fs: SimFs,
    pub(crate) member: MemberId,
    pub(crate) process: Option<Process>,
    /// Rises with each start and end of a process.
    pub(crate) life: u64,
    /// Its clock: millionths that it is faster, and where it began.
    pub(crate) speed: u64,
    pub(crate) ahead: Duration,
    pub(crate) paused_until: Duration,
    pub(crate) stalled_until: Duration,
    bootstrap: Configuration,
    next_tick: Duration,
    writing: bool,
}

/// Everything.
pub(crate) struct World {
    pub(crate) rng: SimRng,
    pub(crate) now: Duration,
    pub(crate) hosts: Vec<Host>,
    pub(crate) clients: Vec<Client>,
    pub(crate) checker: Checker,
    pub(crate) trouble: Trouble,
    pub(crate) groups: u32,
    /// Pairs with a link, lower number first.
    pub(crate) links: BTreeMap<(usize, usize), u64>,
    /// Messages this way are lost.
    pub(crate) blocked: BTreeSet<(usize, usize)>,
    /// Who should be in the groups, once that has changed.
    pub(crate) desired: Option<Vec<MemberId>>,
    pub(crate) calm: bool,
    next_link: u64,
    /// When the last message that keeps its order arrives.
    arrivals: BTreeMap<(usize, usize), Duration>,
    queue: BinaryHeap<Reverse<(Duration, u64, usize)>>,
    happenings: BTreeMap<usize, Happening>,
    next: usize,
}

impl World {
    pub(crate) fn new(seed: u64) -> World {
        let mut rng = SimRng::new(seed);
        let count = [3, 3, 3, 3, 1, 5][rng.below(6) as usize];
        let disks: Vec<SimFs> = (0..count).map(|_| SimFs::new(rng.next_u64())).collect();
        let members: Vec<MemberId> = disks.iter().map(|fs| identify(fs).expect("an empty disk can be used")).collect();
        let bootstrap = Configuration::of_voters(members.iter().copied());
        let hosts = disks.into_iter().zip(members).map(|(fs, member)| Host {
            fs,
            member,
            process: None,
            life: 0,
            speed: 980_000 + rng.below(40_000),
            ahead: Duration::from_millis(rng.below(100_000)),
            paused_until: Duration::ZERO,
            stalled_until: Duration::ZERO,
            bootstrap: bootstrap.clone(),
            next_tick: Duration::MAX,
            writing: false,
        });
        let hosts: Vec<Host> = hosts.collect();
        let groups = 1 + rng.below(3) as u32;
        let trouble = Trouble::draw(&mut rng);
        let clients = (0..3).map(|id| Client::new(id, GroupId(rng.below(u64::from(groups)) as u32))).collect();
        let mut world = World {
            rng,
            now: Duration::ZERO,
            hosts,
            clients,
            checker: Checker::default(),
            trouble,
            groups,
            links: BTreeMap::new(),
            next_link: 1,
            arrivals: BTreeMap::new(),
            blocked: BTreeSet::new(),
            desired: None,
            calm: false,
            queue: BinaryHeap::new(),
            happenings: BTreeMap::new(),
            next: 0,
        };
        for host in 0..count {
            let delay = world.below_ms(300);
            world.after(delay, Happening::Start { host });
        }
        for client in 0..world.clients.len() {
            world.after(Duration::from_millis(500), Happening::Client { client });
        }
        world.after(Duration::from_millis(1500), Happening::Trouble);
        world
    }

    pub(crate) fn below_ms(&mut self, bound: u64) -> Duration {
        Duration::from_micros(self.rng.below(bound * 1000))
    }

    pub(crate) fn after(&mut self, delay: Duration, happening: Happening) {
        self.at(self.now + delay, happening);
    }

    fn at(&mut self, at: Duration, happening: Happening) {
        self.next += 1;
        self.happenings.insert(self.next, happening);
        self.queue.push(Reverse((at.max(self.now), self.next as u64, self.next)));
    }

    /// Lets time pass until then, or until `done`.
    pub(crate) fn run(&mut self, until: Duration, mut done: impl FnMut(&World) -> bool) -> bool {
        let mut steps = 0u32;
        while let Some(Reverse((at, ..))) = self.queue.peek() {
            if *at > until {
                self.now = until;
                return false;
            }
            steps += 1;
            if steps.is_multiple_of(64) && done(self) {
                return true;
            }
            let Reverse((at, _, key)) = self.queue.pop().expect("looked at");
            self.now = at;
            let happening = self.happenings.remove(&key).expect("each once");
            self.happen(happening);
        }
        false
    }

    fn happen(&mut self, happening: Happening) {
        if let Some(host) = happening.host()
            && self.hosts[host].paused_until > self.now
        {
            let at = self.hosts[host].paused_until;
            return self.at(at, happening);
        }
        match happening {
            Happening::Tick { host, life } => {
                self.hosts[host].next_tick = Duration::MAX;
                self.with(host, life, |process, now| process.node.tick(now));
            }
            Happening::Write { host, life } => self.write(host, life),
            Happening::Arrive { from, to, sender, life, bytes } => {
                let lost = self.blocked.contains(&(from, to));
                if !lost {
                    self.with(to, life, |process, now| {
                        process.node.receive(sender, &bytes, now).expect("our own encoding");
                    });
                }
            }
            Happening::Connect { a, b } => self.connect(a, b),
            Happening::Gone { host, life, peer, link, closed_by_peer } => {
                // Late news: there is a new link already, which ended the old one.
                let newer =
                    self.hosts.iter().position(|host| host.member == peer).is_some_and(|other| {
                        self.links.get(&pair(host, other)).is_some_and(|current| *current != link)
                    });
                if newer {
                    return;
                }
                self.with(host, life, |process, now| process.node.link_down(peer, closed_by_peer, now));
            }
            Happening::Start { host } => self.start(host),
            Happening::Client { client } => self.drive_client(client),
            Happening::Trouble => self.make_trouble(),
            Happening::Heal { from, to } => {
                self.blocked.remove(&(from, to));
                self.connect(from, to);
            }
            Happening::Strike { victim, from } => self.strike(victim, from),
            Happening::Space { host } => self.hosts[host].fs.set_capacity(1 << 40),
        }
    }

    // ---- hosts --------------------------------------------------------------------------------------------------------

    /// A host's own clock.
    pub(crate) fn clock(&self, host: usize) -> Duration {
        let host = &self.hosts[host];
        let micros = self.now.as_micros() * u128::from(host.speed) / 1_000_000;
        host.ahead + Duration::from_micros(micros as u64)
    }

    /// When a host's clock will show something.
    fn when(&self, host: usize, shows: Duration) -> Duration {
        let host = &self.hosts[host];
        let micros = shows.saturating_sub(host.ahead).as_micros() * 1_000_000 / u128::from(host.speed);
        Duration::from_micros(micros as u64 + 1)
    }

    pub(crate) fn with(&mut self, host: usize, life: u64, act: impl FnOnce(&mut Process, Duration)) {
        let now = self.clock(host);
        let it = &mut self.hosts[host];
        if it.life != life {
            return;
        }
        let Some(process) = &mut it.process else { return };
        act(process, now);
        self.turn(host);
    }

    /// A node works off what came up, and the world takes what it made.
    pub(crate) fn turn(&mut self, host: usize) {
        let now = self.clock(host);
        let Some(process) = &mut self.hosts[host].process else { return };
        let outputs = process.turn(now);
        let notes = std::mem::take(&mut process.notes);
        let deadline = process.node.deadline();
        let end = process.end.take();
        let member = self.hosts[host].member;
        for note in notes {
            if let Note::Confirmed { group, client, number } = note {
                self.confirm(group, client, number);
            }
            self.checker.note(member, note);
        }
        self.check_delivery(host, now);
        if let Some(end) = end {
            return self.ended(host, end);
        }
        for (peer, outgoing) in outputs.sends {
            self.send(host, peer, outgoing.to_bytes());
        }
        let life = self.hosts[host].life;
        let at = self.when(host, deadline);
        if at < self.hosts[host].next_tick {
            self.hosts[host].next_tick = at;
            self.at(at, Happening::Tick { host, life });
        }
        if !self.hosts[host].writing {
            self.hosts[host].writing = true;
            let delay = self.trouble.disk_delay(&mut self.rng);
            let at = (self.now + delay).max(self.hosts[host].stalled_until);
            self.at(at, Happening::Write { host, life });
        }
    }

    /// A leader with a lease hands a message to a consumer.
    fn check_delivery(&mut self, host: usize, now: Duration) {
        if self.trouble.clocks_jump {
            return;
        }
        let it = &self.hosts[host];
        let Some(process) = &it.process else { return };
        for group in (0..self.groups).map(GroupId) {
            if process.node.lease_until(group) > now {
                let term = process.node.view(group).expect("it is there").term.0;
                self.checker.delivers(it.member, group, term);
            }
        }
    }

    fn write(&mut self, host: usize, life: u64) {
        if self.hosts[host].life != life {
            return;
        }
        self.hosts[host].writing = false;
        self.maybe_cut_power(host);
        let stalled = self.hosts[host].stalled_until;
        if stalled > self.now {
            self.hosts[host].writing = true;
            return self.at(stalled, Happening::Write { host, life });
        }
        let Some(process) = &mut self.hosts[host].process else { return };
        process.write();
        if self.hosts[host].fs.is_without_power() {
            return self.crash(host, true);
        }
        self.turn(host);
    }

    fn start(&mut self, host: usize) {
        if self.hosts[host].process.is_some() {
            return;
        }
        let now = self.clock(host);
        let seed = self.rng.next_u64();
        let config = Config {
            election_ticks: ELECTION_TICKS,
            heartbeat_ticks: 2,
            tick: TICK,
            cache_bytes: 4 << 10,
            append_bytes: 2 << 10,
            inflight_appends: 8,
            handout_bytes: 4 << 10,
            uncommitted_bytes: 64 << 10,
            stall_after: Duration::from_millis(250),
            recovered_after: Duration::from_secs(1),
            balance_after: Duration::from_secs(1),
            seed,
            ..Config::default()
        };
        let it = &mut self.hosts[host];
        match Process::start(&it.fs, self.groups, &it.bootstrap, config, now) {
            Ok(process) => it.process = Some(process),
            Err(error) => {
                let full = matches!(&error, cluster::ClusterError::Storage(error) if error.is_full());
                assert!(full, "host {host} does not start: {error}");
                it.fs.kill_process();
                return self.after(Duration::from_millis(300), Happening::Start { host });
            }
        }
        it.life += 1;
        (it.writing, it.next_tick) = (false, Duration::MAX);
        self.tell_members(host);
        self.turn(host);
        for other in (0..self.hosts.len()).filter(|other| *other != host) {
            let delay = self.below_ms(60);
            self.after(delay, Happening::Connect { a: host, b: other });
        }
    }

    pub(crate) fn tell_members(&mut self, host: usize) {
        let Some(desired) = self.desired.clone() else { return };
        if let Some(process) = &mut self.hosts[host].process {
            (0..self.groups).for_each(|group| process.node.set_members(GroupId(group), desired.clone()));
        }
    }

    /// A process ended by itself.
    fn ended(&mut self, host: usize, end: End) {
        assert!(!matches!(end, End::LostLog), "host {host} lost what was on its disk");
        let power = self.hosts[host].fs.is_without_power();
        self.crash(host, power);
    }

    /// A process dies, alone or with its machine. Its peers hear of the former at once.
    pub(crate) fn crash(&mut self, host: usize, power: bool) {
        let it = &mut self.hosts[host];
        it.process = None;
        it.life += 1;
        it.fs.clear_faults();
        if power {
            it.fs.lose_power()
        } else {
            it.fs.kill_process()
        }
        it.paused_until = self.now;
        let member = it.member;
        for other in 0..self.hosts.len() {
            if let Some(link) = self.links.remove(&pair(host, other)) {
                let reached = !self.blocked.contains(&(host, other)) && !power;
                let delay =
                    if reached { Duration::from_micros(200 + self.rng.below(2000)) } else { self.below_ms(2500) };
                let life = self.hosts[other].life;
                self.after(delay, Happening::Gone { host: other, life, peer: member, link, closed_by_peer: reached });
            }
        }
        let delay = self.trouble.restart_delay(&mut self.rng);
        self.after(delay, Happening::Start { host });
    }

    // ---- links --------------------------------------------------------------------------------------------------------

    fn connect(&mut self, a: usize, b: usize) {
        let alive = self.hosts[a].process.is_some() && self.hosts[b].process.is_some();
        if a == b || !alive || self.links.contains_key(&pair(a, b)) {
            return;
        }
        if self.blocked.contains(&(a, b)) || self.blocked.contains(&(b, a)) {
            return self.after(Duration::from_millis(200), Happening::Connect { a, b });
        }
        self.links.insert(pair(a, b), self.next_link);
        self.next_link += 1;
        for (host, other) in [(a, b), (b, a)] {
            let (life, peer) = (self.hosts[host].life, self.hosts[other].member);
            self.with(host, life, |process, now| process.node.link_up(peer, now));
        }
    }

    /// A link between two live hosts is cut: both hear of it now, and connect again later.
    pub(crate) fn cut(&mut self, a: usize, b: usize, closed_by_peer: bool) {
        if self.links.remove(&pair(a, b)).is_none() {
            return;
        }
        for (host, other) in [(a, b), (b, a)] {
            let (life, peer) = (self.hosts[host].life, self.hosts[other].member);
            self.with(host, life, |process, now| process.node.link_down(peer, closed_by_peer, now));
        }
        let delay = self.below_ms(300);
        self.after(delay, Happening::Connect { a, b });
    }

    fn send(&mut self, from: usize, peer: MemberId, bytes: Bytes) {
        let Some(to) = self.hosts.iter().position(|host| host.member == peer) else { return };
        if !self.links.contains_key(&pair(from, to)) || self.blocked.contains(&(from, to)) {
            return;
        }
        let (sender, life) = (self.hosts[from].member, self.hosts[to].life);
        let copies = self.trouble.copies(&mut self.rng, self.calm);
        for _ in 0..copies {
            let (delay, overtaken) = self.trouble.network_delay(&mut self.rng, self.calm);
            let mut at = self.now + delay;
            if !overtaken {
                let last = self.arrivals.entry((from, to)).or_default();
                at = at.max(*last);
                *last = at;
            }
            self.at(at, Happening::Arrive { from, to, sender, life, bytes: bytes.clone() });
        }
    }

    /// Another machine takes a host's place, with an empty disk: a new member instead of the old one.
    pub(crate) fn replace(&mut self, host: usize) {
        self.crash(host, false);
        let fs = SimFs::new(self.rng.next_u64());
        let it = &mut self.hosts[host];
        it.member = identify(&fs).expect("an empty disk can be used");
        it.fs = fs;
        it.bootstrap = Configuration::default();
        self.desired = Some(self.hosts.iter().map(|host| host.member).collect());
        (0..self.hosts.len()).for_each(|host| self.tell_members(host));
    }
}

fn pair(a: usize, b: usize) -> (usize, usize) {
    (a.min(b), a.max(b))
}

impl Happening {
    /// The process that it happens to, which may be stopped.
    fn host(&self) -> Option<usize> {
        match self {
            Happening::Tick { host, .. } | Happening::Write { host, .. } | Happening::Gone { host, .. } => Some(*host),
            Happening::Arrive { to, .. } => Some(*to),
            _ => None,
        }
    }
}
