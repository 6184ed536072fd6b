//! Changes of the topology: at once what lives in memory, through the log what is durable.

use std::sync::Arc;

use amqp::methods::AMQPClass;
use amqp::{Exception, MethodId, ReplyCode};
use queue::Token;

use super::channel::{Fault, Pending};
use super::session::Session;
use crate::metadata::{Applied, Asker, Change, Claim, Earlier, Input, Op};
use crate::topology::Topology;

/// Arguments larger than this are refused for durable things. A method fits a frame, which is 128 KiB by default; where frames are
/// not limited, an entry of the log still is.
const MAX_ARGUMENT_BYTES: usize = 1 << 20;

/// What a method asks of the topology as it is.
pub(super) enum Step {
    /// Nothing: all is as wanted.
    Nothing,
    /// A change of what lives in memory.
    InMemory,
    /// A change of something durable.
    Durable(Op),
}

/// A method that changes the topology.
pub(super) struct Request {
    /// The method, to be handled again if something is in the way.
    pub(super) method: AMQPClass,
    /// Its answer; `None` if the client wants none.
    pub(super) ok: Option<AMQPClass>,
    /// What forbids the change in memory while it is claimed.
    pub(super) forbidden_by: Option<Claim>,
}

/// How far a change got.
enum Outcome {
    Done,
    ToLog(Op),
    InTheWay,
}

impl Session {
    /// Makes a change. `look` says what there is to do, or refuses; `change` does it to what lives in memory.
    pub(super) fn change_topology(
        &mut self,
        number: u16,
        request: Request,
        look: impl Fn(&Topology) -> Result<Step, Exception>,
        change: impl FnOnce(&mut Topology) -> Result<(), Exception>,
    ) -> Result<(), Fault> {
        let Request { method, ok, forbidden_by } = request;
        let vhost = Arc::clone(self.vhost());
        let claim = |op: Op| {
            check_size(&op)?;
            vhost.claims().make(&op);
            Ok::<_, Exception>(Outcome::ToLog(op))
        };
        let looked = {
            let topology = vhost.read();
            match look(&topology)? {
                Step::Nothing => Some(Outcome::Done),
                Step::Durable(op) => Some(claim(op)?),
                Step::InMemory => None,
            }
        };
        let outcome = match looked {
            Some(outcome) => outcome,
            // Others may have been quicker since: under the lock it is looked at again.
            None => vhost.change(|topology| match look(topology)? {
                Step::Nothing => Ok(Outcome::Done),
                Step::Durable(op) => claim(op),
                Step::InMemory if forbidden_by.is_some_and(|claim| vhost.claims().forbid(&claim)) => {
                    Ok(Outcome::InTheWay)
                }
                Step::InMemory => change(topology).map(|()| Outcome::Done),
            })?,
        };
        match outcome {
            // The change may have used up a durable exchange: who looks after the answer does not find it any more.
            Outcome::Done if vhost.claims().any_unused() => {
                self.wait_for_metadata(number, Earlier::Removals, Pending::Change { ok: ok.map(Box::new) });
            }
            Outcome::Done => self.send_ok(number, ok),
            Outcome::ToLog(op) => self.log_change(number, op, Pending::Change { ok: ok.map(Box::new) }),
            Outcome::InTheWay => self.wait_for_metadata(number, Earlier::All, Pending::Retry(Box::new(method))),
        }
        Ok(())
    }

    /// Sends a claimed change to the log. The channel waits until it has taken effect.
    pub(super) fn log_change(&mut self, number: u16, op: Op, pending: Pending) {
        let change = Change { vhost: self.vhost().name().into(), op };
        let asker = self.asker(number, pending);
        self.broker.metadata().send(Input::Change { change, asker: Some(asker) });
    }

    /// The channel waits until changes that were asked for before, by whomever, have taken effect.
    pub(super) fn wait_for_metadata(&mut self, number: u16, after: Earlier, pending: Pending) {
        let asker = self.asker(number, pending);
        self.broker.metadata().send(Input::Barrier { after, asker });
    }

    fn asker(&mut self, number: u16, pending: Pending) -> Asker {
        let token = self.pend(number, pending);
        Asker { handle: Arc::clone(&self.handle), token }
    }

    /// What became of a change. An answer to a channel that was closed meanwhile is passed over.
    pub(super) fn metadata(&mut self, token: Token, result: Result<Applied, Exception>) {
        let Some((number, pending)) = self.take_pending(token) else { return };
        let answered = match result {
            Ok(applied) => self.changed(number, pending, applied),
            Err(exception) => Err(exception.into()),
        };
        if let Err(fault) = answered {
            self.fault(number, fault);
        }
        if !self.waits_for_change() {
            for local in std::mem::take(&mut self.held_cancels) {
                self.consumer_cancelled(local);
            }
        }
    }

    /// Whether a channel waits for a change of something durable, the deletion of a queue among them.
    pub(super) fn waits_for_change(&self) -> bool {
        self.channels.values().any(|channel| matches!(channel.pending, Some(Pending::Change { .. })))
    }

    fn changed(&mut self, number: u16, pending: Pending, applied: Applied) -> Result<(), Fault> {
        match pending {
            Pending::Change { ok } => self.send_ok(number, ok.map(|ok| *ok)),
            Pending::DeclareDurable { name, declare } => match applied {
                Applied::Changed if declare.nowait => {}
                Applied::Changed => self.declare_ok(number, &name, 0, 0),
                // Somebody else was quicker: the queue may have messages by now.
                Applied::Unchanged => self.queue_declare(number, *declare)?,
            },
            Pending::Retry(method) => self.cold_method(number, MethodId::NONE, *method, &[])?,
            pending => {
                tracing::error!(?pending, "an answer of the metadata does not fit the question");
                return Err(Exception::new(ReplyCode::InternalError, "", MethodId::NONE).into());
            }
        }
        Ok(())
    }

    fn send_ok(&mut self, number: u16, ok: Option<AMQPClass>) {
        if let Some(ok) = ok {
            self.send(number, ok);
        }
    }
}

/// Refuses arguments that would make an entry too large.
///
/// # Errors
/// 406.
pub(super) fn check_size(op: &Op) -> Result<(), Exception> {
    let Some(arguments) = op.arguments().filter(|arguments| !arguments.inner().is_empty()) else { return Ok(()) };
    let mut encoded = bytes::BytesMut::new();
    amqp::table::encode_table(arguments, &mut encoded);
    if encoded.len() <= MAX_ARGUMENT_BYTES {
        return Ok(());
    }
    let bytes = encoded.len();
    let text = format!("arguments of {bytes} bytes are larger than the {MAX_ARGUMENT_BYTES} that are kept");
    Err(Exception::new(ReplyCode::PreconditionFailed, text, op.method()))
}
