//! The loop under load: reads and writes as much as there is, hands frames to a [`Role`] in one piece per read, and asks
//! it for more to send while there is room. Nothing is allocated per message, and no task waits while it could do something.

use std::time::Instant;

use amqp::methods::AMQPClass;
use amqp::methods::connection;
use amqp::{FrameDecoder, encode};
use bytes::{Buf as _, BytesMut};
use tokio::io::Interest;
use tokio::sync::watch;

use crate::error::Error;
use crate::link::{Link, check_close, protocol};
use crate::wire::Incoming;

/// A role adds nothing while so many bytes wait for the socket. That bounds the output buffer to this, one message, and
/// answers to one read.
pub(crate) const OUTPUT_BYTES: usize = 64 * 1024;
/// Turns after which other connections of the thread come to their turn.
const TURNS_IN_A_ROW: u32 = 8;

/// How far a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Consumers attach.
    Attach,
    /// Publishers publish.
    Publish,
    /// Publishers stop, and wait for their confirms.
    Finish,
    /// All stop at once.
    Stop,
}

/// When a role wants to be asked again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// When something came or the phase changed.
    Wait,
    /// At this time, or when something came.
    At(Instant),
    /// As soon as there is room in the output.
    More,
    /// Never: once the output is written, the connection can be closed.
    Done,
}

/// What a connection does under load.
pub(crate) trait Role {
    /// Frames came.
    ///
    /// # Errors
    /// All end the connection.
    fn turn(&mut self, frames: &mut Frames<'_>, out: &mut BytesMut) -> Result<(), Error>;

    /// Appends what is to be sent now.
    fn produce(&mut self, phase: Phase, now: Instant, out: &mut BytesMut) -> Next;
}

/// The whole frames in the input, one after the other.
pub(crate) struct Frames<'a> {
    decoder: FrameDecoder,
    input: &'a [u8],
    consumed: usize,
    /// Whether the broker blocks publishers, as far as is known.
    blocked: &'a mut bool,
}

impl<'a> Frames<'a> {
    /// The next frame that is not for the connection itself, and its channel.
    ///
    /// # Errors
    /// Malformed frames, and `connection.close` or `channel.close` from the broker.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<Option<(u16, Incoming<'a>)>, Error> {
        while let Some((frame, bytes)) = self.decoder.decode(&self.input[self.consumed..]).map_err(protocol)? {
            self.consumed += bytes;
            let incoming = Incoming::decode(&frame)?;
            match &incoming {
                Incoming::Heartbeat => continue,
                Incoming::Other(method) => {
                    check_close(method)?;
                    if let AMQPClass::Connection(notice) = &**method {
                        self.connection_method(notice);
                        continue;
                    }
                }
                _ => {}
            }
            return Ok(Some((frame.channel, incoming)));
        }
        Ok(None)
    }

    fn connection_method(&mut self, method: &connection::AMQPMethod) {
        match method {
            connection::AMQPMethod::Blocked(_) => *self.blocked = true,
            connection::AMQPMethod::Unblocked(_) => *self.blocked = false,
            _ => {}
        }
    }

    /// Whether the broker has asked publishers to wait.
    pub(crate) fn is_blocked(&self) -> bool {
        *self.blocked
    }
}

/// Runs a role until it is done.
///
/// # Errors
/// What ended the connection before.
pub(crate) async fn drive(
    link: &mut Link,
    role: &mut impl Role,
    phases: &mut watch::Receiver<Phase>,
) -> Result<(), Error> {
    let mut blocked = false;
    let mut turns = 0;
    let mut heartbeat_due = link.heartbeat.map(|every| Instant::now() + every / 2);
    // What came before, behind the last answer of the setup.
    take_in(link, role, &mut blocked)?;
    loop {
        let now = Instant::now();
        if let (Some(due), Some(every)) = (heartbeat_due, link.heartbeat)
            && now >= due
        {
            encode::heartbeat(&mut link.output);
            heartbeat_due = Some(now + every / 2);
        }
        let phase = *phases.borrow_and_update();
        let next =
            if link.output.len() < OUTPUT_BYTES { role.produce(phase, now, &mut link.output) } else { Next::More };
        let mut progress = false;
        if !link.output.is_empty() {
            progress |= link.write()?;
        }
        if link.output.is_empty() {
            match next {
                Next::Done => return Ok(()),
                Next::More => progress = true,
                Next::At(_) | Next::Wait => {}
            }
        }
        if link.read()? {
            take_in(link, role, &mut blocked)?;
            progress = true;
        }
        if progress {
            turns += 1;
            if turns % TURNS_IN_A_ROW == 0 {
                tokio::task::yield_now().await;
            }
            continue;
        }
        let interest =
            if link.output.is_empty() { Interest::READABLE } else { Interest::READABLE | Interest::WRITABLE };
        let wake = match (next, heartbeat_due) {
            (Next::At(at), Some(due)) => Some(at.min(due)),
            (Next::At(at), None) => Some(at),
            (_, due) => due,
        };
        let wake_up = async {
            match wake {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            ready = link.stream.ready(interest) => drop(ready?),
            () = wake_up => {}
            changed = phases.changed() => changed.map_err(|_| Error::Internal("the run ended"))?,
        }
    }
}

fn take_in(link: &mut Link, role: &mut impl Role, blocked: &mut bool) -> Result<(), Error> {
    if link.input.is_empty() {
        return Ok(());
    }
    let mut frames = Frames { decoder: link.decoder, input: &link.input, consumed: 0, blocked };
    role.turn(&mut frames, &mut link.output)?;
    let consumed = frames.consumed;
    link.input.advance(consumed);
    Ok(())
}
