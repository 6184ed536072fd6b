//! What settles deliveries and publishes: ack, nack, reject, recover, confirm.select and the `tx` class.

use amqp::methods::AMQPClass;
use amqp::methods::{confirm, tx};
use amqp::{Exception, MethodId, ReplyCode};
use queue::{ConsumerId, Outcome};

use super::channel::{Fault, Pending};
use super::confirms::{Confirm, Confirms, Turn};
use super::session::{Session, close_ok};
use super::transaction::{HeldPublish, Transaction};
use super::unacked::Unacked;

impl Session {
    /// `basic.ack`.
    pub(super) fn ack(&mut self, number: u16, tag: u64, multiple: bool) -> Result<(), Fault> {
        self.settle(number, tag, multiple, Outcome::Ack, MethodId::BASIC_ACK)
    }

    /// `basic.nack` and `basic.reject`.
    pub(super) fn reject(
        &mut self,
        number: u16,
        tag: u64,
        multiple: bool,
        requeue: bool,
        method: MethodId,
    ) -> Result<(), Fault> {
        let outcome = if requeue { Outcome::Requeue } else { Outcome::Discard };
        self.settle(number, tag, multiple, outcome, method)
    }

    fn settle(
        &mut self,
        number: u16,
        tag: u64,
        multiple: bool,
        outcome: Outcome,
        method: MethodId,
    ) -> Result<(), Fault> {
        let channel = self.channels.get_mut(&number).expect("methods are handled on open channels");
        let mut taken = Vec::new();
        if !channel.unacked.take(tag, multiple, &mut taken) {
            let text = format!("unknown delivery tag {tag}");
            return Err(Exception::new(ReplyCode::PreconditionFailed, text, method).into());
        }
        match &mut channel.transaction {
            Some(transaction) => transaction.settled.push((outcome, taken)),
            None => self.stage_settled(number, outcome, &taken),
        }
        Ok(())
    }

    fn stage_settled(&mut self, number: u16, outcome: Outcome, settled: &[Unacked]) {
        let connection = self.handle.id.0;
        for entry in settled {
            let consumer = ConsumerId { connection, local: entry.consumer };
            self.staging.settle(entry.shard, entry.queue, consumer, outcome, entry.sequence);
        }
        let channel = self.channels.get_mut(&number).expect("only open channels settle");
        for entry in settled {
            if !channel.settled_in.contains(&entry.shard) && self.broker.is_durable(entry.shard) {
                channel.settled_in.push(entry.shard);
            }
        }
        if let Some(limiter) = &channel.limiter {
            let from_consumers = settled.iter().filter(|entry| Some(entry.consumer) != channel.holder).count();
            if limiter.give_back(u32::try_from(from_consumers).unwrap_or(u32::MAX)) {
                self.resume_consumers(Some(number));
            }
        }
    }

    /// `basic.recover` and `recover-async`: all that is out with the channel goes back.
    pub(super) fn recover(&mut self, number: u16, requeue: bool, method: MethodId) -> Result<(), Fault> {
        if !requeue {
            return Err(Exception::new(ReplyCode::NotImplemented, "requeue=false", method).into());
        }
        let mut taken = Vec::new();
        self.open(number).unacked.take(0, true, &mut taken);
        self.stage_settled(number, Outcome::Requeue, &taken);
        Ok(())
    }

    /// `confirm.select`.
    pub(super) fn confirm_select(&mut self, number: u16, nowait: bool) -> Result<(), Fault> {
        let channel = self.open(number);
        if channel.transaction.is_some() {
            let text = "cannot switch from tx to confirm mode";
            return Err(Exception::new(ReplyCode::PreconditionFailed, text, MethodId::CONFIRM_SELECT).into());
        }
        channel.confirms.get_or_insert_with(|| Box::new(Confirms::new()));
        if !nowait {
            let ok = confirm::AMQPMethod::SelectOk(confirm::SelectOk {});
            self.send(number, AMQPClass::Confirm(ok));
        }
        Ok(())
    }

