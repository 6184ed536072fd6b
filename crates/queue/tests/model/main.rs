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
    Batch, ConsumerId, ConsumerSpec, Effect, Enqueue, Intervals, Message, MessageRef, Op, Outcome, Overflow, QueueId,
    Reply, Rules, Sequence, Settings, Shard, Stamp, Targets, Token,
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
        settings: Settings,
    },
    /// To the places whose bits are set.
    Publish {
        places: u8,
        length: u8,
        ttl_ms: u32,
        priority: u8,
    },
    /// A letter has arrived.
    Posted {
        pick: usize,
    },
    Declared {
        place: usize,
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
    /// Time goes by.
    Wait {
        ms: u64,
    },
}

fn rules() -> impl Strategy<Value = Rules> {
    let bound = |values: &[u64]| prop::option::weighted(0.3, prop::sample::select(values.to_vec()));
    let overflow = prop::sample::select(vec![Overflow::DropHead, Overflow::RejectPublish, Overflow::RejectPublishDlx]);
    let limits = (bound(&[0, 5, 20]), bound(&[4, 30]), bound(&[0, 1, 3]), bound(&[0, 4, 11]), bound(&[0, 1, 2]));
    (limits, any::<(bool, bool)>(), overflow, prop::option::weighted(0.3, 0u8..4)).prop_map(
        |((ttl, expires_ms, max_length, max_length_bytes, limit), (dead_letters, declared), overflow, max_priority)| {
            Rules {
                message_ttl_ms: ttl.map(|ms| ms as u32),
                expires_ms,
                expires_though_declared: declared,
                max_length,
                max_length_bytes,
                overflow,
                dead_letters,
                delivery_limit: limit.map(|limit| limit as u32),
                max_priority,
            }
        },
    )
}

