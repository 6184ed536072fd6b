//! A consumer: takes deliveries, checks them against what its queue has delivered before, acknowledges.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use amqp::methods::{AMQPClass, basic};
use amqp::{FieldTable, encode};
use bytes::BytesMut;
use tokio::sync::mpsc;

use crate::content::{Complete, Content};
use crate::drive::{Frames, Next, Phase, Role};
use crate::error::Error;
use crate::link::IntoClass as _;
use crate::message::Clock;
use crate::meters::Sums;
use crate::publisher::PublisherShared;
use crate::tracker::{PerPublisher, Seen, Sequences};
use crate::wire::Incoming;

/// What came out of a queue, whichever consumer got it.
pub(crate) type QueueTrack = Mutex<PerPublisher<Sequences>>;

/// How a consumer acknowledges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acks {
    /// Not at all: the broker forgets what it has sent.
    Auto,
    /// Every n-th delivery, with all before it.
    Every(u32),
    /// All at the end.
    Hold,
}

/// What a consumer is to do.
#[derive(Clone, Debug)]
pub(crate) struct ConsumerPlan {
    pub(crate) run: u16,
    /// Number of the consumer in the run.
    pub(crate) consumer: usize,
    pub(crate) queue: String,
    pub(crate) channel: u16,
    pub(crate) acks: Acks,
    /// Deliveries after which it stops.
    pub(crate) limit: Option<u64>,
    /// Publishers of this run that there may be; numbers beyond are foreign.
    pub(crate) publishers: usize,
}

/// The state of a consumer.
#[derive(Debug)]
pub(crate) struct Consumer {
    plan: ConsumerPlan,
    shared: Arc<PublisherShared>,
    track: Arc<QueueTrack>,
    /// Where it is told that the consumer is attached; taken when it was.
    attached: Option<mpsc::Sender<()>>,
    asked: bool,
    content: Content,
    /// Tag and flag of the message under way.
    delivery: (u64, bool),
    /// Tag of the latest complete delivery.
    latest: u64,
    unacked: u32,
    received: u64,
    /// Per publisher, the successor of the highest number that came.
    highest: PerPublisher<u64>,
}

#[derive(Default)]
struct Turn {
    received: u64,
    bytes: u64,
    distinct: u64,
    redelivered: u64,
    duplicated: u64,
    duplicated_unflagged: u64,
    out_of_order: u64,
    foreign: u64,
}

impl Consumer {
    pub(crate) fn new(
        plan: ConsumerPlan,
        shared: Arc<PublisherShared>,
        track: Arc<QueueTrack>,
        attached: mpsc::Sender<()>,
    ) -> Self {
        Self {
            plan,
            shared,
            track,
            attached: Some(attached),
            asked: false,
            content: Content::default(),
            delivery: (0, false),
            latest: 0,
            unacked: 0,
            received: 0,
            highest: PerPublisher::default(),
        }
    }

    fn is_full(&self) -> bool {
        self.plan.limit.is_some_and(|limit| self.received >= limit)
    }

    fn consume(&self) -> AMQPClass {
        basic::AMQPMethod::Consume(basic::Consume {
            queue: self.plan.queue.as_str().into(),
            consumer_tag: "p".into(),
            no_local: false,
            no_ack: self.plan.acks == Acks::Auto,
            exclusive: false,
            nowait: false,
            arguments: FieldTable::default(),
        })
        .into_class()
    }

    fn acknowledge(&mut self, out: &mut BytesMut) {
        if self.unacked > 0 {
            encode::ack(out, self.plan.channel, self.latest, self.unacked > 1);
            self.unacked = 0;
        }
    }

    /// A whole message came.
    #[inline]
    fn complete(&mut self, message: Complete, track: &mut Check<'_>, turn: &mut Turn, out: &mut BytesMut) {
        // What comes after the limit goes back when the connection is closed.
        if self.is_full() {
            return;
        }
        let (tag, redelivered) = self.delivery;
        self.received += 1;
        turn.received += 1;
        turn.bytes += message.size;
        turn.redelivered += u64::from(redelivered);
        self.check(message, redelivered, track, turn);
        self.latest = tag;
        match self.plan.acks {
            Acks::Auto => {}
            Acks::Hold => self.unacked += 1,
            Acks::Every(every) => {
                self.unacked += 1;
                if self.unacked >= every {
                    self.acknowledge(out);
                }
            }
        }
    }

