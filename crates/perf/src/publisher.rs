//! A publisher: sends stamped messages as fast as rate and window allow, and follows confirms and returns.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use bytes::BytesMut;

use crate::content::Content;
use crate::drive::{Frames, Next, OUTPUT_BYTES, Phase, Role};
use crate::error::Error;
use crate::message::{Clock, Stamp, Template};
use crate::meters::{Sums, Times};
use crate::wire::Incoming;

/// At a fixed rate, what was not sent in time is made up for; but no more than this at once, so that a broker that
/// stood still is not hit by seconds of arrears.
const MOST_ARREARS: Duration = Duration::from_millis(500);
/// Publishes that are remembered behind one that is never confirmed, as a multiple of the window.
const MOST_SETTLED: usize = 64;
/// Parts in which the time of a run with a fixed number of messages is told.
pub(crate) const TENTHS: usize = 10;

/// What publishers of a run share.
#[derive(Debug)]
pub(crate) struct PublisherShared {
    pub(crate) clock: Clock,
    pub(crate) sums: Sums,
    pub(crate) confirm_times: Times,
    pub(crate) latencies: Times,
}

/// What a publisher is to do.
#[derive(Clone, Debug)]
pub(crate) struct PublisherPlan {
    pub(crate) run: u16,
    pub(crate) publisher: u16,
    /// Messages to send; `None` until the phase ends.
    pub(crate) limit: Option<u64>,
    /// Most open publishes; `None` without confirms.
    pub(crate) window: Option<usize>,
    /// Messages per second.
    pub(crate) rate: Option<f64>,
}

/// A publish that is not confirmed.
#[derive(Debug)]
struct Open {
    sent_us: u64,
    /// Confirmed or refused, while an older one is open.
    settled: bool,
}

/// The state of a publisher.
#[derive(Debug)]
pub(crate) struct Publisher {
    plan: PublisherPlan,
    shared: Arc<PublisherShared>,
    template: Template,
    sent: u64,
    /// From the oldest that is open; the last one is `sent`.
    open: VecDeque<Open>,
    /// Those in `open` that are not settled.
    open_count: usize,
    /// Numbers that need not be delivered: refused or returned.
    excused: Vec<Range<u64>>,
    content: Content,
    blocked: bool,
    /// Start of the schedule, for a fixed rate.
    schedule: Option<(Instant, u64)>,
    started: Option<Instant>,
    /// When each tenth of the messages was sent, since the start.
    tenths: Vec<Duration>,
}

/// What became of a publisher's messages.
#[derive(Clone, Debug, Default)]
pub(crate) struct Published {
    /// Numbers below this were sent.
    pub(crate) sent: u64,
    /// Numbers that need not have been delivered: refused, returned, or not confirmed when the connection ended. Do not overlap.
    pub(crate) excused: Vec<Range<u64>>,
    /// How many were still not confirmed at the end.
    pub(crate) unconfirmed: u64,
    /// When each tenth was sent, since the start. Empty without a limit.
    pub(crate) tenths: Vec<Duration>,
}

impl Publisher {
    pub(crate) fn new(plan: PublisherPlan, shared: Arc<PublisherShared>, template: Template) -> Self {
        Self {
            plan,
            shared,
            template,
            sent: 0,
            open: VecDeque::new(),
            open_count: 0,
            excused: Vec::new(),
            content: Content::default(),
            blocked: false,
            schedule: None,
            started: None,
            tenths: Vec::new(),
        }
    }

    /// What became of the messages, at the end.
    pub(crate) fn outcome(mut self) -> Published {
        let first = self.sent - self.open.len() as u64;
        let mut unconfirmed = 0;
        for (number, open) in (first..).zip(&self.open) {
            if !open.settled {
                unconfirmed += 1;
                extend(&mut self.excused, number);
            }
        }
        self.excused.sort_unstable_by_key(|range| range.start);
        merge(&mut self.excused);
        Published { sent: self.sent, excused: self.excused, unconfirmed, tenths: self.tenths }
    }