fn settings() -> impl Strategy<Value = Settings> {
    (prop::bool::weighted(0.3), prop::bool::weighted(0.3), prop::option::weighted(0.7, rules())).prop_map(
        |(auto_delete, single_active_consumer, rules)| Settings {
            auto_delete,
            single_active_consumer,
            durable: false,
            rules: rules.map(Box::new),
        },
    )
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
        8 => (1u8..1 << PLACES, 0u8..5, prop::sample::select(vec![Stamp::NO_TTL, Stamp::NO_TTL, 0, 3, 10]), 0u8..6)
            .prop_map(|(places, length, ttl_ms, priority)| Ask::Publish { places, length, ttl_ms, priority }),
        3 => any::<usize>().prop_map(|pick| Ask::Posted { pick }),
        1 => any_place.clone().prop_map(|place| Ask::Declared { place }),
        5 => (who, outcome, prop::collection::vec(any::<u8>(), 1..5))
            .prop_map(|(who, outcome, picks)| Ask::Settle { who, outcome, picks }),
        3 => (any_place.clone(), 1..=2u64, spec)
            .prop_map(|(place, connection, spec)| Ask::Attach { place, connection, spec }),
        2 => (who, any::<bool>()).prop_map(|(who, requeue)| Ask::Detach { who, requeue }),
        2 => who.prop_map(|who| Ask::Resume { who }),
        2 => (any_place.clone(), 0..HOLDERS, any::<bool>())
            .prop_map(|(place, holder, no_ack)| Ask::Get { place, holder, no_ack }),
        2 => (place, settings()).prop_map(|(place, settings)| Ask::Create { place, settings }),
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
        5 => (1..=8u64).prop_map(|ms| Step::Wait { ms }),
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
    /// Publishes that a queue refused, by the model.
    refused: Vec<u64>,
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
            pair.ask(Ask::Create { place, settings: Settings::default() }, &mut draft);
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
            Step::Wait { ms } => {
                self.model.now += ms;
                self.shard.set_now(self.model.now);
                let mut effects = Vec::new();
                self.shard.deliver(&mut self.gate, &mut effects);
                self.compare(effects, &HashMap::new());
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
            Ask::Create { place, settings } => {
                if !self.model.counts().iter().any(|(id, _)| *id == self.places[place]) {
                    self.places[place] = QueueId(self.next_queue);
                    self.next_queue += 1;
                }
                // One that is there is made again, with other settings: it stays as it is.
                let queue = self.places[place];
                self.model.create(queue, settings.clone());
                draft.ops.push(Op::Create { queue, settings });
            }
            Ask::Posted { pick } => {
                let letters = self.model.letters();
                if letters.is_empty() {
                    return;
                }
                let (queue, sequence) = letters[pick % letters.len()];
                self.model.posted(queue, sequence);
                draft.ops.push(Op::Posted { queue, sequences: Intervals::one(sequence) });
            }
            Ask::Declared { place } => {
                let queue = self.places[place];
                self.model.declared(queue);
                let token = draft.token(queue);
                draft.ops.push(Op::Declared { queue, token });
            }
            Ask::Publish { places, length, ttl_ms, priority } => {
                let queues: Vec<QueueId> =
                    (0..PLACES).filter(|place| places >> place & 1 == 1).map(|place| self.places[place]).collect();
                let (envelope, properties) = (vec![0; 2 + usize::from(length)], [0; 2]);
                let body = self.next_body.to_be_bytes();
                self.next_body += 1;
                let publish = u64::from(self.next_body);
                let stamp = Stamp { enqueued_at_ms: self.model.now, ttl_ms, priority };
                if self.model.enqueue(&queues, &Message::from_parts(&envelope, &properties, &body), stamp) {
                    draft.refused.push(publish);
                }
                let start = draft.data.len() as u32;
                draft.data.extend([&envelope, properties.as_slice(), &body].concat());
                let len = draft.data.len() as u32 - start;
                let (envelope_bytes, properties_bytes) = (envelope.len() as u16, properties.len() as u32);
                let message = MessageRef { buffer: 0, start, len, envelope_bytes, properties_bytes };
                let targets = match queues.as_slice() {
                    [queue] => Targets::One(*queue),
                    _ => Targets::Many(queues.into()),
                };
                draft.ops.push(Op::Enqueue(Enqueue { targets, message, ttl_ms, priority, publish }));
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
        let Draft { ops, data, asked, refused } = draft;
        self.batches += 1;
        let number = self.batches;
        let mut effects = Vec::new();
        let batch = Batch { connection, number, urgent: false, ops, buffers: vec![Bytes::from(data)] };
        self.shard.apply(batch, &mut self.gate, &mut effects);
        assert_eq!(effects.pop(), Some(Effect::BatchDone { connection, number }), "a batch ends with its end");
        self.shard.deliver(&mut self.gate, &mut effects);
        let mut seen_refused = Vec::new();
        effects.retain(|effect| match effect {
            Effect::Rejected { connection: of, number: batch, publish } => {
                assert_eq!((*of, *batch), (connection, number));
                seen_refused.push(*publish);
                false
            }
            _ => true,
        });
        assert_eq!(seen_refused, refused, "publishes that were refused");
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
                    (d.queue, Seen::Deliver(d.consumer, d.sequence, d.redelivered, d.failures, bytes(&d.message)))
                }
                Effect::DeadLetter(l) => (l.queue, Seen::Letter(l.sequence, l.reason, bytes(&l.message))),
                Effect::Reply { token, reply, .. } => (asked[&token.0], answer(reply)),
                Effect::CancelConsumer { consumer } => {
                    let (queue, _) = self.known.iter().find(|(_, known)| *known == consumer).expect("somebody known");
                    (*queue, Seen::Cancelled(consumer))
                }
                Effect::QueueGone { queue } => (queue, Seen::QueueGone),
                Effect::BatchDone { .. } | Effect::Rejected { .. } => unreachable!("looked at by the caller"),
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
        assert_eq!(self.shard.next_timer(), self.model.timer(), "when something is due");
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
            Seen::Got(got.map(|got| (got.sequence, got.redelivered, got.failures, bytes(&got.message), got.remaining)))
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