    #[inline]
    fn check(&mut self, message: Complete, redelivered: bool, check: &mut Check<'_>, turn: &mut Turn) {
        let Some(stamp) = message.stamp.filter(|stamp| stamp.run == self.plan.run) else {
            turn.foreign += 1;
            return;
        };
        if usize::from(stamp.publisher) >= self.plan.publishers {
            turn.foreign += 1;
            return;
        }
        match check.track.of(stamp.publisher).see(stamp.sequence) {
            Seen::New => {
                turn.distinct += 1;
                let highest = self.highest.of(stamp.publisher);
                if stamp.sequence < *highest {
                    turn.out_of_order += u64::from(!redelivered);
                } else {
                    *highest = stamp.sequence + 1;
                }
            }
            Seen::Again => {
                turn.duplicated += 1;
                turn.duplicated_unflagged += u64::from(!redelivered);
            }
            Seen::TooFar => turn.foreign += 1,
        }
        check.latencies.saturating_record(Clock::between_us(stamp.sent_us, check.now_us).max(1));
    }

    fn method(&mut self, method: &AMQPClass) -> Result<(), Error> {
        match method {
            AMQPClass::Basic(basic::AMQPMethod::ConsumeOk(_)) => {
                if let Some(attached) = self.attached.take() {
                    // There is room for all consumers; if nobody listens, the run is over.
                    let _ = attached.try_send(());
                }
                Ok(())
            }
            AMQPClass::Basic(basic::AMQPMethod::Cancel(_)) => Err(Error::Cancelled),
            _ => Ok(()),
        }
    }

    fn add(&self, turn: &Turn, now: Instant) {
        let sums = &self.shared.sums;
        Sums::add(&sums.received, turn.received);
        Sums::add(&sums.received_bytes, turn.bytes);
        Sums::add(&sums.distinct, turn.distinct);
        Sums::add(&sums.redelivered, turn.redelivered);
        Sums::add(&sums.duplicated, turn.duplicated);
        Sums::add(&sums.duplicated_unflagged, turn.duplicated_unflagged);
        Sums::add(&sums.out_of_order, turn.out_of_order);
        Sums::add(&sums.foreign, turn.foreign);
        if turn.received > 0 {
            sums.received_at(now.duration_since(self.shared.clock.started()).as_micros() as u64);
        }
    }
}

/// What is locked for a turn.
struct Check<'a> {
    track: std::sync::MutexGuard<'a, PerPublisher<Sequences>>,
    latencies: std::sync::MutexGuard<'a, hdrhistogram::Histogram<u64>>,
    now_us: u64,
}

impl Role for Consumer {
    fn turn(&mut self, frames: &mut Frames<'_>, out: &mut BytesMut) -> Result<(), Error> {
        let (shared, track) = (Arc::clone(&self.shared), Arc::clone(&self.track));
        let now = Instant::now();
        let mut check = Check {
            track: track.lock().unwrap_or_else(PoisonError::into_inner),
            latencies: shared.latencies.part(self.plan.consumer),
            now_us: shared.clock.at(now),
        };
        let mut turn = Turn::default();
        let result = loop {
            let complete = match frames.next() {
                Ok(None) => break Ok(()),
                Ok(Some((_, incoming))) => match incoming {
                    Incoming::Deliver { delivery_tag, redelivered } => {
                        self.delivery = (delivery_tag, redelivered);
                        self.content.begin().map(|()| None)
                    }
                    Incoming::Header(payload) => self.content.header(payload),
                    Incoming::Body(piece) => self.content.body(piece),
                    Incoming::Other(method) => self.method(&method).map(|()| None),
                    Incoming::Heartbeat => Ok(None),
                    Incoming::Ack { .. } | Incoming::Nack { .. } | Incoming::Return => {
                        Err(Error::Protocol("a confirm or a return to a consumer".to_owned()))
                    }
                },
                Err(error) => Err(error),
            };
            match complete {
                Ok(None) => {}
                Ok(Some(message)) => self.complete(message, &mut check, &mut turn, out),
                Err(error) => break Err(error),
            }
        };
        drop(check);
        self.add(&turn, now);
        result
    }

    fn produce(&mut self, phase: Phase, _now: Instant, out: &mut BytesMut) -> Next {
        if !self.asked {
            self.asked = true;
            encode::method(out, self.plan.channel, &self.consume());
        }
        if phase == Phase::Stop || self.is_full() {
            self.acknowledge(out);
            return Next::Done;
        }
        Next::Wait
    }
}