    /// How many messages may be sent now, and when there may be more.
    fn allowance(&mut self, now: Instant) -> (u64, Next) {
        let mut allowed = self.plan.limit.map_or(u64::MAX, |limit| limit - self.sent);
        let mut next = Next::More;
        if let Some(window) = self.plan.window {
            let room = (window - self.open_count).min((window * MOST_SETTLED).saturating_sub(self.open.len())) as u64;
            if room < allowed {
                (allowed, next) = (room, Next::Wait);
            }
        }
        if let Some(rate) = self.plan.rate {
            let (start, before) = *self.schedule.get_or_insert((now, self.sent));
            let due = (now.saturating_duration_since(start).as_secs_f64() * rate) as u64 + 1;
            let mut due_now = (before + due).saturating_sub(self.sent);
            let most = (rate * MOST_ARREARS.as_secs_f64()).max(1.0) as u64;
            if due_now > most {
                // Forget the arrears: the schedule starts anew.
                self.schedule = Some((now, self.sent));
                due_now = 1;
            }
            if due_now <= allowed {
                let (start, before) = self.schedule.unwrap_or((now, self.sent));
                let at = start + Duration::from_secs_f64((self.sent + due_now - before) as f64 / rate);
                (allowed, next) = (due_now, Next::At(at));
            }
        }
        (allowed, next)
    }

    /// A confirm (`refused`: a nack) of the publish with this tag, or of all up to it.
    fn confirm(
        &mut self,
        tag: u64,
        multiple: bool,
        refused: bool,
        now_us: u64,
        turn: &mut Turn<'_>,
    ) -> Result<(), Error> {
        // Tags count from 1: the oldest open one is `sent - open + 1`.
        let first = self.sent - self.open.len() as u64 + 1;
        let last = if tag == 0 && multiple { self.sent } else { tag };
        if last < first || last > self.sent {
            return Err(Error::Protocol(format!("a confirm of {tag}, but {first} to {} are open", self.sent)));
        }
        let index = (last - first) as usize;
        let from = if multiple { 0 } else { index };
        if !multiple && self.open[index].settled {
            return Err(Error::Protocol(format!("a second confirm of {tag}")));
        }
        for (offset, open) in self.open.range_mut(from..=index).enumerate() {
            if std::mem::replace(&mut open.settled, true) {
                continue;
            }
            self.open_count -= 1;
            if refused {
                turn.nacked += 1;
                extend(&mut self.excused, first - 1 + (from + offset) as u64);
            } else {
                turn.confirmed += 1;
                turn.times.saturating_record(Clock::between_us(open.sent_us, now_us).max(1));
            }
        }
        while self.open.front().is_some_and(|open| open.settled) {
            self.open.pop_front();
        }
        Ok(())
    }

    fn returned(&mut self, stamp: Option<Stamp>) {
        if let Some(stamp) = stamp
            && stamp.run == self.plan.run
            && stamp.publisher == self.plan.publisher
            && stamp.sequence < self.sent
        {
            extend(&mut self.excused, stamp.sequence);
        }
    }

    fn note_tenths(&mut self, now: Instant) {
        let (Some(limit), Some(started)) = (self.plan.limit, self.started) else { return };
        while self.tenths.len() < TENTHS && self.sent * TENTHS as u64 >= limit * (self.tenths.len() as u64 + 1) {
            self.tenths.push(now - started);
        }
    }
}

struct Turn<'a> {
    confirmed: u64,
    nacked: u64,
    times: std::sync::MutexGuard<'a, hdrhistogram::Histogram<u64>>,
}

