//! Random conversations with a shard, step by step against a naive model of it ([`naive::Model`]): the same deliveries to the same
//! consumers in the same order, the same answers, the same counts.
//!
//! `PROPTEST_CASES=200000 cargo test -p warrenmq-queue --test model` looks for longer.

mod naive;
mod ring;

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use proptest::prelude::*;
use proptest::test_runner::Config;
use queue::{
    Batch, ConsumerId, ConsumerSpec, Effect, Enqueue, Intervals, Message, MessageRef, Op, Outcome, QueueId, Reply,
    Sequence, Settings, Shard, Targets, Token,
};
use warrenmq_queue as queue;

use naive::{Gate, Model, Seen, bytes};

/// Conversations per run: a few seconds without optimisation.
const CASES: u32 = 1500;
/// Queues that are there at a time; place number `PLACES` is a queue that never was.
const PLACES: usize = 3;
/// Holders that never consume, for `basic.get`. Their numbers lie below all consumers'.
const HOLDERS: u32 = 3;

/// One thing asked, in terms that mean something in any state: places and picks are counted round.
#[derive(Clone, Debug)]
enum Ask {
    Create {
        place: usize,
        auto_delete: bool,
        single_active_consumer: bool,
    },
    /// To the places whose bits are set.
    Publish {
        places: u8,
        length: u8,
    },
    Attach {
        place: usize,
        connection: u64,
        spec: ConsumerSpec,
    },
    /// `who` also finds consumers that are gone, and holders. A pick below [`Self::STALE`] is one of the deliveries that are out
    /// with it; the others are plain numbers, whatever has them.
    Settle {
        who: usize,
        outcome: Outcome,
        picks: Vec<u8>,
    },
    Detach {
        who: usize,
        requeue: bool,
    },
    Resume {
        who: usize,
    },
    Get {
        place: usize,
        holder: u32,
        no_ack: bool,
    },
    Count {
        place: usize,
    },
    Purge {
        place: usize,
    },
    Delete {
        place: usize,
        if_unused: bool,
        if_empty: bool,
    },
}

impl Ask {
    const STALE: u8 = 200;
}

/// What happens between two looks at the shard.
#[derive(Clone, Debug)]
enum Step {
    Batch {
        connection: u64,
        asks: Vec<Ask>,
    },
    /// From now on a consumer is admitted this many messages; `None`: all.
    Allow {
        who: usize,
        messages: Option<u32>,
    },
    /// A connection is gone without a word.
    Forget {
        connection: u64,
    },
}

