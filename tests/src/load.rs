//! Load for a broker that may end any time, and what must be true when it is started again.
//!
//! Publishers confirm, consumers settle, an administrator declares and deletes, all on connections of their own, until the
//! broker is gone. Each notes what it was promised. [`Books::check`] then compares the promises with what is there.

use crate::methods::{
    ack, channel_close, consume, exchange_declare, publish, qos, queue_bind, queue_declare, queue_delete,
};
use crate::random::Random;
use crate::wire::{Next, Payload};
use crate::{Node, Wire, With};
use amq_protocol::protocol::{AMQPClass, BasicProperties, basic, channel, confirm, queue, tx};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::thread::{self, JoinHandle};

/// Queues under load; `FANOUT` puts messages into the first two of them.
pub const QUEUES: [&str; 5] = ["load 0", "load 1", "load 2", "load 3", "load 4"];
const FANOUT: &str = "load.fanout";
const TOPIC: &str = "load.topic";
const PUBLISHERS: u64 = 3;
/// Messages a publisher keeps unconfirmed.
const WINDOW: usize = 100;
/// Bits of a message's number within its publisher's.
const NUMBER_BITS: u32 = 40;
/// The largest body. Some turns then need several frames of the log.
const LARGEST_BODY: u64 = 1_500_000;

/// Messages that are acknowledged in one transaction.
const TRANSACTION: usize = 30;

/// A message: its publisher above [`NUMBER_BITS`], its number below.
type Id = u64;
/// A place in [`QUEUES`].
type QueueNumber = usize;

/// What is known of a message in a queue.
#[derive(Clone, Copy, Debug, Default)]
struct Fate {
    confirmed: bool,
    /// An ack was sent, so it may be gone.
    acked: bool,
    /// The ack was answered for, so it must be gone.
    settled: bool,
}

/// What is known of a queue, exchange or binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Existence {
    /// Its declaration was answered.
    There,
    /// Its deletion was answered.
    Gone,
    /// Asked for, not answered.
    Unknown,
}

/// All promises, over all rounds of a data directory.
#[derive(Debug, Default)]
pub struct Books {
    messages: BTreeMap<QueueNumber, BTreeMap<Id, Fate>>,
    declared: BTreeMap<String, Existence>,
    next_number: BTreeMap<u64, u64>,
    rounds: u64,
}

/// How much a check found, to see that a round was worth it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Found {
    /// Messages that were confirmed and are there.
    pub confirmed: usize,
    /// Messages that were not confirmed and are there.
    pub unconfirmed: usize,
    /// Messages that were settled for good.
    pub settled: usize,
    /// Queues that were declared and are there.
    pub declared: usize,
}

/// What a thread does, given the broker's address and the number of the round, until its connection ends.
type Work = fn(SocketAddr, Random, u64, &mut Notes) -> Option<()>;

/// What one thread was promised.
#[derive(Debug, Default)]
struct Notes {
    sent: Vec<(QueueNumber, Id)>,
    confirmed: Vec<(QueueNumber, Id)>,
    acked: Vec<(QueueNumber, Id)>,
    settled: Vec<(QueueNumber, Id)>,
    declared: BTreeMap<String, Existence>,
    /// The first number not used.
    next_number: Option<(u64, u64)>,
}

/// A round of load that is under way.
pub struct Load(Vec<JoinHandle<Notes>>);

impl Books {
    /// Declares what the load needs. `None`: the broker ended.
    pub fn declare(&mut self, addr: SocketAddr) -> Option<()> {
        let mut c = Wire::try_open(addr)?;
        for queue in QUEUES {
            c.try_call(queue_declare(queue).with(|m| m.durable = true))?;
        }
        c.try_call(exchange_declare(FANOUT, "fanout").with(|m| m.durable = true))?;
        c.try_call(exchange_declare(TOPIC, "topic").with(|m| m.durable = true))?;
        for queue in &QUEUES[..2] {
            c.try_call(queue_bind(queue, FANOUT, ""))?;
        }
        Some(())
    }

