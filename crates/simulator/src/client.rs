//! A client: one batch after the other, each sent again until it is confirmed.

use std::time::Duration;

use storage::GroupId;

use crate::{
    machine::{Batch, Op},
    world::{Happening, World},
};

/// Queues of a group.
const QUEUES: u64 = 3;

/// The client.
pub(crate) struct Client {
    id: u64,
    group: GroupId,
    number: u64,
    current: Option<Batch>,
    /// Where it last had luck.
    host: usize,
    next_id: u64,
}

impl Client {
    pub(crate) fn new(id: u64, group: GroupId) -> Client {
        // Messages of different clients have different ids.
        Client { id, group, number: 0, current: None, host: 0, next_id: id << 32 }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.current.is_none()
    }
}

impl World {
    pub(crate) fn drive_client(&mut self, at: usize) {
        let delay = Duration::from_millis(5) + self.below_ms(60);
        self.after(delay, Happening::Client { client: at });
        if self.clients[at].is_idle() {
            if self.calm {
                return;
            }
            self.new_batch(at);
        }
        let hosts = self.hosts.len() as u64;
        let client = &mut self.clients[at];
        let (group, host) = (client.group, client.host);
        let batch = client.current.clone().expect("one is under way");
        if self.hosts[host].paused_until > self.now || self.hosts[host].process.is_none() {
            client.host = self.rng.below(hosts) as usize;
            return;
        }
        let mut answer = None;
        let life = self.hosts[host].life;
        self.with(host, life, |process, _| answer = process.submit(group, &batch));
        match answer {
            None => self.clients[at].host = self.rng.below(hosts) as usize,
            Some(true) => self.confirm(group, batch.client, batch.number),
            Some(false) => {}
        }
    }

    fn new_batch(&mut self, at: usize) {
        let count = 1 + self.rng.below(4);
        let mut ops = Vec::new();
        for _ in 0..count {
            let client = &mut self.clients[at];
            let first = client.id << 32;
            let known = client.next_id - first;
            if known > 0 && self.rng.below(100) < 45 {
                let id = first + 1 + self.rng.below(known);
                ops.push(Op::Remove { queue: id % QUEUES, id });
            } else {
                client.next_id += 1;
                let id = client.next_id;
                ops.push(Op::Enqueue { queue: id % QUEUES, id });
            }
        }
        let client = &mut self.clients[at];
        client.number += 1;
        client.current = Some(Batch { client: client.id, number: client.number, ops });
    }

    /// A leader says that a batch is safe; the client may not hear it.
    pub(crate) fn confirm(&mut self, group: GroupId, client: u64, number: u64) {
        let lost = !self.calm && self.rng.one_in(6);
        let it = &mut self.clients[client as usize];
        if !lost && it.current.as_ref().is_some_and(|batch| batch.number == number) {
            it.current = None;
            self.checker.confirmed(group, client, number);
        }
    }
}
