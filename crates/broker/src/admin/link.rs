//! How the administration talks to the metadata and to shards: as a connection does, by tokens, but without a socket.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use amqp::{Exception, MethodId, ReplyCode};
use queue::{Batch, Op, Reply, Token};
use rustc_hash::FxHashMap;
use tokio::time::{Instant, timeout_at};

use crate::broker::Broker;
use crate::connection::{ConnectionHandle, Event};
use crate::metadata::{Applied, Asker, Change, Earlier, Input};
use crate::shard::ShardInput;

/// Questions that wait for their answer at a time: what that takes in mailboxes is bounded by it.
const IN_FLIGHT: usize = 4096;
/// How long an answer is waited for. On a full disk changes wait for space; whoever asked is told that they do.
const PATIENCE: Duration = Duration::from_secs(30);

/// An answer, by the place of its question.
enum Answer {
    Reply(Reply),
    Change(Result<Applied, Exception>),
}

/// The link.
#[derive(Debug)]
pub(super) struct Link {
    broker: Arc<Broker>,
    handle: Arc<ConnectionHandle>,
    next_token: u64,
    /// Shards that know the link, with the number of the last batch.
    shards: FxHashMap<u32, u64>,
}

impl Link {
    pub(super) fn new(broker: &Arc<Broker>) -> Self {
        let handle = ConnectionHandle::new(broker.new_connection_id());
        Self { broker: Arc::clone(broker), handle, next_token: 1, shards: FxHashMap::default() }
    }

    /// Has a change written and applied.
    ///
    /// # Errors
    /// Refused as a client's would be, or the node cannot answer.
    pub(super) async fn change(&mut self, change: Change) -> Result<Applied, Exception> {
        self.changes(vec![change]).await.pop().expect("an answer to each change")
    }

    /// Has changes written and applied, in order, many with one sync. Those behind a refused one are made all the same.
    pub(super) async fn changes(&mut self, changes: Vec<Change>) -> Vec<Result<Applied, Exception>> {
        let mut results = Vec::with_capacity(changes.len());
        let mut changes = changes.into_iter().peekable();
        while changes.peek().is_some() {
            let first = self.next_token;
            for change in changes.by_ref().take(IN_FLIGHT) {
                let asker = self.asker();
                self.broker.metadata().send(Input::Change { change, asker: Some(asker) });
            }
            for answer in self.answers(first).await {
                results.push(match answer {
                    Some(Answer::Change(result)) => result,
                    _ => Err(no_answer()),
                });
            }
        }
        results
    }

    /// Waits until the removals that were asked for before have taken effect.
    pub(super) async fn settle(&mut self) -> Result<(), Exception> {
        let first = self.next_token;
        let asker = self.asker();
        self.broker.metadata().send(Input::Barrier { after: Earlier::Removals, asker });
        match self.answers(first).await.pop().flatten() {
            Some(Answer::Change(result)) => result.map(|_| ()),
            _ => Err(no_answer()),
        }
    }

    /// Asks shards, and answers in the order of the questions; `None` where a shard does not.
    pub(super) async fn ask(
        &mut self,
        questions: impl IntoIterator<Item = (u32, impl FnOnce(Token) -> Op)>,
    ) -> Vec<Option<Reply>> {
        let mut replies = Vec::new();
        let mut questions = questions.into_iter().peekable();
        while questions.peek().is_some() {
            let first = self.next_token;
            let mut by_shard: FxHashMap<u32, Vec<Op>> = FxHashMap::default();
            for (shard, question) in questions.by_ref().take(IN_FLIGHT) {
                let token = self.take_token();
                by_shard.entry(shard).or_default().push(question(token));
            }
            for (shard, ops) in by_shard {
                self.send(shard, ops);
            }
            replies.extend(self.answers(first).await.into_iter().map(|answer| match answer {
                Some(Answer::Reply(reply)) => Some(reply),
                _ => None,
            }));
        }
        replies
    }

    fn send(&mut self, shard: u32, ops: Vec<Op>) {
        let connection = self.handle.id.0;
        if !self.shards.contains_key(&shard) {
            self.broker.shard(shard).send(ShardInput::Register(Arc::clone(&self.handle)));
        }
        let number = self.shards.entry(shard).or_default();
        *number += 1;
        let batch = Batch { connection, number: *number, urgent: false, ops, buffers: Vec::new() };
        self.broker.shard(shard).send(ShardInput::Batch(batch));
    }

    fn take_token(&mut self) -> Token {
        self.next_token += 1;
        Token(self.next_token - 1)
    }

    fn asker(&mut self) -> Asker {
        let token = self.take_token();
        Asker { handle: Arc::clone(&self.handle), token }
    }

    /// The answers to all questions since this token.
    async fn answers(&mut self, first: u64) -> Vec<Option<Answer>> {
        let number = usize::try_from(self.next_token - first).expect("a portion of questions");
        let mut answers: Vec<Option<Answer>> = (0..number).map(|_| None).collect();
        let mut missing = number;
        let deadline = Instant::now() + PATIENCE;
        let mut events = Vec::new();
        while missing > 0 {
            let take = poll_fn(|context| self.handle.mailbox.poll_take(context, &mut events));
            if timeout_at(deadline, take).await.is_err() {
                break;
            }
            for event in events.drain(..) {
                let (token, answer) = match event {
                    Event::Reply { token, reply } => (token, Answer::Reply(reply)),
                    Event::Metadata { token, result } => (token, Answer::Change(result)),
                    _ => continue,
                };
                // One that is late belongs to an earlier portion.
                let place = token.0.checked_sub(first).and_then(|place| answers.get_mut(usize::try_from(place).ok()?));
                if let Some(place) = place {
                    missing -= usize::from(place.is_none());
                    *place = Some(answer);
                }
            }
        }
        answers
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        for shard in self.shards.keys() {
            self.broker.shard(*shard).send(ShardInput::Unregister(self.handle.id.0));
        }
    }
}

fn no_answer() -> Exception {
    let text = format!("no answer within {PATIENCE:?}; the change may still be made");
    Exception::new(ReplyCode::ResourceError, text, MethodId::NONE)
}