    /// Starts a round.
    pub fn load(&mut self, addr: SocketAddr, random: &mut Random) -> Load {
        self.rounds += 1;
        let mut threads = Vec::new();
        for publisher in 0..PUBLISHERS {
            let (random, first) = (random.fork(), self.next_number.get(&publisher).copied().unwrap_or(1));
            threads.push(thread::spawn(move || {
                let mut notes = Notes::default();
                let mut next = first;
                publisher_works(addr, random, publisher, &mut next, &mut notes);
                notes.next_number = Some((publisher, next));
                notes
            }));
        }
        let works: [Work; 3] = [getter_works, committer_works, administrator_works];
        for work in works {
            let (random, round) = (random.fork(), self.rounds);
            threads.push(thread::spawn(move || {
                let mut notes = Notes::default();
                let _ = work(addr, random, round, &mut notes);
                notes
            }));
        }
        Load(threads)
    }

    /// Waits until all have lost their connections, and takes down what they were promised.
    pub fn close(&mut self, load: Load) {
        for thread in load.0 {
            let notes = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            for (queue, id) in notes.sent {
                self.messages.entry(queue).or_default().entry(id).or_default();
            }
            for (queue, id) in notes.confirmed {
                self.fate(queue, id).confirmed = true;
            }
            for (queue, id) in notes.acked {
                self.fate(queue, id).acked = true;
            }
            for (queue, id) in notes.settled {
                self.fate(queue, id).settled = true;
            }
            self.declared.extend(notes.declared);
            self.next_number.extend(notes.next_number);
        }
    }

    fn fate(&mut self, queue: QueueNumber, id: Id) -> &mut Fate {
        self.messages.entry(queue).or_default().entry(id).or_default()
    }

    /// Compares. What is there afterwards counts as promised, and half of it is settled.
    ///
    /// # Errors
    /// Which promise was broken.
    pub fn check(&mut self, node: &Node, random: &mut Random) -> Result<Found, String> {
        let mut found = Found::default();
        for queue in 0..QUEUES.len() {
            self.check_queue(node, queue, random, &mut found)?;
        }
        self.check_declared(node, &mut found)?;
        Ok(found)
    }

    fn check_queue(
        &mut self,
        node: &Node,
        queue: QueueNumber,
        random: &mut Random,
        found: &mut Found,
    ) -> Result<(), String> {
        let name = QUEUES[queue];
        let mut c = Wire::open(node);
        let count = c.call(queue_declare(name).with(|m| m.durable = true)).message_count;
        c.call(tx::Select {});
        c.call(consume(name, "check"));
        let fates = self.messages.entry(queue).or_default();
        let mut there = BTreeMap::new();
        let mut last_of: BTreeMap<u64, Id> = BTreeMap::new();
        for _ in 0..count {
            let message = c.delivery();
            let id = id_in(&message.body).ok_or_else(|| format!("{name}: a body that nobody sent"))?;
            let publisher = id >> NUMBER_BITS;
            if !fates.contains_key(&id) {
                return Err(format!("{name}: message {id:#x} was never sent there"));
            }
            if there.insert(id, message.method.delivery_tag).is_some() {
                return Err(format!("{name}: message {id:#x} is there twice"));
            }
            if let Some(last) = last_of.insert(publisher, id).filter(|last| *last > id) {
                return Err(format!("{name}: message {id:#x} comes after {last:#x}"));
            }
        }
        for (id, fate) in fates.iter() {
            let is_there = there.contains_key(id);
            if fate.settled && is_there {
                return Err(format!("{name}: message {id:#x} was settled for good and is back"));
            }
            if fate.confirmed && !fate.acked && !is_there {
                let lost = fates.iter().filter(|(id, fate)| fate.confirmed && !fate.acked && !there.contains_key(id));
                let lost: Vec<_> = lost.map(|(id, _)| format!("{id:#x}")).collect();
                let few = &lost[..lost.len().min(10)];
                return Err(format!("{name}: {} confirmed messages are lost: {few:?}", lost.len()));
            }
            found.confirmed += usize::from(fate.confirmed && is_there);
            found.unconfirmed += usize::from(!fate.confirmed && is_there);
            found.settled += usize::from(fate.settled);
        }
        fates.retain(|id, fate| {
            *fate = Fate { confirmed: true, ..Fate::default() };
            match there.get(id) {
                Some(&tag) if random.percent(50) => {
                    c.send(ack(tag));
                    fate.settled = true;
                    fate.acked = true;
                    true
                }
                there => there.is_some(),
            }
        });
        c.call(tx::Commit {});
        Ok(())
    }

