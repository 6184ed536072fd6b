//! What a queue costs between a batch of publishes and the batch of acknowledgements, without connections: enqueue, deliver, settle,
//! remove.

use bytes::Bytes;
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use queue::{
    Admission, Batch, ConsumerId, ConsumerSpec, Effect, Enqueue, Intervals, MessageRef, Op, Outcome, QueueId, Sequence,
    Settings, Shard, Targets,
};

/// Messages that a connection hands over at once. One read brings some hundred small ones and some dozen of 1 KiB.
const BATCH: usize = 64;
const BODY_BYTES: usize = 16;
/// Envelope (default exchange, `queue`) and empty properties.
const HEAD: &[u8] = b"\0\x05queue\0\0";
const QUEUE: QueueId = QueueId(1);
const CONSUMER: ConsumerId = ConsumerId { connection: 2, local: 1 };
/// Messages that lie in a deep queue.
const BACKLOG: usize = 1_000_000;

struct Everything;

impl Admission for Everything {
    fn admit(&mut self, _consumer: ConsumerId, _bytes: usize) -> bool {
        true
    }
}

/// A shard and the tasks that would be around it.
struct Bench {
    shard: Shard,
    effects: Vec<Effect>,
    number: u64,
    data: Bytes,
}

impl Bench {
    fn new() -> Self {
        let data = [HEAD, &[b'x'; BODY_BYTES]].concat().repeat(BATCH).into();
        let mut bench = Self { shard: Shard::new(), effects: Vec::new(), number: 0, data };
        bench.apply(vec![Op::Create { queue: QUEUE, settings: Settings::default() }], Vec::new());
        bench
    }

    fn attach(&mut self, spec: ConsumerSpec) {
        self.apply(vec![Op::Attach { queue: QUEUE, consumer: CONSUMER, spec, token: None }], Vec::new());
    }

    fn apply(&mut self, ops: Vec<Op>, buffers: Vec<Bytes>) {
        self.number += 1;
        let batch = Batch { connection: 1, number: self.number, urgent: false, ops, buffers };
        self.shard.apply(batch, &mut Everything, &mut self.effects);
        self.shard.deliver(&mut Everything, &mut self.effects);
    }

    fn publish(&mut self) {
        let len = (HEAD.len() + BODY_BYTES) as u32;
        let (envelope_bytes, properties_bytes) = (HEAD.len() as u16 - 2, 2);
        let op = |n| {
            let message = MessageRef { buffer: 0, start: n * len, len, envelope_bytes, properties_bytes };
            Op::Enqueue(Enqueue::plain(Targets::One(QUEUE), message))
        };
        let ops = (0..BATCH as u32).map(op).collect();
        let buffers = vec![self.data.clone()];
        self.apply(ops, buffers);
    }

    /// Takes the deliveries off, and answers what they were.
    fn take_deliveries(&mut self) -> Intervals {
        let delivered = self.effects.drain(..).filter_map(|effect| match effect {
            Effect::Deliver(delivery) => Some(delivery.sequence),
            _ => None,
        });
        let sequences: Intervals = delivered.collect();
        assert_eq!(sequences.count(), BATCH as u64);
        sequences
    }

    fn settle(&mut self, sequences: Intervals) {
        let op = Op::Settle { queue: QUEUE, consumer: CONSUMER, outcome: Outcome::Ack, sequences };
        self.apply(vec![op], Vec::new());
    }
}

fn machine(c: &mut Criterion) {
    let mut group = c.benchmark_group("machine");
    group.throughput(Throughput::Elements(BATCH as u64));
    group.bench_function("publish, deliver (auto-ack)", |b| {
        let mut bench = Bench::new();
        bench.attach(ConsumerSpec { no_ack: true, ..ConsumerSpec::default() });
        b.iter(|| {
            bench.publish();
            bench.take_deliveries();
        });
    });
    group.bench_function("publish, deliver, ack all at once", |b| {
        let mut bench = Bench::new();
        bench.attach(ConsumerSpec::default());
        b.iter(|| {
            bench.publish();
            let sequences = bench.take_deliveries();
            bench.settle(sequences);
        });
    });
    group.bench_function("publish, deliver, ack one by one in reverse", |b| {
        let mut bench = Bench::new();
        bench.attach(ConsumerSpec { prefetch: BATCH as u32, ..ConsumerSpec::default() });
        b.iter(|| {
            bench.publish();
            let sequences: Vec<Sequence> = bench.take_deliveries().iter().collect();
            let ops = sequences.into_iter().rev().map(|sequence| Op::Settle {
                queue: QUEUE,
                consumer: CONSUMER,
                outcome: Outcome::Ack,
                sequences: Intervals::one(sequence),
            });
            bench.apply(ops.collect(), Vec::new());
            bench.effects.clear();
        });
    });
    group.bench_function("publish, deliver, requeue, deliver, ack", |b| {
        let mut bench = Bench::new();
        bench.attach(ConsumerSpec::default());
        b.iter(|| {
            bench.publish();
            let sequences = bench.take_deliveries();
            let requeue = Op::Settle { queue: QUEUE, consumer: CONSUMER, outcome: Outcome::Requeue, sequences };
            bench.apply(vec![requeue], Vec::new());
            let sequences = bench.take_deliveries();
            bench.settle(sequences);
        });
    });
    group.finish();
}

/// A queue that fills while nobody consumes, and one that is emptied.
fn backlog(c: &mut Criterion) {
    let mut group = c.benchmark_group("backlog of a million");
    group.throughput(Throughput::Elements(BACKLOG as u64));
    group.sample_size(10);
    let filled = || {
        let mut bench = Bench::new();
        for _ in 0..BACKLOG / BATCH {
            bench.publish();
            bench.effects.clear();
        }
        bench
    };
    group.bench_function("fill", |b| b.iter_with_large_drop(filled));
    group.bench_function("drain", |b| {
        let spec = ConsumerSpec { no_ack: true, ..ConsumerSpec::default() };
        b.iter_batched(filled, |mut bench| (bench.attach(spec), bench), BatchSize::PerIteration);
    });
    group.finish();
}

criterion_group!(queue_machine, machine, backlog);
criterion_main!(queue_machine);