impl Role for Publisher {
    fn turn(&mut self, frames: &mut Frames<'_>, _out: &mut BytesMut) -> Result<(), Error> {
        let shared = Arc::clone(&self.shared);
        let now_us = shared.clock.at(Instant::now());
        let times = shared.confirm_times.part(self.plan.publisher.into());
        let mut turn = Turn { confirmed: 0, nacked: 0, times };
        let mut returned = 0;
        let result = loop {
            match frames.next() {
                Ok(None) => break Ok(()),
                Ok(Some((_, incoming))) => {
                    let result = match incoming {
                        Incoming::Ack { delivery_tag, multiple } => {
                            self.confirm(delivery_tag, multiple, false, now_us, &mut turn)
                        }
                        Incoming::Nack { delivery_tag, multiple } => {
                            self.confirm(delivery_tag, multiple, true, now_us, &mut turn)
                        }
                        Incoming::Return => self.content.begin(),
                        Incoming::Header(payload) => self.content.header(payload).map(|complete| {
                            returned += u64::from(complete.is_some());
                        }),
                        Incoming::Body(piece) => self.content.body(piece).map(|complete| {
                            if let Some(complete) = complete {
                                returned += 1;
                                self.returned(complete.stamp);
                            }
                        }),
                        Incoming::Heartbeat | Incoming::Other(_) => Ok(()),
                        Incoming::Deliver { .. } => Err(Error::Protocol("a delivery to a publisher".to_owned())),
                    };
                    if result.is_err() {
                        break result;
                    }
                }
                Err(error) => break Err(error),
            }
        };
        Sums::add(&shared.sums.confirmed, turn.confirmed);
        Sums::add(&shared.sums.nacked, turn.nacked);
        Sums::add(&shared.sums.returned, returned);
        if frames.is_blocked() && !self.blocked {
            Sums::add(&shared.sums.blocked, 1);
        }
        self.blocked = frames.is_blocked();
        result
    }

    fn produce(&mut self, phase: Phase, now: Instant, out: &mut BytesMut) -> Next {
        match phase {
            Phase::Attach => return Next::Wait,
            Phase::Stop => return Next::Done,
            Phase::Finish | Phase::Publish => {}
        }
        let finished = phase == Phase::Finish || self.plan.limit == Some(self.sent);
        if finished {
            return if self.open_count == 0 { Next::Done } else { Next::Wait };
        }
        if self.blocked {
            return Next::Wait;
        }
        self.started.get_or_insert(now);
        let (allowed, next) = self.allowance(now);
        let sent_us = self.shared.clock.at(now);
        let (mut sent, mut bytes) = (0, 0);
        while sent < allowed && out.len() < OUTPUT_BYTES {
            let stamp = Stamp { run: self.plan.run, publisher: self.plan.publisher, sequence: self.sent, sent_us };
            bytes += self.template.write(out, stamp) as u64;
            self.sent += 1;
            sent += 1;
            if self.plan.window.is_some() {
                self.open.push_back(Open { sent_us, settled: false });
                self.open_count += 1;
            }
        }
        if sent > 0 {
            let sums = &self.shared.sums;
            Sums::add(&sums.published, sent);
            Sums::add(&sums.published_bytes, bytes);
            sums.last_published_us
                .fetch_max(now.duration_since(self.shared.clock.started()).as_micros() as u64, Relaxed);
            self.note_tenths(now);
        }
        if self.plan.limit == Some(self.sent) {
            return if self.open_count == 0 { Next::Done } else { Next::Wait };
        }
        if sent < allowed { Next::More } else { next }
    }
}

/// Appends a number, to the last range if it is its successor.
fn extend(ranges: &mut Vec<Range<u64>>, number: u64) {
    match ranges.last_mut() {
        Some(last) if last.end == number => last.end += 1,
        _ => ranges.push(number..number + 1),
    }
}

/// Makes sorted ranges free of overlaps: a message can be returned and refused.
fn merge(ranges: &mut Vec<Range<u64>>) {
    ranges.dedup_by(|next, before| {
        let overlaps = next.start <= before.end;
        if overlaps {
            before.end = before.end.max(next.end);
        }
        overlaps
    });
}