    fn check_declared(&mut self, node: &Node, found: &mut Found) -> Result<(), String> {
        let mut c = Wire::open(node);
        for (name, existence) in std::mem::take(&mut self.declared) {
            c.send(queue_declare(&name).with(|m| m.passive = true));
            let there = match c.event() {
                (_, Payload::Method(AMQPClass::Queue(queue::AMQPMethod::DeclareOk(ok)))) => Some(ok.message_count),
                (_, Payload::Method(AMQPClass::Channel(channel::AMQPMethod::Close(_)))) => None,
                other => return Err(format!("'{name}': {other:?} in place of declare-ok")),
            };
            match (existence, there) {
                (Existence::There, None) => return Err(format!("the queue '{name}' was declared and is lost")),
                (Existence::Gone, Some(_)) => return Err(format!("the queue '{name}' was deleted and is back")),
                (_, Some(1..)) => return Err(format!("the queue '{name}' has messages of the one before")),
                _ => {}
            }
            if there.is_none() {
                c.send(channel::CloseOk {});
                c.open_channel(1);
                continue;
            }
            found.declared += 1;
            if existence == Existence::There {
                c.call(confirm::Select::default());
                c.publish_with(publish(TOPIC, &name).with(|m| m.mandatory = true), BasicProperties::default(), "");
                c.event();
                if c.ready(&name) != 1 {
                    return Err(format!("the binding of the queue '{name}' was made and is lost"));
                }
            }
            c.call(queue_delete(&name));
            c.close_channel();
            c.open_channel(1);
        }
        Ok(())
    }
}

/// Publishes to queues of all shards and waits for confirms as it goes.
fn publisher_works(
    addr: SocketAddr,
    mut random: Random,
    publisher: u64,
    next: &mut u64,
    notes: &mut Notes,
) -> Option<()> {
    let mut c = Wire::try_open(addr)?;
    c.try_call(confirm::Select::default())?;
    let mut open: BTreeMap<u64, (Vec<QueueNumber>, Id)> = BTreeMap::new();
    for publish_number in 1.. {
        let id = publisher << NUMBER_BITS | *next;
        *next += 1;
        let (exchange, queues) = match random.below(QUEUES.len() as u64 + 1) as usize {
            number if number < QUEUES.len() => ("", vec![number]),
            _ => (FANOUT, vec![0, 1]),
        };
        notes.sent.extend(queues.iter().map(|&queue| (queue, id)));
        open.insert(publish_number, (queues.clone(), id));
        let method = publish(exchange, QUEUES[queues[0]]);
        c.try_publish_with(method, BasicProperties::default().with_delivery_mode(2), &body_of(id))?;
        while open.len() >= WINDOW {
            let done = match c.frame_or_end()? {
                (_, Payload::Method(AMQPClass::Basic(basic::AMQPMethod::Ack(ack)))) if ack.multiple => {
                    let later = open.split_off(&(ack.delivery_tag + 1));
                    std::mem::replace(&mut open, later).into_values().collect()
                }
                (_, Payload::Method(AMQPClass::Basic(basic::AMQPMethod::Ack(ack)))) => {
                    vec![open.remove(&ack.delivery_tag).expect("a confirm of an open publish")]
                }
                (_, other) => panic!("expected a confirm, got {other:?}"),
            };
            let done = done.into_iter().flat_map(|(queues, id)| queues.into_iter().map(move |queue| (queue, id)));
            notes.confirmed.extend(done);
        }
    }
    None
}

/// Gets messages and acknowledges most of them, half of the time in a transaction: then they are gone.
fn getter_works(addr: SocketAddr, mut random: Random, _round: u64, notes: &mut Notes) -> Option<()> {
    let mut c = Wire::try_open(addr)?;
    loop {
        let queue = random.below(QUEUES.len() as u64) as usize;
        let (mut acked, transaction) = (Vec::new(), random.percent(50));
        if transaction {
            c.try_call(tx::Select {})?;
        }
        for _ in 0..random.below(40) {
            let Some(message) = c.try_get(QUEUES[queue])? else { break };
            if random.percent(80) {
                let id = id_in(&message.body).expect("a body that was sent");
                acked.push((queue, id));
                notes.acked.push((queue, id));
                c.try_send(ack(message.method.delivery_tag))?;
            }
        }
        if transaction {
            c.try_call(tx::Commit {})?;
            notes.settled.extend(acked);
        }
        // What was not acknowledged goes back.
        c.try_call(channel_close())?;
        c.try_call(channel::Open {})?;
    }
}