    /// All batches of a turn are done: what waited for it is told.
    pub(super) fn turn_done(&mut self, turn: Turn) {
        let mut acks = Vec::new();
        for &(number, epoch) in &turn.waiting {
            let Some(channel) = self.channels.get_mut(&number).filter(|channel| channel.epoch == epoch) else {
                continue;
            };
            if let Some(confirms) = &mut channel.confirms {
                confirms.turn_done(turn.id, turn.refused_of(number), &mut acks);
                for answer in acks.drain(..) {
                    let out = self.outbox.buffer();
                    match answer {
                        Confirm::Ack { tag, multiple } => amqp::encode::ack(out, number, tag, multiple),
                        Confirm::Nack { tag } => amqp::encode::nack(out, number, tag, false, true),
                    }
                }
            }
            if channel.pending.as_ref().and_then(Pending::turn) == Some(turn.id) {
                let pending = channel.pending.take();
                self.unstall(number);
                if matches!(pending, Some(Pending::Close { .. })) {
                    self.forget_channel(number);
                    self.send(number, close_ok());
                } else {
                    self.send(number, AMQPClass::Tx(tx::AMQPMethod::CommitOk(tx::CommitOk {})));
                }
            }
        }
        if self.closing == Some(turn.id) {
            self.closing = None;
            self.send_connection_close_ok();
        }
    }

    /// Adds the channels whose commit or close waits for `turn`.
    pub(super) fn add_waiting(&mut self, turn: u64, waiting: &mut Vec<(u16, u32)>) {
        if !std::mem::take(&mut self.urgent) {
            return;
        }
        for (&number, channel) in &self.channels {
            if channel.pending.as_ref().and_then(Pending::turn) == Some(turn) {
                waiting.push((number, channel.epoch));
            }
        }
    }

    // ---- transactions -----------------------------------------------------------------------------------------------

    /// `tx.select`.
    pub(super) fn tx_select(&mut self, number: u16) -> Result<(), Fault> {
        let channel = self.open(number);
        if channel.confirms.is_some() {
            let text = "cannot switch from confirm to tx mode";
            return Err(Exception::new(ReplyCode::PreconditionFailed, text, MethodId::TX_SELECT).into());
        }
        channel.transaction.get_or_insert_default();
        self.send(number, AMQPClass::Tx(tx::AMQPMethod::SelectOk(tx::SelectOk {})));
        Ok(())
    }

    /// `tx.commit`: publishes and settlements take effect together at the end of this turn; `commit-ok` follows when they did.
    pub(super) fn tx_commit(&mut self, number: u16) -> Result<(), Fault> {
        let Transaction { publishes, settled } = self.take_transaction(number, MethodId::TX_COMMIT)?;
        for publish in publishes {
            let HeldPublish { message, envelope_bytes, properties_bytes, mandatory, route } = publish;
            if !route.shards.is_empty() {
                self.enqueue_own(&route, &message, envelope_bytes, properties_bytes, 0);
            } else if mandatory {
                self.return_message(number, &message, envelope_bytes, properties_bytes);
            }
        }
        for (outcome, entries) in settled {
            self.stage_settled(number, outcome, &entries);
        }
        let turn = self.turns.current();
        self.open(number).pending = Some(Pending::Commit { turn });
        self.urgent = true;
        Ok(())
    }

    /// `tx.rollback`: publishes are dropped; settlements are forgotten, and what they settled is out with the channel again.
    pub(super) fn tx_rollback(&mut self, number: u16) -> Result<(), Fault> {
        let transaction = self.take_transaction(number, MethodId::TX_ROLLBACK)?;
        let forgotten = transaction.settled.into_iter().flat_map(|(_, entries)| entries).collect();
        self.open(number).unacked.restore(forgotten);
        self.send(number, AMQPClass::Tx(tx::AMQPMethod::RollbackOk(tx::RollbackOk {})));
        Ok(())
    }

    fn take_transaction(&mut self, number: u16, method: MethodId) -> Result<Transaction, Fault> {
        match &mut self.open(number).transaction {
            Some(transaction) => Ok(std::mem::take(&mut **transaction)),
            None => {
                let text = "channel is not transactional";
                Err(Exception::new(ReplyCode::PreconditionFailed, text, method).into())
            }
        }
    }
}