fn ask() -> impl Strategy<Value = Ask> {
    let place = 0..PLACES;
    let any_place = 0..=PLACES;
    let who = any::<usize>();
    let spec = (any::<bool>(), prop::bool::weighted(0.1), 0u32..4, prop::sample::select(vec![0, 0, 0, -1, 7]))
        .prop_map(|(no_ack, exclusive, prefetch, priority)| ConsumerSpec {
            no_ack: no_ack && prefetch < 2,
            exclusive,
            prefetch,
            priority,
        });
    let outcome = prop::sample::select(vec![Outcome::Ack, Outcome::Ack, Outcome::Requeue, Outcome::Discard]);
    prop_oneof![
        8 => (1u8..1 << PLACES, 0u8..5).prop_map(|(places, length)| Ask::Publish { places, length }),
        5 => (who, outcome, prop::collection::vec(any::<u8>(), 1..5))
            .prop_map(|(who, outcome, picks)| Ask::Settle { who, outcome, picks }),
        3 => (any_place.clone(), 1..=2u64, spec)
            .prop_map(|(place, connection, spec)| Ask::Attach { place, connection, spec }),
        2 => (who, any::<bool>()).prop_map(|(who, requeue)| Ask::Detach { who, requeue }),
        2 => who.prop_map(|who| Ask::Resume { who }),
        2 => (any_place.clone(), 0..HOLDERS, any::<bool>())
            .prop_map(|(place, holder, no_ack)| Ask::Get { place, holder, no_ack }),
        2 => (place, prop::bool::weighted(0.3), prop::bool::weighted(0.3)).prop_map(
            |(place, auto_delete, single_active_consumer)| Ask::Create { place, auto_delete, single_active_consumer }
        ),
        1 => any_place.clone().prop_map(|place| Ask::Count { place }),
        1 => any_place.clone().prop_map(|place| Ask::Purge { place }),
        1 => (any_place, any::<bool>(), any::<bool>())
            .prop_map(|(place, if_unused, if_empty)| Ask::Delete { place, if_unused, if_empty }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let batch = (1..=2u64, prop::collection::vec(ask(), 1..6));
    prop_oneof![
        20 => batch.prop_map(|(connection, asks)| Step::Batch { connection, asks }),
        3 => (any::<usize>(), prop::option::weighted(0.7, 0u32..4))
            .prop_map(|(who, messages)| Step::Allow { who, messages }),
        1 => (1..=2u64).prop_map(|connection| Step::Forget { connection }),
    ]
}

/// The shard and its model, side by side.
struct Pair {
    shard: Shard,
    gate: Gate,
    model: Model,
    /// The queue at each place; the last is one that never was.
    places: [QueueId; PLACES + 1],
    next_queue: u64,
    /// Everyone who ever consumed or could hold a message, with the queue it means.
    known: Vec<(QueueId, ConsumerId)>,
    next_local: u32,
    next_body: u32,
    batches: u64,
}

/// What a batch is made of while it is put together.
#[derive(Default)]
struct Draft {
    ops: Vec<Op>,
    data: Vec<u8>,
    /// Which queue a reply is about.
    asked: HashMap<u64, QueueId>,
}

impl Draft {
    fn token(&mut self, queue: QueueId) -> Token {
        let token = self.asked.len() as u64;
        self.asked.insert(token, queue);
        Token(token)
    }
}

impl Pair {
    fn new() -> Self {
        let mut pair = Self {
            shard: Shard::new(),
            gate: Gate::default(),
            model: Model::default(),
            places: [QueueId(0); PLACES + 1],
            next_queue: 1,
            known: Vec::new(),
            next_local: HOLDERS,
            next_body: 0,
            batches: 0,
        };
        let mut draft = Draft::default();
        for place in 0..PLACES {
            let create = Ask::Create { place, auto_delete: false, single_active_consumer: false };
            pair.ask(create, &mut draft);
        }
        pair.run(1, draft);
        pair
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Batch { connection, asks } => {
                let mut draft = Draft::default();
                for ask in asks {
                    self.ask(ask, &mut draft);
                }
                self.run(connection, draft);
            }
            Step::Allow { who, messages } => {
                if let Some((_, consumer)) = self.who(who) {
                    self.gate.set(consumer, messages);
                    self.model.gate.set(consumer, messages);
                }
            }
            Step::Forget { connection } => {
                self.model.forget_connection(connection);
                let mut effects = Vec::new();
                self.shard.forget_connection(connection, &mut effects);
                self.shard.deliver(&mut self.gate, &mut effects);
                self.compare(effects, &HashMap::new());
            }
        }
    }

    /// Mostly somebody who consumes or holds something, else anyone who ever could.
    fn who(&self, who: usize) -> Option<(QueueId, ConsumerId)> {
        let present = self.model.holders();
        let among = if who.is_multiple_of(4) || present.is_empty() { &self.known } else { &present };
        (!among.is_empty()).then(|| among[who / 4 % among.len()])
    }

    /// Adds an op to the batch, and lets the model do it.
    fn ask(&mut self, ask: Ask, draft: &mut Draft) {
        match ask {
            Ask::Create { place, auto_delete, single_active_consumer } => {
                if !self.model.counts().iter().any(|(id, _)| *id == self.places[place]) {
                    self.places[place] = QueueId(self.next_queue);
                    self.next_queue += 1;
                }
                // One that is there is made again, with other settings: it stays as it is.
                let (queue, settings) = (self.places[place], Settings { auto_delete, single_active_consumer });
                self.model.create(queue, settings.clone());
                draft.ops.push(Op::Create { queue, settings });
            }
            Ask::Publish { places, length } => {
                let queues: Vec<QueueId> =
                    (0..PLACES).filter(|place| places >> place & 1 == 1).map(|place| self.places[place]).collect();
                let (envelope, properties) = (vec![0; 2 + usize::from(length)], [0; 2]);
                let body = self.next_body.to_be_bytes();
                self.next_body += 1;
                self.model.enqueue(&queues, &Message::from_parts(&envelope, &properties, &body));
                let start = draft.data.len() as u32;
                draft.data.extend([&envelope, properties.as_slice(), &body].concat());
                let len = draft.data.len() as u32 - start;
                let (envelope_bytes, properties_bytes) = (envelope.len() as u16, properties.len() as u32);
                let message = MessageRef { buffer: 0, start, len, envelope_bytes, properties_bytes };
                let targets = match queues.as_slice() {
                    [queue] => Targets::One(*queue),
                    _ => Targets::Many(queues.into()),
                };
                draft.ops.push(Op::Enqueue(Enqueue { targets, message }));
            }
            Ask::Attach { place, connection, spec } => {
                let (queue, consumer) = (self.places[place], ConsumerId { connection, local: self.next_local });
                self.next_local += 1;
                self.known.push((queue, consumer));
                self.model.attach(queue, consumer, spec);
                let token = Some(draft.token(queue));
                draft.ops.push(Op::Attach { queue, consumer, spec, token });
            }
            Ask::Settle { who, outcome, picks } => {
                let Some((queue, consumer)) = self.who(who) else { return };
                let out = self.model.out_with(queue, consumer);
                let pick = |pick: u8| match pick.checked_sub(Ask::STALE) {
                    None if !out.is_empty() => out[usize::from(pick) % out.len()],
                    None => Sequence(u64::from(pick)),
                    Some(number) => Sequence(u64::from(number)),
                };
                let sequences: Vec<Sequence> = picks.into_iter().map(pick).collect();
                self.model.settle(queue, consumer, outcome, &sequences);
                let sequences: Intervals = sequences.into_iter().collect();
                draft.ops.push(Op::Settle { queue, consumer, outcome, sequences });
            }
            Ask::Detach { who, requeue } => {
                let Some((queue, consumer)) = self.who(who) else { return };
                self.model.detach(queue, consumer, requeue);
                let token = Some(draft.token(queue));
                draft.ops.push(Op::Detach { queue, consumer, requeue, token });
            }
            Ask::Resume { who } => {
                let Some((queue, consumer)) = self.who(who) else { return };
                self.model.resume(queue, consumer);
                draft.ops.push(Op::Resume { queue, consumer });
            }
            Ask::Get { place, holder, no_ack } => {
                let (queue, holder) = (self.places[place], ConsumerId { connection: 1, local: holder });
                if !self.known.contains(&(queue, holder)) {
                    self.known.push((queue, holder));
                }
                self.model.get(queue, holder, no_ack);
                let token = draft.token(queue);
                draft.ops.push(Op::Get { queue, holder, no_ack, token });
            }
            Ask::Count { place } => {
                let queue = self.places[place];
                self.model.count(queue);
                let token = draft.token(queue);
                draft.ops.push(Op::Count { queue, token });
            }
            Ask::Purge { place } => {
                let queue = self.places[place];
                self.model.purge(queue);
                let token = Some(draft.token(queue));
                draft.ops.push(Op::Purge { queue, token });
            }
            Ask::Delete { place, if_unused, if_empty } => {
                let queue = self.places[place];
                self.model.delete(queue, if_unused, if_empty);
                let token = Some(draft.token(queue));
                draft.ops.push(Op::Delete { queue, if_unused, if_empty, token });
            }
        }
    }

    fn run(&mut self, connection: u64, draft: Draft) {
        let Draft { ops, data, asked } = draft;
        self.batches += 1;
        let number = self.batches;
        let mut effects = Vec::new();
        let batch = Batch { connection, number, ops, buffers: vec![Bytes::from(data)] };
        self.shard.apply(batch, &mut self.gate, &mut effects);
        assert_eq!(effects.pop(), Some(Effect::BatchDone { connection, number }), "a batch ends with its end");
        self.shard.deliver(&mut self.gate, &mut effects);
        for effect in &effects {
            match effect {
                Effect::Reply { connection: to, .. } => assert_eq!(*to, connection, "who asks is answered"),
                Effect::BatchDone { .. } => panic!("a batch ends once"),
                _ => {}
            }
        }
        self.compare(effects, &asked);
    }

    /// Effects, seen queue by queue: the order among queues is nobody's business.
    fn compare(&mut self, effects: Vec<Effect>, asked: &HashMap<u64, QueueId>) {
        let mut seen: BTreeMap<QueueId, Vec<Seen>> = BTreeMap::new();
        for effect in effects {
            let (queue, what) = match effect {
                Effect::Deliver(d) => {
                    (d.queue, Seen::Deliver(d.consumer, d.sequence, d.redelivered, bytes(&d.message)))
                }
                Effect::Reply { token, reply, .. } => (asked[&token.0], answer(reply)),
                Effect::CancelConsumer { consumer } => {
                    let (queue, _) = self.known.iter().find(|(_, known)| *known == consumer).expect("somebody known");
                    (*queue, Seen::Cancelled(consumer))
                }
                Effect::QueueGone { queue } => (queue, Seen::QueueGone),
                Effect::BatchDone { .. } => unreachable!("looked at by the caller"),
            };
            seen.entry(queue).or_default().push(what);
        }
        for seen in seen.values_mut() {
            // Consumers of a deleted queue are told in any order.
            let cancelled = |what: &Seen| matches!(what, Seen::Cancelled(_));
            for run in seen.chunk_by_mut(|a, b| cancelled(a) && cancelled(b)) {
                run.sort();
            }
        }
        assert_eq!(seen, self.model.finish(), "what the shard did, and should have done");
        let counts = self.model.counts();
        assert_eq!(self.shard.len(), counts.len(), "queues");
        for (id, counts) in counts {
            let machine = self.shard.queue(id).expect("a queue of the model is one of the shard");
            assert_eq!(machine.counts(), counts, "counts of {id:?}");
            assert!(!machine.can_deliver(), "{id:?} has delivered what it could");
        }
    }
}

fn answer(reply: Reply) -> Seen {
    match reply {
        Reply::Counts(counts) => Seen::Counts(counts.ready, counts.unacked, counts.consumers),
        Reply::Purged(messages) => Seen::Purged(messages),
        Reply::Deleted(messages) => Seen::Deleted(messages),
        Reply::Get(got) => {
            Seen::Got(got.map(|got| (got.sequence, got.redelivered, bytes(&got.message), got.remaining)))
        }
        Reply::Attached => Seen::Attached,
        Reply::Detached => Seen::Detached,
        Reply::InUse => Seen::InUse,
        Reply::NotEmpty => Seen::NotEmpty,
        Reply::Gone => Seen::Gone,
    }
}

/// As many cases as the environment asks for, and at least ours. Failing cases are printed whole and become named tests by hand.
fn config() -> Config {
    let config = Config { failure_persistence: None, ..Config::default() };
    Config { cases: config.cases.max(CASES), ..config }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_shard_does_what_the_model_does(steps in prop::collection::vec(step(), 1..40)) {
        let mut pair = Pair::new();
        for step in steps {
            pair.step(step);
        }
    }
}