/// Consumes and acknowledges in transactions: what is committed is gone.
fn committer_works(addr: SocketAddr, mut random: Random, _round: u64, notes: &mut Notes) -> Option<()> {
    let mut c = Wire::try_open(addr)?;
    let queue = random.below(QUEUES.len() as u64) as usize;
    c.try_call(tx::Select {})?;
    c.try_call(qos(TRANSACTION as u16))?;
    c.try_call(consume(QUEUES[queue], "committer"))?;
    let (mut acked, mut committing) = (Vec::new(), Vec::new());
    loop {
        match c.try_next()? {
            Next::Delivery(message) => {
                let id = id_in(&message.body).expect("a body that was sent");
                acked.push((queue, id));
                notes.acked.push((queue, id));
                c.try_send(ack(message.method.delivery_tag))?;
            }
            Next::Method(AMQPClass::Tx(tx::AMQPMethod::CommitOk(_))) => notes.settled.append(&mut committing),
            Next::Method(other) => panic!("expected commit-ok, got {other:?}"),
        }
        // Deliveries of the next transaction may come before the end of this one is announced.
        if acked.len() >= TRANSACTION && committing.is_empty() {
            std::mem::swap(&mut acked, &mut committing);
            c.try_send(tx::Commit {})?;
        }
    }
}

/// Declares queues and binds them, and deletes some with a message in them; of those some come again, empty.
fn administrator_works(addr: SocketAddr, mut random: Random, round: u64, notes: &mut Notes) -> Option<()> {
    let mut c = Wire::try_open(addr)?;
    c.try_call(confirm::Select::default())?;
    for number in 0_u64.. {
        let name = format!("declared {round}/{number}");
        declare(&mut c, &name, notes)?;
        if random.percent(50) {
            continue;
        }
        // With a message in it nothing is said of the queue: not what the checks look at.
        notes.declared.remove(&name);
        c.try_publish_with(publish("", &name), BasicProperties::default().with_delivery_mode(2), b"old")?;
        match c.frame_or_end()? {
            (_, Payload::Method(AMQPClass::Basic(basic::AMQPMethod::Ack(_)))) => {}
            (_, other) => panic!("expected a confirm, got {other:?}"),
        }
        c.try_call(queue_delete(&name))?;
        notes.declared.insert(name.clone(), Existence::Gone);
        if random.percent(50) {
            declare(&mut c, &name, notes)?;
        }
    }
    None
}

fn declare(c: &mut Wire, name: &str, notes: &mut Notes) -> Option<()> {
    notes.declared.insert(name.to_owned(), Existence::Unknown);
    c.try_call(queue_declare(name).with(|m| m.durable = true))?;
    c.try_call(queue_bind(name, TOPIC, name))?;
    notes.declared.insert(name.to_owned(), Existence::There);
    Some(())
}

/// The body of a message: its number, and bytes that follow from it. Most are short, a few are very long.
fn body_of(id: Id) -> Vec<u8> {
    let mut random = Random::new(id);
    let length = match random.below(100) {
        0..60 => random.below(200),
        60..90 => random.below(8_000),
        90..99 => random.below(100_000),
        _ => random.below(LARGEST_BODY),
    };
    let mut body = format!("{id:016x} ").into_bytes();
    // In pieces: the tests are not optimised, and there are many bytes.
    let piece: [u8; 256] = std::array::from_fn(|at| (id as u8).wrapping_add(at as u8));
    let end = body.len() + length as usize;
    while body.len() < end {
        let left = (end - body.len()).min(piece.len());
        body.extend_from_slice(&piece[..left]);
    }
    body
}

/// The message whose body this is; `None` if it is no body of ours, or changed.
fn id_in(body: &[u8]) -> Option<Id> {
    let digits = std::str::from_utf8(body.get(..16)?).ok()?;
    let id = u64::from_str_radix(digits, 16).ok()?;
    (body_of(id) == body).then_some(id)
}
