//! The task of a connection: it owns the socket.
//!
//! One turn: take what the mailbox holds, read once, hand the gathered ops to the shards, write what is in the outbox. The task
//! sleeps when the socket has nothing, the mailbox is empty and the outbox is written or the socket full.

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

use super::handle::{ConnectionHandle, Event};
use super::pool;
use super::session::{Phase, Session};
use crate::broker::Broker;

/// Turns before other tasks of the thread get their chance, when there is always more to do.
const TURNS_PER_POLL: usize = 16;
/// Pieces of the outbox that go into one system call.
const MAX_IO_SLICES: usize = 64;
/// A partial frame of at most this size is kept in a buffer of its own between reads; with more, the read buffer is kept.
const SMALL_REST: usize = 4096;

/// A mailbox that held more than this once gives the room back.
const KEEP_EVENTS: usize = 1024;
/// The timer is never set for sooner than this.
const MIN_TICK: Duration = Duration::from_millis(10);

/// Serves one client until it is gone.
pub async fn serve(broker: Arc<Broker>, stream: TcpStream, peer: SocketAddr) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%peer, %error, "cannot switch off Nagle's algorithm");
    }
    let handle = broker.register(ConnectionHandle::new);
    let mut session = Session::new(broker, Arc::clone(&handle), peer, Instant::now());
    session.local = stream.local_addr().ok();
    let mut task = ConnectionTask {
        stream,
        session,
        handle,
        input: Vec::new(),
        input_bytes: 0,
        events: Vec::new(),
        timer: Box::pin(tokio::time::sleep(Duration::ZERO)),
        timer_phase: None,
    };
    poll_fn(|context| task.poll(context)).await;
}

struct ConnectionTask {
    stream: TcpStream,
    session: Session,
    handle: Arc<ConnectionHandle>,
    /// Bytes that were read and not used: a partial frame, or what a waiting channel must not see yet.
    input: Vec<u8>,
    /// How much of `input` is such bytes.
    input_bytes: usize,
    events: Vec<Event>,
    timer: Pin<Box<Sleep>>,
    /// The phase that the timer was set for.
    timer_phase: Option<Phase>,
}

/// However a connection ends, also by a panic of ours: what it held goes back.
impl Drop for ConnectionTask {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.session.abandon();
        } else {
            self.session.end();
        }
    }
}

impl ConnectionTask {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        for _ in 0..TURNS_PER_POLL {
            self.session.now = Instant::now();
            let mut progress = self.take_events(context);
            progress |= self.take_rest();
            match self.read(context) {
                Poll::Ready(Ok(())) => progress = true,
                Poll::Ready(Err(())) => return Poll::Ready(()),
                Poll::Pending => {}
            }
            self.session.flush();
            match self.write(context) {
                Ok(written) => progress |= written,
                Err(error) => {
                    tracing::debug!(%error, "cannot write to a client");
                    return Poll::Ready(());
                }
            }
            if self.session.is_gone() && self.session.outbox.is_empty() {
                return Poll::Ready(());
            }
            progress |= self.tick(context);
            if !progress {
                return Poll::Pending;
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Lets the session know of the time when it wants to. Each phase has its own deadlines.
    fn tick(&mut self, context: &mut Context<'_>) -> bool {
        let mut ticked = false;
        loop {
            if self.timer_phase != Some(self.session.phase) || ticked {
                self.timer_phase = Some(self.session.phase);
                let Some(next) = self.session.next_tick() else { return ticked };
                self.timer.as_mut().reset(next.max(self.session.now + MIN_TICK).into());
            } else if self.session.next_tick().is_none() {
                return ticked;
            }
            if self.timer.as_mut().poll(context).is_pending() {
                return ticked;
            }
            self.session.tick();
            ticked = true;
        }
    }

    fn take_events(&mut self, context: &mut Context<'_>) -> bool {
        if self.handle.mailbox.poll_take(context, &mut self.events).is_pending() {
            return false;
        }
        for event in self.events.drain(..) {
            self.session.event(event);
        }
        if self.events.capacity() > KEEP_EVENTS {
            self.events = Vec::new();
        }
        true
    }

    /// Offers again what the session could not use before.
    fn take_rest(&mut self) -> bool {
        if self.input_bytes == 0 || !self.session.wants_input() {
            return false;
        }
        let used = self.session.input(&self.input[..self.input_bytes]);
        self.keep_rest(used);
        used > 0
    }

    /// Reads once. `Err`: the connection is over.
    fn read(&mut self, context: &mut Context<'_>) -> Poll<Result<(), ()>> {
        if !self.session.wants_input() || self.session.is_gone() {
            return Poll::Pending;
        }
        self.make_room();
        let mut buffer = ReadBuf::new(&mut self.input[self.input_bytes..]);
        match Pin::new(&mut self.stream).poll_read(context, &mut buffer) {
            Poll::Ready(Ok(())) => {
                let bytes = buffer.filled().len();
                if bytes == 0 {
                    self.session.end_of_input();
                    return Poll::Ready(Err(()));
                }
                self.input_bytes += bytes;
                let used = self.session.input(&self.input[..self.input_bytes]);
                self.keep_rest(used);
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => {
                tracing::debug!(%error, "cannot read from a client");
                self.session.end_of_input();
                Poll::Ready(Err(()))
            }
            Poll::Pending => {
                self.keep_rest(0);
                Poll::Pending
            }
        }
    }

    /// Makes `input` large enough for a read behind what it holds: a whole frame at least.
    fn make_room(&mut self) {
        let frame = self.session.decoder.needed(&self.input[..self.input_bytes]).unwrap_or(0);
        let wanted = frame.max(self.input_bytes + 1);
        if self.input.len() < pool::READ_BYTES || self.input.len() < wanted {
            let mut buffer = pool::take_read();
            if buffer.len() < wanted {
                buffer.resize(wanted, 0);
            }
            buffer[..self.input_bytes].copy_from_slice(&self.input[..self.input_bytes]);
            self.input = buffer;
        }
        debug_assert!(self.input_bytes < self.input.len(), "there is room to read");
    }

    /// Keeps what was not used, in as little memory as it needs.
    fn keep_rest(&mut self, used: usize) {
        self.input.copy_within(used..self.input_bytes, 0);
        self.input_bytes -= used;
        if self.input_bytes <= SMALL_REST && self.input.len() >= pool::READ_BYTES {
            let small = self.input[..self.input_bytes].to_vec();
            pool::put_read(std::mem::replace(&mut self.input, small));
        }
    }

    /// Writes until the outbox is empty or the socket full. Answers whether anything went.
    fn write(&mut self, context: &mut Context<'_>) -> io::Result<bool> {
        let mut any = false;
        while !self.session.outbox.is_empty() {
            let mut slices = [IoSlice::new(&[]); MAX_IO_SLICES];
            let count = self.session.outbox.io_slices(&mut slices);
            match Pin::new(&mut self.stream).poll_write_vectored(context, &slices[..count]) {
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(bytes)) => {
                    self.session.written(bytes);
                    any = true;
                }
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => break,
            }
        }
        Ok(any)
    }
}
